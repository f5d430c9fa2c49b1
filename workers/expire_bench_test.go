package workers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// fillDay stores a day of posts, links and shares. One link in a hundred is
// shared by six accounts, a third of the others by two. Every twentieth post is
// deleted.
func fillDay(b *testing.B, pool *pgxpool.Pool, day time.Time, posts, links int) {
	b.Helper()
	require.NoError(b, schema.EnsurePostPartitions(b.Context(), pool, day.Add(18*time.Hour), 24*time.Hour))
	require.NoError(b, ranking.EnsureDays(b.Context(), pool, day.Add(18*time.Hour), 7*24*time.Hour))
	for _, sql := range []string{`
INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
SELECT 'app.bsky.feed.post', 'did:plc:' || left(md5(n::text), 24), m.rkey, m.rkey, 'bafyreib2rxk3rw6putwqhwjxsz3vb5cmvdmxdqbyv5kmcqzhz5j2bclvqq',
       m.at + interval '1 minute' * random(), jsonb_build_object('text', repeat(md5(n::text), 4), 'createdAt', m.at)
FROM generate_series(1, $2::int) AS n
JOIN (SELECT i, $1::timestamptz + i * interval '1 minute' AS at, tid_floor($1::timestamptz + i * interval '1 minute') AS rkey
      FROM generate_series(0, 1439) AS i OFFSET 0) AS m ON m.i = n % 1440`, `
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at)
SELECT 'app.bsky.feed.post', 'did:plc:' || n, to_char($1::timestamptz, 'YYYYMMDD'), 'r', $1::timestamptz + interval '1 day' * random()
FROM generate_series(1, $2::int / 20) AS n`} {
		_, err := pool.Exec(b.Context(), sql, day, posts)
		require.NoError(b, err)
	}
	for _, sql := range []string{`
INSERT INTO links (identity, url, site, title, description, first_seen)
SELECT u.url, u.url, 'site.example', repeat('title ', 8), repeat('description ', 12), $1::timestamptz + u.n * interval '1 day' / $2::int
FROM (SELECT n, 'https://' || md5(n::text) || '.example/' || to_char($1::timestamptz, 'YYYY/MM/DD/') || n AS url FROM generate_series(0, $2::int - 1) AS n) AS u`, `
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at)
SELECT 'did:plc:' || left(md5((l.id * 7 + n.nth)::text), 24), 'app.bsky.feed.post', m.rkey, l.id, l.id, 'post', m.at, m.at
FROM links AS l
JOIN (SELECT i, $1::timestamptz + i * interval '1 minute' AS at, tid_floor($1::timestamptz + i * interval '1 minute') AS rkey
      FROM generate_series(0, 1439) AS i OFFSET 0) AS m ON m.i = l.id % 1440,
     generate_series(1, CASE WHEN l.id % 100 = 0 AND $2 > 0 THEN 6 WHEN l.id % 3 = 0 THEN 2 ELSE 1 END) AS n (nth)
WHERE l.first_seen >= $1 AND l.first_seen < $1::timestamptz + interval '1 day'`} {
		_, err := pool.Exec(b.Context(), sql, day, links)
		require.NoError(b, err)
	}
}

// writers commit like the consumer and like a worker of its jobs until the
// context ends. It returns how long each commit took.
func writers(ctx context.Context, b *testing.B, pool *pgxpool.Pool, name string, now time.Time) (consumer, worker []time.Duration) {
	lease, ok, err := schema.TakeLease(b.Context(), pool, name, "wire", "me", time.Hour)
	require.NoError(b, err)
	require.True(b, ok)
	rkey := ""
	require.NoError(b, pool.QueryRow(b.Context(), `SELECT tid_floor($1)`, now).Scan(&rkey))
	timed := func(took *[]time.Duration, write func(tx pgx.Tx, n int) error) func() error {
		return func() error {
			for n := 0; ctx.Err() == nil; n++ {
				at := time.Now()
				if err := pgx.BeginFunc(b.Context(), pool, func(tx pgx.Tx) error { return write(tx, n) }); err != nil {
					return err
				}
				*took = append(*took, time.Since(at))
				time.Sleep(5 * time.Millisecond)
			}
			return nil
		}
	}
	var g errgroup.Group
	g.Go(timed(&consumer, func(tx pgx.Tx, n int) error {
		batch := schema.Batch{Deletions: []schema.Deletion{{Key: postKey(fmt.Sprint("did:", name, n-1), rkey), Rev: "2", At: now}}}
		for i := range 100 {
			batch.Writes = append(batch.Writes, schema.Write{Key: postKey(fmt.Sprint("did:", name, n), rkey+fmt.Sprint(i)), Rev: "1", CreatedAt: now, Record: []byte(`{"text":"x"}`)})
		}
		_, err := batch.Apply(b.Context(), tx, lease, false)
		return err
	}))
	g.Go(timed(&worker, func(tx pgx.Tx, n int) error {
		var keys []schema.Key
		var shares []ranking.Share
		for i := range 20 {
			key := postKey(fmt.Sprintf("did:%s%06d", name, n), rkey+fmt.Sprintf("%02d", i))
			keys = append(keys, key)
			shares = append(shares, ranking.Share{Key: key, Identity: fmt.Sprintf("https://new.example/%d", (n*20+i)%5000), URL: fmt.Sprintf("https://new.example/%d", (n*20+i)%5000), How: "post", SharedAt: now})
		}
		return ranking.ReplaceShares(b.Context(), tx, keys, shares, now)
	}))
	require.NoError(b, g.Wait())
	return consumer, worker
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkExpireDay expires the oldest of four days: half a million of two
// million posts, 167,000 of 670,000 shares and, when their grace is over, 124,000 of
// 500,000 links, while others commit. It compares this with one plain DELETE of as many
// shares and links without concurrent commits.
func BenchmarkExpireDay(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		pool := schematest.New(b)
		w := expirer(b, pool, Retention{Window: 3 * day, Shares: 3 * day, Grace: time.Nanosecond})
		first := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
		for d := range 4 {
			fillDay(b, pool, first.AddDate(0, 0, d), 500_000, 125_000)
		}
		_, err := pool.Exec(b.Context(), `VACUUM ANALYZE`)
		require.NoError(b, err)
		now := first.AddDate(0, 0, 4)
		require.NoError(b, w.Run(b.Context(), now.Add(-day)))
		_, err = pool.Exec(b.Context(), `VACUUM ANALYZE`)
		require.NoError(b, err)

		alone, cancel := context.WithTimeout(b.Context(), 2*time.Second)
		consumer, worker := writers(alone, b, pool, "alone", now)
		cancel()
		b.ReportMetric(milliseconds(slices.Max(consumer)), "consumer-alone-max-ms")
		b.ReportMetric(milliseconds(slices.Max(worker)), "worker-alone-max-ms")

		ctx, done := context.WithCancel(b.Context())
		var g errgroup.Group
		var took, posts time.Duration
		g.Go(func() error {
			defer done()
			at := time.Now()
			r := &expiry{Expire: w, log: w.log, ctx: b.Context(), now: now, until: at.Add(w.budget)}
			if err := r.partitions(now.Add(-3 * day)); err != nil {
				return err
			}
			posts = time.Since(at)
			err := w.Run(b.Context(), now)
			if err == nil {
				err = w.Run(b.Context(), now.Add(time.Second)) // the links
			}
			took = time.Since(at)
			return err
		})
		b.StartTimer()
		consumer, worker = writers(ctx, b, pool, "beside", now)
		require.NoError(b, g.Wait())
		b.StopTimer()
		b.ReportMetric(posts.Seconds(), "posts-s")
		b.ReportMetric(took.Seconds(), "everything-s")
		b.ReportMetric(milliseconds(slices.Max(consumer)), "consumer-max-ms")
		b.ReportMetric(milliseconds(slices.Max(worker)), "worker-max-ms")
		at := time.Now()
		require.NoError(b, w.Run(b.Context(), now))
		b.ReportMetric(milliseconds(time.Since(at)), "nothing-due-ms")
		at = time.Now()
		for _, sql := range []string{`DELETE FROM shares WHERE link_id IN (SELECT id FROM links WHERE first_seen >= $1 AND first_seen < $2)`, `DELETE FROM links WHERE first_seen >= $1 AND first_seen < $2`} {
			_, err = pool.Exec(b.Context(), sql, first.AddDate(0, 0, 1), first.AddDate(0, 0, 2))
			require.NoError(b, err)
		}
		b.ReportMetric(time.Since(at).Seconds()/took.Seconds(), "of-DELETE")
		b.ReportMetric(0, "ns/op")
		b.StartTimer()
	}
}

// finishJobs stores the jobs of a day: one per hundred posts, all completed a
// second after they were created.
func finishJobs(b *testing.B, pool *pgxpool.Pool, day time.Time, posts int) {
	b.Helper()
	_, err := pool.Exec(b.Context(), `
INSERT INTO river_job (args, kind, max_attempts, queue, state, created_at, scheduled_at, attempted_at, finalized_at)
SELECT jsonb_build_object('posts', array_fill('did:plc:ewvi7nxzyoun6zhxrhs64oiz/3mptbyqhi7s2f'::text, ARRAY[100])), 'process_posts', 25, 'process', 'completed', at, at, at, at + interval '1 second'
FROM (SELECT $1::timestamptz + n * interval '1 day' * 100 / $2::int AS at FROM generate_series(1, $2::int / 100) AS n) AS n`, day, posts)
	require.NoError(b, err)
}

// cleanJobs lets River delete the finished jobs, as every process with workers does.
func cleanJobs(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	client, err := New(Config{Pool: pool, Projections: registered(b, pool), ID: "cleaner", Logger: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	require.NoError(b, client.Start(ctx))
	require.Eventually(b, func() bool {
		var left int
		err := pool.QueryRow(ctx, `SELECT count(*) FROM river_job WHERE kind = 'process_posts'`).Scan(&left)
		return err == nil && left == 0
	}, 2*time.Minute, 50*time.Millisecond)
	stop()
	<-client.Stopped()
}

// tableSizes returns sizes in bytes with indexes; those of links and shares are
// per row, because some rows are kept for ever.
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
	for _, table := range []string{"links", "shares"} {
		var rows float64
		require.NoError(b, pool.QueryRow(b.Context(), `SELECT count(*) FROM `+table).Scan(&rows))
		sizes[table+"-rows"] = rows
		sizes[table+"-row"] = sizes[table] / rows
	}
	return sizes
}

// BenchmarkExpireTenDays simulates ten days with two million posts and half a
// million links in all. It prints the size of each table after the last day
// relative to the eighth: by then the retentions of posts and shares have passed
// once. Links grow by the kept ones, a hundredth of each day's links.
func BenchmarkExpireTenDays(b *testing.B) {
	const posts, links, settled, days = 200_000, 50_000, 8, 10
	for b.Loop() {
		b.StopTimer()
		pool := schematest.New(b)
		w := expirer(b, pool, Retention{})
		first := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
		var before, now map[string]float64
		for d := range days {
			fillDay(b, pool, first.AddDate(0, 0, d), posts, links)
			finishJobs(b, pool, first.AddDate(0, 0, d), posts)
			b.StartTimer()
			at := time.Now()
			require.NoError(b, w.Run(b.Context(), first.AddDate(0, 0, d+1)))
			took := time.Since(at)
			b.StopTimer()
			cleanJobs(b, pool)
			_, err := pool.Exec(b.Context(), `VACUUM ANALYZE`) // a day of autovacuum
			require.NoError(b, err)
			now = tableSizes(b, pool)
			b.Logf("day %2d: expired in %6.2f s; posts %4.0f MB, links %4.0f MB, shares %4.0f MB, tombstones %4.0f MB, river_job %4.0f MB", d+1, took.Seconds(),
				now["posts"]/1e6, now["links"]/1e6, now["shares"]/1e6, now["tombstones"]/1e6, now["river_job"]/1e6)
			if d+1 == settled {
				before = now
			}
		}
		for _, table := range []string{"posts", "links", "links-rows", "links-row", "shares", "shares-rows", "shares-row", "tombstones", "river_job"} {
			b.ReportMetric(now[table]/before[table], table+"-growth")
		}
		b.ReportMetric(0, "ns/op")
		b.StartTimer()
	}
}
