package feeds_test

import (
	"cmp"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/ranking/feeds"
	"github.com/weir-social/weir/internal/testing/schematest"
)

func noon() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

func execute(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// TestFeedsWithOneMemoryAreComputedAtOnce computes feeds with the same memory concurrently, also in
// several processes. None fails, and all have the same ids and dates.
func TestFeedsWithOneMemoryAreComputedAtOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen)
		SELECT n::text, 'https://news.example/' || n, 'site' || n % 2 || '.example', $1 FROM generate_series(1, 40) AS n`, noon())
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || s, 'app.bsky.feed.post', id::text, id, id, 'post',
			$1::timestamptz - id * interval '1 minute' - s * interval '1 second' FROM links, generate_series(1, 4) AS s`, noon())
	const readers = 12
	var all sync.WaitGroup
	read, failed := make([]feeds.Feed, readers), make([]error, readers)
	for n := range readers {
		q := ranking.Query{At: noon(), Limit: 100, Site: []string{"", "site0.example", "site1.example"}[n%3]}
		all.Go(func() { read[n], failed[n] = feeds.Read(t.Context(), pool, q) })
	}
	all.Wait()
	seen := map[int64]string{}
	for n := range readers {
		require.NoError(t, failed[n])
		require.Len(t, read[n].Entries, []int{40, 20, 20}[n%3])
		for _, e := range read[n].Entries {
			line := fmt.Sprint(e.UUID, e.Reached.UTC())
			require.Equal(t, line, cmp.Or(seen[e.ID], line))
			seen[e.ID] = line
		}
	}
	var stored string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(DISTINCT feed_id) || ' ' || count(*) FROM feed_entries`).Scan(&stored))
	require.Equal(t, "1 40", stored)
}

// TestFeedCountsPeopleBehindManyShares covers an account that shares a link very often and hides
// the other sharers from the first look at the link's shares. They are found nevertheless.
func TestFeedCountsPeopleBehindManyShares(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO links (identity, url, site, first_seen) VALUES ('a', 'https://news.example/a', 'news.example', $1)`, noon())
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:often', 'app.bsky.feed.post', s::text, 1, 1, 'post',
			$1::timestamptz - interval '1 day' + s * interval '1 second' FROM generate_series(1, 1000) AS s`, noon())
	at := noon().Add(-time.Hour)
	execute(t, pool, `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		VALUES ('did:plc:b', 'app.bsky.feed.post', 'b', 1, 1, 'post', $1), ('did:plc:c', 'app.bsky.feed.post', 'c', 1, 1, 'post', $2)`,
		at.Add(-time.Hour), at)
	f, err := feeds.Read(t.Context(), pool, ranking.Query{At: noon(), Limit: 10})
	require.NoError(t, err)
	require.Len(t, f.Entries, 1)
	require.Equal(t, at, f.Entries[0].Reached.UTC())
}
