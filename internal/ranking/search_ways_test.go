package ranking

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestTextFindsTheSameInEveryWay covers a planner that expects few rows or many, few or many
// matching links, and a matching link that is merged into another.
func TestTextFindsTheSameInEveryWay(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		var keys []schema.Key
		var shares []Share
		for _, s := range []struct{ page, text, title string }{
			{"old.example/heron", "", "The heron returns"}, {"new.example/birds", "", "Birds"}, {"other.example/1", "A heron!", ""},
			{"heron.example/2", "", "Trams"},
		} {
			k := schema.Key{Collection: schema.PostCollection, DID: "did:plc:" + s.page[:3], Rkey: "1"}
			if _, err := tx.Exec(t.Context(), `INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
				VALUES ($1, $2, $3, '1', '', $4, '{}')`, k.Collection, k.DID, k.Rkey, now); err != nil {
				return err
			}
			keys = append(keys, k)
			shares = append(shares, Share{
				Key:  k,
				Link: link.Link{Identity: s.page, URL: "https://" + s.page, Site: "l.example", Card: link.Card{Title: s.title}},
				How:  "post", SharedAt: now, Text: s.text,
			})
		}
		return ReplaceShares(t.Context(), tx, keys, shares, now)
	}))
	ids := map[string]int64{}
	rows, err := schema.All(t.Context(), pool, "read the links", pgx.RowToStructByPos[struct {
		Identity string
		ID       int64
	}], `SELECT identity, id FROM links`)
	require.NoError(t, err)
	for _, row := range rows {
		ids[row.Identity] = row.ID
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return MergeLinks(t.Context(), tx, Merge{Link: ids["old.example/heron"], Into: ids["new.example/birds"], Why: ByHand, Now: now})
	}))
	_, err = Count(t.Context(), pool, now)
	require.NoError(t, err)
	for text, want := range map[string][]string{
		"heron": {"new.example/birds", "other.example/1", "heron.example/2"}, "trams": {"heron.example/2"},
		"heron.example/": {"heron.example/2"}, "birds": {"new.example/birds"}, "geese": nil,
	} {
		var links []int64
		for _, page := range want {
			links = append(links, ids[page])
		}
		for _, few := range []int{0, 2, 2000} { // links
			for _, many := range []int{1, 2, usualLimits().many} { // rows; a planner expects at least one
				for _, sort := range []Sort{Sharers, Newest} {
					p, err := trending(t.Context(), pool, Query{
						At: now, Window: time.Hour, Sort: sort, Text: text, Limit: 10, Bare: true,
					}, limits{pending: 5000, crossings: 5000, few: few, many: many})
					require.NoError(t, err)
					require.False(t, p.Recounted)
					var got []int64
					for _, l := range p.Links {
						got = append(got, l.ID)
					}
					require.ElementsMatch(t, links, got, "%q by %s, few %d, many %d", text, sort, few, many)
				}
			}
		}
	}
}

// TestTextOfFewLinksIsListed shows that few matching links are listed: a scan would pass every link
// of the window to find them. If posts of many links match, checking the first links is faster.
func TestTextOfFewLinksIsListed(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	p := newPopularity(t, 40)
	const share = `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, words)
		SELECT 'did:plc:' || n, 'c', $1, %[1]s, %[1]s, 'post', $2, to_tsvector('simple', $1) FROM generate_series(1, 30) AS n`
	p.exec(p.pool, fmt.Sprintf(share, "1"), "crowd", p.now)
	p.exec(p.pool, fmt.Sprintf(share, "n"), "spread", p.now)
	for _, statistics := range []bool{false, true} { // with statistics, the planner expects the right number
		if statistics {
			p.exec(p.pool, `ANALYZE`)
		}
		for text, want := range map[string]searched{
			"crowd": {places: map[int64]int{1: inPosts}}, "spread": {places: map[int64]int{}, other: inPosts},
		} {
			r := &reader{q: Query{Text: text}, limits: limits{few: 0, many: 10}}
			require.NoError(t, r.read(t.Context(), p.pool, func() error { return r.readSearch(t.Context()) }))
			require.Equal(t, want.places, r.text.places, text)
			require.Equal(t, want.other, r.text.other, text)
		}
	}
}

func TestWalkTakesFewSteps(t *testing.T) {
	t.Parallel()
	for _, text := range []*searched{nil, {}} {
		w := &rankScan{reader: &reader{text: text}}
		for found := range 60 { // 50 are found, and no more
			size, passed, steps := 100, 0, 0
			for ; passed < 20_000; steps++ {
				passed += size
				size = w.chunk(size, passed, found, 50-found)
			}
			require.LessOrEqual(t, steps, 15, found)
		}
	}
	w := &rankScan{reader: &reader{text: &searched{}}}
	require.Equal(t, 2250, w.chunk(1000, 1500, 75, 75), "the next chunk must have half as many again as the other 75 should need")
}
