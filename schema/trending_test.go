package schema_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// share writes what one post of an account shares.
func share(t *testing.T, pool *pgxpool.Pool, did, rkey, url string, at time.Time, card schema.Card) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return schema.ReplaceShares(t.Context(), tx, []schema.Key{k}, []schema.Share{{Key: k, URL: url, Site: "site.example", How: "post", SharedAt: at, Card: card}}, at)
	}))
}

func ranking(t *testing.T, pool *pgxpool.Pool, now time.Time, window time.Duration) (lines []string) {
	t.Helper()
	links, err := schema.TrendingLinks(t.Context(), pool, now, window, 10)
	require.NoError(t, err)
	for _, l := range links {
		lines = append(lines, fmt.Sprintf("%s %d", l.URL, l.Sharers))
	}
	return lines
}

func TestRankingCountsDistinctSharersInTheWindow(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	const a, b, c, d = "https://a.example/", "https://b.example/", "https://c.example/", "https://d.example/"
	share(t, pool, "did:1", "1", a, now.Add(-3*time.Hour), schema.Card{})
	share(t, pool, "did:1", "2", a, now.Add(-2*time.Minute), schema.Card{}) // the same account twice
	share(t, pool, "did:1", "3", b, now.Add(-50*time.Minute), schema.Card{})
	share(t, pool, "did:2", "1", b, now.Add(-40*time.Minute), schema.Card{})
	share(t, pool, "did:2", "2", c, now.Add(-time.Minute), schema.Card{})
	share(t, pool, "did:3", "1", d, now.Add(time.Minute), schema.Card{}) // not yet
	require.Equal(t, []string{b + " 2", c + " 1", a + " 1"}, ranking(t, pool, now, time.Hour), "ties by recency")
	require.Equal(t, []string{b + " 2", a + " 1"}, ranking(t, pool, now.Add(-90*time.Second), time.Hour))
	require.Empty(t, ranking(t, pool, now.Add(-100*time.Hour), time.Hour))
}

func TestDeletedPostsAndHiddenAccountsLeaveInTheirOwnTransaction(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	const a = "https://a.example/"
	_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{post("1", "1")}})
	require.NoError(t, err)
	share(t, pool, "did:plc:a", "1", a, now, schema.Card{})
	share(t, pool, "did:plc:b", "1", a, now, schema.Card{})
	require.Equal(t, []string{a + " 2"}, ranking(t, pool, now, time.Hour))

	say := func(status string, at int64) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: "did:plc:b", Status: status, At: time.Unix(at, 0)}}})
		require.NoError(t, err)
	}
	say("deactivated", 1)
	require.Equal(t, []string{a + " 1"}, ranking(t, pool, now, time.Hour))
	links, err := schema.TrendingLinks(t.Context(), pool, now, time.Hour, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"did:plc:a"}, links[0].SharedBy, "a hidden account is not shown either")
	say("active", 2)
	require.Equal(t, []string{a + " 2"}, ranking(t, pool, now, time.Hour))

	_, err = apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("1", "2")}})
	require.NoError(t, err)
	require.Equal(t, []string{a + " 1"}, ranking(t, pool, now, time.Hour))
}

func TestEarliestCardStays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	cards := []schema.Card{
		{Title: "second", From: "at://2", At: now.Add(2)},
		{Title: "first", From: "at://1", At: now.Add(1)},
		{}, // a bare link
		{Title: "third", From: "at://3", At: now.Add(3)},
	}
	pool := schematest.New(t)
	for i := range cards {
		url := fmt.Sprintf("https://a.example/%d", i) // every rotation of the order, on a link of its own
		for j := range cards {
			share(t, pool, "did:1", fmt.Sprintf("%d-%d", i, j), url, now, cards[(i+j)%len(cards)])
		}
		share(t, pool, "did:1", "edit", url, now, schema.Card{Title: "first, edited", From: "at://1", At: now.Add(1)})
	}
	links, err := schema.TrendingLinks(t.Context(), pool, now, time.Hour, 10)
	require.NoError(t, err)
	require.Len(t, links, len(cards))
	for _, l := range links {
		require.Equal(t, "first, edited", l.Title)
		require.Equal(t, "at://1", l.CardFrom)
	}
}
