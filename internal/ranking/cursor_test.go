package ranking

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestLatePageEndsWithTheCounts shows that if too many shares have left the window since the first
// page, the next page has the time of the counts, and the shares are not counted. It continues after
// the first page.
func TestLatePageEndsWithTheCounts(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	first := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	later := first.Add(50 * time.Minute)
	// Link n has 30 - n sharers; one of them shared it so early that it leaves the window of an hour.
	_, err := pool.Exec(t.Context(), `INSERT INTO links (identity, url, site, first_seen) SELECT n::text, n::text, 's', $1
		FROM generate_series(1, 20) AS n`, first)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'c', id::text, id, id, 'post', $1::timestamptz - CASE n WHEN 1 THEN interval '50 minutes'
			ELSE interval '1 minute' END FROM links, generate_series(1, 30 - id) AS n`, first)
	require.NoError(t, err)
	count := func(at time.Time) {
		for more := true; more; {
			done, err := Count(t.Context(), pool, at)
			require.NoError(t, err)
			more = done.More
		}
	}
	limits := usualLimits()
	limits.crossings = 5
	for _, sort := range []Sort{Sharers, Speed} {
		count(first)
		q := Query{At: first, Window: time.Hour, Sort: sort, Limit: 8}
		p, err := trending(t.Context(), pool, q, limits)
		require.NoError(t, err)
		require.Equal(t, []int{29, 22}, []int{p.Links[0].Sharers, p.Links[7].Sharers})
		count(later)
		q.At, q.After = later.Add(time.Second), p.Next
		p, err = trending(t.Context(), pool, q, usualLimits())
		require.NoError(t, err)
		require.Equal(t, first, p.At.UTC(), "few have left the window")
		require.Equal(t, []int64{9, 21}, []int64{p.Links[0].ID, int64(p.Links[0].Sharers)})
		p, err = trending(t.Context(), pool, q, limits)
		require.NoError(t, err)
		require.False(t, p.Recounted)
		require.Equal(t, later, p.At.UTC())
		require.Equal(t, 8, p.Before)
		next := map[Sort]int64{Sharers: 7, Speed: 8}[sort] // it was on the first page, but fell behind the place where that page ended
		require.Equal(t, []int64{next, 29 - next}, []int64{p.Links[0].ID, int64(p.Links[0].Sharers)})

		q.At, q.After = first, "" // the counts are 50 minutes ahead
		p, err = trending(t.Context(), pool, q, limits)
		require.NoError(t, err)
		require.Equal(t, later, p.At.UTC())
		q.At = first.Add(-20 * time.Minute)
		p, err = trending(t.Context(), pool, q, limits)
		require.NoError(t, err)
		require.Equal(t, q.At, p.At.UTC(), "too far: counted from the shares")
		require.True(t, p.Recounted)
	}
}
