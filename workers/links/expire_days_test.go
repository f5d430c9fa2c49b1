package links

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

// finishJobs stores the jobs of a day: one per hundred posts, all completed a
// second after they were created.
func finishJobs(b *testing.B, pool *pgxpool.Pool, day time.Time, posts int) {
	b.Helper()
	_, err := pool.Exec(b.Context(), `
INSERT INTO river_job (args, kind, max_attempts, queue, state, created_at, scheduled_at, attempted_at, finalized_at)
SELECT jsonb_build_object('posts', array_fill('did:plc:ewvi7nxzyoun6zhxrhs64oiz/3mptbyqhi7s2f'::text, ARRAY[100])),
    'process_posts', 25, 'process', 'completed', at, at, at, at + interval '1 second'
FROM (SELECT $1::timestamptz + n * interval '1 day' * 100 / $2::int AS at FROM generate_series(1, $2::int / 100) AS n) AS n`, day, posts)
	require.NoError(b, err)
}

// cleanJobs deletes the jobs that finished at least a day ago, as River's cleaner does. A client's
// cleaner would use today's clock.
func cleanJobs(b *testing.B, pool *pgxpool.Pool, now time.Time) {
	b.Helper()
	_, err := pool.Exec(b.Context(), `DELETE FROM river_job WHERE state = 'completed' AND finalized_at <= $1`, now.Add(-day))
	require.NoError(b, err)
}

// tableSizes returns the sizes of the tables in bytes, with their indexes. It sums up the
// partitions of a table.
func tableSizes(b *testing.B, pool *pgxpool.Pool) map[string]float64 {
	b.Helper()
	rows, err := pool.Query(b.Context(), `
SELECT coalesce(i.inhparent::regclass::text, c.relname) AS name, sum(pg_total_relation_size(c.oid))::float8 AS bytes
FROM pg_class AS c
LEFT JOIN pg_inherits AS i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace
GROUP BY 1`)
	require.NoError(b, err)
	sizes := map[string]float64{}
	var name string
	var bytes float64
	_, err = pgx.ForEachRow(rows, []any{&name, &bytes}, func() error { sizes[name] = bytes; return nil })
	require.NoError(b, err)
	return sizes
}

// expireDay counts and expires a day as the processes with workers do.
func expireDay(b *testing.B, pool *pgxpool.Pool, w expiring, subjects *CheckSubjects, now time.Time) (counted, expired time.Duration) {
	b.Helper()
	began := time.Now()
	count := func() {
		for more := true; more; {
			done, err := ranking.Count(b.Context(), pool, now)
			require.NoError(b, err)
			more = done.More
		}
	}
	count()
	counted, began = time.Since(began), time.Now()
	b.StartTimer()
	require.NoError(b, w.Run(b.Context(), now))
	b.StopTimer()
	expired = time.Since(began)
	subjects.now = func() time.Time { return now }
	r := &subjectCheck{subjects, &rivertype.JobRow{}, time.Now().Add(time.Minute), 0}
	for _, step := range []func(context.Context) (bool, error){r.expireWaiting, r.expireIdle, r.changed} {
		done, err := step(b.Context())
		require.NoError(b, err)
		require.True(b, done)
	}
	count()
	return counted, expired
}

var expirePosts = flag.Int("expire-posts", 0, "the posts in BenchmarkExpireTenDays; by default 200000, with -short 20000")

// BenchmarkExpireTenDays simulates ten days with -expire-posts posts in all (200,000), and a
// quarter as many links. From the eighth day on no table may grow, because the retentions of posts
// and shares have passed once by then. Rows that are kept for a day longer may not grow from the
// ninth day on. One link in a hundred is kept.
func BenchmarkExpireTenDays(b *testing.B) {
	const settled, days, most, small = 8, 10, 1.1, 1 << 20
	posts := cmp.Or(*expirePosts, 200_000) / days
	if testing.Short() {
		posts = cmp.Or(*expirePosts, 20_000) / days
	}
	for b.Loop() {
		b.StopTimer()
		pool := schematest.New(b)
		w := expirer(b, pool, Retention{}, workers.Retention{})
		subjects := &CheckSubjects{
			pool: pool, log: slog.New(slog.DiscardHandler), links: worker(pool), patience: time.Minute, waitAtMost: waitingRows,
		}
		first := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
		sizes := map[int]map[string]float64{}
		for d := range days {
			began := time.Now()
			fillDay(b, pool, first.AddDate(0, 0, d), posts, posts/4)
			finishJobs(b, pool, first.AddDate(0, 0, d), posts)
			filled := time.Since(began)
			counted, expired := expireDay(b, pool, w, subjects, first.AddDate(0, 0, d+1))
			cleanJobs(b, pool, first.AddDate(0, 0, d+1))
			_, err := pool.Exec(b.Context(), `VACUUM ANALYZE`) // a day of autovacuum
			require.NoError(b, err)
			sizes[d+1] = tableSizes(b, pool)
			b.Logf("day %2d: filled in %.1f s, counted in %.1f s, expired in %.1f s, of %.1f s; MB: %s", d+1, filled.Seconds(),
				counted.Seconds(), expired.Seconds(), time.Since(began).Seconds(), megabytes(sizes[d+1]))
		}
		for _, table := range slices.Sorted(maps.Keys(sizes[days])) {
			since := settled
			if slices.Contains([]string{"links", "tombstones", "unshared_links"}, table) {
				since++ // the rows of these tables outlive the shares by a day
			}
			before, now := sizes[since][table], sizes[days][table]
			if now > small {
				b.ReportMetric(now/before, table+"-growth")
				if now > most*before {
					b.Errorf("%s has grown from %.1f to %.1f MB since day %d", table, before/1e6, now/1e6, since)
				}
			}
		}
		b.ReportMetric(0, "ns/op")
		b.StartTimer()
	}
}

// megabytes lists the tables of more than 100 kB.
func megabytes(sizes map[string]float64) string {
	var all []string
	for _, table := range slices.Sorted(maps.Keys(sizes)) {
		if sizes[table] > 100_000 {
			all = append(all, fmt.Sprintf("%s %.1f", table, sizes[table]/1e6))
		}
	}
	return strings.Join(all, ", ")
}
