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

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// share stores the share of one post of an account.
func share(t *testing.T, pool *pgxpool.Pool, did, rkey, url string, at time.Time, card link.Card) {
	t.Helper()
	k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, []schema.Key{k}, []ranking.Share{{
			Key: k, Link: link.Link{Identity: url, URL: url, Site: "site.example", Card: card}, How: "post", SharedAt: at,
		}}, at)
	}))
}

// trending ranks the links at a time in the past: later shares do not count.
func trending(t *testing.T, pool *pgxpool.Pool, now time.Time, window time.Duration, limit int) ([]ranking.TrendingLink, error) {
	t.Helper()
	p, err := ranking.Trending(t.Context(), pool, ranking.Query{At: now, Past: true, Window: window, Limit: limit})
	return p.Links, err
}

func ranked(t *testing.T, pool *pgxpool.Pool, now time.Time, window time.Duration) (lines []string) {
	t.Helper()
	links, err := trending(t, pool, now, window, 10)
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
	share(t, pool, "did:1", "1", a, now.Add(-3*time.Hour), link.Card{})
	share(t, pool, "did:1", "2", a, now.Add(-2*time.Minute), link.Card{}) // the same account shares it twice
	share(t, pool, "did:1", "3", b, now.Add(-50*time.Minute), link.Card{})
	share(t, pool, "did:2", "1", b, now.Add(-40*time.Minute), link.Card{})
	share(t, pool, "did:2", "2", c, now.Add(-time.Minute), link.Card{})
	share(t, pool, "did:3", "1", d, now.Add(time.Minute), link.Card{}) // after the end of the window
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
	share(t, pool, "did:plc:a", "1", a, now, link.Card{})
	share(t, pool, "did:plc:b", "1", a, now, link.Card{})
	require.Equal(t, []string{a + " 2"}, ranked(t, pool, now, time.Hour))

	say := func(status string, at int64) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{
			DID: "did:plc:b", Status: status, At: time.Unix(at, 0),
		}}})
		require.NoError(t, err)
	}
	say("deactivated", 1)
	require.Equal(t, []string{a + " 1"}, ranked(t, pool, now, time.Hour))
	links, err := trending(t, pool, now, time.Hour, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"did:plc:a"}, links[0].SharedBy, "a hidden account is not shown either")
	say("active", 2)
	require.Equal(t, []string{a + " 2"}, ranked(t, pool, now, time.Hour))

	_, err = apply(t.Context(), pool, lease, schema.Batch{Deletions: []schema.Deletion{deletion("1", "2")}})
	require.NoError(t, err)
	require.Equal(t, []string{a + " 1"}, ranked(t, pool, now, time.Hour))
}

// crowd is a random set of shares, with the ranking that an independent count expects.
type crowd struct {
	seed    uint64
	watched bool // only some accounts are followed
	now     time.Time
	shares  []ranking.Share
	sharers map[string]map[int]struct{} // by URL
	latest  map[string]time.Time        // by URL
}

const crowdAccounts, crowdLinks = 60, 80

func (c *crowd) did(i int) string    { return fmt.Sprintf("did:plc:%03d", i) }
func (c *crowd) url(i int) string    { return fmt.Sprintf("https://site.example/%03d", i) }
func (c *crowd) hidden(i int) bool   { return c.seed%2 == 1 && i%5 == 0 } // includes the busiest accounts
func (c *crowd) followed(i int) bool { return !c.watched || i%7 != 1 }

func newCrowd(seed uint64, watched bool, now time.Time) *crowd {
	c := &crowd{seed: seed, watched: watched, now: now, sharers: map[string]map[int]struct{}{}, latest: map[string]time.Time{}}
	random := rand.New(rand.NewPCG(seed, 7))
	shared := map[[2]int]bool{}
	for i := range 1500 {
		skew := random.Float64()
		// most shares are by a few accounts and of a few links
		account, link := int(crowdAccounts*skew*skew), int(crowdLinks*skew*random.Float64())
		// many have the same time, some are outside the window
		at := now.Add(time.Minute - time.Duration(random.IntN(90))*time.Minute)
		if seed%2 == 0 && shared[[2]int{account, link}] {
			continue // equals the number of sharers, because no account is hidden
		}
		shared[[2]int{account, link}] = true
		c.add(account, link, fmt.Sprintf("%04d", i), at)
	}
	return c
}

func (c *crowd) add(account, page int, rkey string, at time.Time) {
	k := schema.Key{Collection: schema.PostCollection, DID: c.did(account), Rkey: rkey}
	u := c.url(page)
	c.shares = append(c.shares, ranking.Share{Key: k, Link: link.Link{Identity: u, URL: u, Site: "site.example"}, How: "post", SharedAt: at})
	if c.hidden(account) || !c.followed(account) || at.After(c.now) || !at.After(c.now.Add(-time.Hour)) {
		return
	}
	if c.sharers[u] == nil {
		c.sharers[u] = map[int]struct{}{}
	}
	c.sharers[u][account] = struct{}{}
	if at.After(c.latest[u]) {
		c.latest[u] = at
	}
}

func (c *crowd) store(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		keys := make([]schema.Key, len(c.shares))
		for i := range c.shares {
			keys[i] = c.shares[i].Key
		}
		return ranking.ReplaceShares(t.Context(), tx, keys, c.shares, c.now)
	}))
	var watch int64
	if c.watched {
		require.NoError(t, pool.QueryRow(t.Context(),
			`INSERT INTO watches (kind, target) VALUES ('account', 'did:plc:000') RETURNING id`).Scan(&watch))
	}
	for i := range crowdAccounts {
		if c.hidden(i) {
			execute(t, pool, `INSERT INTO accounts (did, status) VALUES ($1, 'takendown')
				ON CONFLICT (did) DO UPDATE SET status = excluded.status`, c.did(i))
		}
		if c.watched && c.followed(i) {
			execute(t, pool, `INSERT INTO watch_members (did, watch_id) VALUES ($1, $2) ON CONFLICT DO NOTHING`, c.did(i), watch)
		}
	}
}

// ranking returns the expected ranking.
func (c *crowd) ranking() (lines []string) {
	for u, sharers := range c.sharers {
		lines = append(lines, fmt.Sprintf("%s %d %s", u, len(sharers), c.latest[u].Format(time.TimeOnly)))
	}
	slices.SortFunc(lines, func(a, b string) int {
		fa, fb := strings.Fields(a), strings.Fields(b)
		// the links are stored in the order of their URLs
		return cmp.Or(len(c.sharers[fb[0]])-len(c.sharers[fa[0]]), strings.Compare(fb[2], fa[2]), strings.Compare(fb[0], fa[0]))
	})
	return lines
}

// TestRankingEqualsAnIndependentCount compares the query, which counts in two steps, with a count
// in one step.
func TestRankingEqualsAnIndependentCount(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	for _, watched := range []bool{false, true} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("watched=%t,seed=%d", watched, seed), func(t *testing.T) {
				t.Parallel()
				pool := schematest.New(t)
				c := newCrowd(seed, watched, now)
				c.store(t, pool)
				want := c.ranking()
				for _, limit := range []int{1, 2, 7, 30, len(want), len(want) + 50} {
					links, err := trending(t, pool, now, time.Hour, limit)
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

// TestThousandsOfLinksByOneAccount shows that each of the account's links has one sharer and ranks
// below links that two accounts share, whatever it posts first or often. When the account is
// hidden, all of them disappear at once.
func TestThousandsOfLinksByOneAccount(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const many = 5000
	pool := schematest.New(t)
	now := noon()
	keys := make([]schema.Key, 0, 2*many)
	shares := make([]ranking.Share, 0, 2*many)
	add := func(did, rkey, page, title string) {
		k := schema.Key{Collection: schema.PostCollection, DID: did, Rkey: rkey}
		keys = append(keys, k)
		shares = append(shares, ranking.Share{
			Key: k, Link: link.Link{Identity: page, URL: "https://" + page, Site: "site.example", Card: link.Card{Title: title}},
			How: "post", SharedAt: now.Add(-time.Minute),
		})
	}
	for i := range many {
		page := fmt.Sprintf("site.example/%d", i)
		add("did:plc:busy", fmt.Sprint(i), page, "False")
		add("did:plc:busy", fmt.Sprint("again", i), page, "False")
	}
	for _, did := range []string{"did:plc:a", "did:plc:b"} {
		add(did, "1", "site.example/0", "True")
		add(did, "2", "other.example", "Another")
	}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		return ranking.ReplaceShares(t.Context(), tx, keys, shares, now)
	}))
	top := func() (lines []string) {
		p, err := ranking.Trending(t.Context(), pool, ranking.Query{At: now, Window: time.Hour, Limit: 3})
		require.NoError(t, err)
		for _, l := range p.Links {
			lines = append(lines, fmt.Sprintf("%s %d %s", l.URL, l.Sharers, l.Title))
		}
		return lines
	}
	settle := func() {
		for {
			done, err := ranking.Count(t.Context(), pool, now)
			require.NoError(t, err)
			if !done.More {
				break
			}
		}
		_, err := ranking.Check(t.Context(), pool, func(d ranking.Difference) { require.Fail(t, d.String()) })
		require.NoError(t, err)
	}
	// the text that sorts last was stored last
	shown := []string{"https://site.example/0 3 True", "https://other.example 2 Another", "https://site.example/999 1 False"}
	hidden := []string{"https://site.example/0 2 True", "https://other.example 2 Another"}
	require.Equal(t, shown, top())
	settle()
	require.Equal(t, shown, top())
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:busy', 'takendown')`)
	require.Equal(t, hidden, top())
	settle()
	require.Equal(t, hidden, top())
	execute(t, pool, `DELETE FROM accounts`)
	require.Equal(t, shown, top())
	settle()
	require.Equal(t, shown, top())
}
