package ranking_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// share writes what one post of an account shares.
func share(t *testing.T, pool *pgxpool.Pool, did, rkey, url string, at time.Time, card ranking.Card) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, []ranking.Share{{Key: k, URL: url, Site: "site.example", How: "post", SharedAt: at, Card: card}}, at)
	}))
}

func ranked(t *testing.T, pool *pgxpool.Pool, now time.Time, window time.Duration) (lines []string) {
	t.Helper()
	links, err := ranking.TrendingLinks(t.Context(), pool, now, window, 10)
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
	share(t, pool, "did:1", "1", a, now.Add(-3*time.Hour), ranking.Card{})
	share(t, pool, "did:1", "2", a, now.Add(-2*time.Minute), ranking.Card{}) // the same account twice
	share(t, pool, "did:1", "3", b, now.Add(-50*time.Minute), ranking.Card{})
	share(t, pool, "did:2", "1", b, now.Add(-40*time.Minute), ranking.Card{})
	share(t, pool, "did:2", "2", c, now.Add(-time.Minute), ranking.Card{})
	share(t, pool, "did:3", "1", d, now.Add(time.Minute), ranking.Card{}) // not yet
	require.Equal(t, []string{b + " 2", c + " 1", a + " 1"}, ranked(t, pool, now, time.Hour), "ties by recency")
	require.Equal(t, []string{b + " 2", a + " 1"}, ranked(t, pool, now.Add(-90*time.Second), time.Hour))
	require.Empty(t, ranked(t, pool, now.Add(-100*time.Hour), time.Hour))
}

func TestDeletedPostsAndHiddenAccountsLeaveInTheirOwnTransaction(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	const a = "https://a.example/"
	_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{post("1", "1")}})
	require.NoError(t, err)
	share(t, pool, "did:plc:a", "1", a, now, ranking.Card{})
	share(t, pool, "did:plc:b", "1", a, now, ranking.Card{})
	require.Equal(t, []string{a + " 2"}, ranked(t, pool, now, time.Hour))

	say := func(status string, at int64) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: "did:plc:b", Status: status, At: time.Unix(at, 0)}}})
		require.NoError(t, err)
	}
	say("deactivated", 1)
	require.Equal(t, []string{a + " 1"}, ranked(t, pool, now, time.Hour))
	links, err := ranking.TrendingLinks(t.Context(), pool, now, time.Hour, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"did:plc:a"}, links[0].SharedBy, "a hidden account is not shown either")
	say("active", 2)
	require.Equal(t, []string{a + " 2"}, ranked(t, pool, now, time.Hour))

	_, err = apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("1", "2")}})
	require.NoError(t, err)
	require.Equal(t, []string{a + " 1"}, ranked(t, pool, now, time.Hour))
}

func TestEarliestCardStays(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	cards := []ranking.Card{
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
		share(t, pool, "did:1", "edit", url, now, ranking.Card{Title: "first, edited", From: "at://1", At: now.Add(1)})
	}
	links, err := ranking.TrendingLinks(t.Context(), pool, now, time.Hour, 10)
	require.NoError(t, err)
	require.Len(t, links, len(cards))
	for _, l := range links {
		require.Equal(t, "first, edited", l.Title)
		require.Equal(t, "at://1", l.CardFrom)
	}
}

// The ranking is counted in two steps; an independent fold counts in one.
func TestRankingEqualsAFold(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	for _, watched := range []bool{false, true} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("watched=%t,seed=%d", watched, seed), func(t *testing.T) {
				t.Parallel()
				pool := schematest.New(t)
				random := rand.New(rand.NewPCG(seed, 7))
				const accounts, links = 60, 80
				did := func(i int) string { return fmt.Sprintf("did:plc:%03d", i) }
				url := func(i int) string { return fmt.Sprintf("https://site.example/%03d", i) }
				hidden := func(i int) bool { return seed%2 == 1 && i%5 == 0 } // the busiest of all among them
				unseen := func(i int) bool { return i%7 == 1 }                // no watch brings them
				shared := map[[2]int]bool{}
				tally := map[string]map[int]struct{}{}
				latest := map[string]time.Time{}
				require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					var all []ranking.Share
					var keys []schema.Key
					for i := range 1500 {
						skew := random.Float64()
						who, what := int(accounts*skew*skew), int(links*skew*random.Float64())  // few share most, and few links are shared most
						at := now.Add(time.Minute - time.Duration(random.IntN(90))*time.Minute) // many at once, some outside
						if seed%2 == 0 && shared[[2]int{who, what}] {
							continue // as many shares as sharers, nobody being hidden
						}
						shared[[2]int{who, what}] = true
						k := schema.Key{Collection: schema.PostCollection, DID: did(who), Rkey: fmt.Sprintf("%04d", i)}
						keys = append(keys, k)
						all = append(all, ranking.Share{Key: k, URL: url(what), Site: "site.example", How: "post", SharedAt: at})
						if hidden(who) || watched && unseen(who) || at.After(now) || !at.After(now.Add(-time.Hour)) {
							continue
						}
						u := url(what)
						if tally[u] == nil {
							tally[u] = map[int]struct{}{}
						}
						tally[u][who] = struct{}{}
						if at.After(latest[u]) {
							latest[u] = at
						}
					}
					return ranking.ReplaceShares(t.Context(), tx, keys, all, now)
				}))
				for i := range accounts {
					if hidden(i) {
						_, err := pool.Exec(t.Context(), `INSERT INTO accounts (did, status) VALUES ($1, 'takendown') ON CONFLICT (did) DO UPDATE SET status = excluded.status`, did(i))
						require.NoError(t, err)
					}
				}
				if watched {
					var watch int64
					require.NoError(t, pool.QueryRow(t.Context(), `INSERT INTO watches (kind, target) VALUES ('account', 'did:plc:000') RETURNING id`).Scan(&watch))
					for i := range accounts {
						if !unseen(i) {
							_, err := pool.Exec(t.Context(), `INSERT INTO watch_members (did, watch_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, did(i), watch)
							require.NoError(t, err)
						}
					}
				}
				var want []string
				for u, sharers := range tally {
					want = append(want, fmt.Sprintf("%s %d %s", u, len(sharers), latest[u].Format(time.TimeOnly)))
				}
				slices.SortFunc(want, func(a, b string) int {
					fa, fb := strings.Fields(a), strings.Fields(b)
					return cmp.Or(len(tally[fb[0]])-len(tally[fa[0]]), strings.Compare(fb[2], fa[2]), strings.Compare(fa[0], fb[0]))
				})
				for _, limit := range []int{1, 2, 7, 30, len(want), len(want) + 50} {
					links, err := ranking.TrendingLinks(t.Context(), pool, now, time.Hour, limit)
					require.NoError(t, err)
					var got []string
					for _, l := range links {
						got = append(got, fmt.Sprintf("%s %d %s", l.URL, l.Sharers, l.LastShared.UTC().Format(time.TimeOnly)))
					}
					require.Equal(t, want[:min(limit, len(want))], got, "the first %d", limit)
				}
			})
		}
	}
}
