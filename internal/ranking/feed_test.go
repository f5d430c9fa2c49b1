package ranking_test

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestFeedsWithOneMemoryAreComputedAtOnce computes feeds with the same memory concurrently, also in
// several processes. None fails, and all have the same ids and dates.
func TestFeedsWithOneMemoryAreComputedAtOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) SELECT n::text, 'https://news.example/' || n, 'site' || n % 2 || '.example', $1 FROM generate_series(1, 40) AS n`, noon())
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || s, 'app.bsky.feed.post', id::text, id, id, 'post', $1::timestamptz - id * interval '1 minute' - s * interval '1 second' FROM links, generate_series(1, 4) AS s`, noon())
	const readers = 12
	var all sync.WaitGroup
	feeds, failed := make([]ranking.Feed, readers), make([]error, readers)
	for n := range readers {
		q := ranking.Query{At: noon(), Limit: 100, Site: []string{"", "site0.example", "site1.example"}[n%3]}
		all.Go(func() { feeds[n], failed[n] = ranking.ReadFeed(t.Context(), pool, q) })
	}
	all.Wait()
	seen := map[int64]string{}
	for n := range readers {
		require.NoError(t, failed[n])
		require.Len(t, feeds[n].Entries, []int{40, 20, 20}[n%3])
		for _, e := range feeds[n].Entries {
			line := fmt.Sprint(e.UUID, e.Reached.UTC())
			require.Equal(t, line, cmp.Or(seen[e.ID], line))
			seen[e.ID] = line
		}
	}
	require.Equal(t, []string{"1 40"}, column(t, pool, `SELECT count(DISTINCT feed_id) || ' ' || count(*) FROM feed_entries`))
}

// TestFeedCountsPeopleBehindManyShares covers an account that shares a link very often and hides
// the other sharers from the first look at the link's shares. They are found nevertheless.
func TestFeedCountsPeopleBehindManyShares(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) VALUES ('a', 'https://news.example/a', 'news.example', $1)`, noon())
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:often', 'app.bsky.feed.post', s::text, 1, 1, 'post', $1::timestamptz - interval '1 day' + s * interval '1 second' FROM generate_series(1, 1000) AS s`, noon())
	at := noon().Add(-time.Hour)
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at) VALUES ('did:plc:b', 'app.bsky.feed.post', 'b', 1, 1, 'post', $1), ('did:plc:c', 'app.bsky.feed.post', 'c', 1, 1, 'post', $2)`,
		at.Add(-time.Hour), at)
	f, err := ranking.ReadFeed(t.Context(), pool, ranking.Query{At: noon(), Limit: 10})
	require.NoError(t, err)
	require.Len(t, f.Entries, 1)
	require.Equal(t, at, f.Entries[0].Reached.UTC())
}
