package ranking

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestWhoNoLongerCountsLeavesAtOnce shows that a deleted share, a hidden account, an unfollowed one
// and the passing of time change the next page, before the counter has run and after it.
func TestWhoNoLongerCountsLeavesAtOnce(t *testing.T) {
	t.Parallel()
	pool, now := schematest.New(t), time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	exec := func(sql string, args ...any) {
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	count := func() {
		for more := true; more; {
			done, err := Count(t.Context(), pool, now)
			require.NoError(t, err)
			more = done.More
		}
	}
	sharers := func() int {
		p, err := Trending(t.Context(), pool, Query{At: now, Window: time.Hour, Limit: 10, Bare: true})
		require.NoError(t, err)
		require.False(t, p.Recounted)
		require.Len(t, p.Links, 1)
		return p.Links[0].Sharers
	}
	exec(`INSERT INTO links (identity, url, site, first_seen) VALUES ('l', 'https://l.example/', 'l.example', $1)`, now)
	exec(`INSERT INTO watches (target) VALUES ('w')`)
	for did, ago := range map[string]time.Duration{"stays": 0, "old": 59 * time.Minute, "deletes": 0, "hidden": 0, "unfollowed": 0} {
		exec(`INSERT INTO watch_members (watch_id, did) VALUES (1, $1)`, did)
		exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			VALUES ($1, 'c', 'r', 1, 1, 'post', $2)`, did, now.Add(-ago))
	}
	count()
	require.Equal(t, 5, sharers())
	left := 5
	for _, change := range []func(){
		func() { exec(`DELETE FROM shares WHERE did = 'deletes'`) },
		func() { exec(`INSERT INTO accounts (did, status) VALUES ('hidden', 'takendown')`) },
		func() { exec(`DELETE FROM watch_members WHERE did = 'unfollowed'`) },
		func() { now = now.Add(2 * time.Minute) },
	} {
		change()
		left--
		require.Equal(t, left, sharers(), "before the counter has run")
		count()
		require.Equal(t, left, sharers(), "after it")
	}
}
