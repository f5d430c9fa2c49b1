package workers

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// fillDay stores a day of posts, links and shares: of a hundred links one is
// shared by six accounts, a third of the others by two; every twentieth post
// was deleted.
func fillDay(b *testing.B, pool *pgxpool.Pool, day time.Time, posts, links int) {
	b.Helper()
	require.NoError(b, schema.EnsurePostPartitions(b.Context(), pool, day))
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
INSERT INTO links (url, site, title, description, first_seen)
SELECT 'https://' || md5(n::text) || '.example/' || to_char($1::timestamptz, 'YYYY/MM/DD/') || n, 'site.example', repeat('title ', 8), repeat('description ', 12),
       $1::timestamptz + n * interval '1 day' / $2::int
FROM generate_series(0, $2::int - 1) AS n`, `
INSERT INTO shares (did, collection, rkey, link_id, how, shared_at)
SELECT 'did:plc:' || left(md5((l.id * 7 + i)::text), 24), 'app.bsky.feed.post', '3mptbyqhi7s2f', l.id, 'post', l.first_seen + least(i * interval '5 minutes', $1::timestamptz + interval '1 day' - l.first_seen)
FROM links AS l, generate_series(1, CASE WHEN l.id % 100 = 0 AND $2 > 0 THEN 6 WHEN l.id % 3 = 0 THEN 2 ELSE 1 END) AS i
WHERE l.first_seen >= $1 AND l.first_seen < $1::timestamptz + interval '1 day'`} {
		_, err := pool.Exec(b.Context(), sql, day, links)
		require.NoError(b, err)
	}
}

// writers commit as the consumer does and as a worker of its jobs does, until
// the context ends, and answer how long each commit took.
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
		var shares []schema.Share
		for i := range 20 {
			key := postKey(fmt.Sprintf("did:%s%06d", name, n), fmt.Sprintf("%02d", i))
			keys = append(keys, key)
			shares = append(shares, schema.Share{Key: key, URL: fmt.Sprintf("https://new.example/%d", (n*20+i)%5000), How: "post", SharedAt: now})
		}
		return schema.ReplaceShares(b.Context(), tx, keys, shares, now)
	}))
	require.NoError(b, g.Wait())
	return consumer, worker
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkExpireDay expires the oldest of four days: half a million of two
// million posts and 125,000 of 500,000 links, while others commit.
func BenchmarkExpireDay(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		pool := schematest.New(b)
		w := expirer(b, pool, Retention{Window: 3 * day})
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
			r := &expiry{Expire: w, ctx: b.Context(), now: now, until: at.Add(w.budget)}
			if err := r.postDays(now.Add(-3 * day)); err != nil {
				return err
			}
			posts = time.Since(at)
			err := w.Run(b.Context(), now)
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
		b.StartTimer()
	}
}

// BenchmarkExpireTenDays lets ten days pass: what is stored after each expiry
// stays the same but for the links that are kept.
func BenchmarkExpireTenDays(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		pool := schematest.New(b)
		w := expirer(b, pool, Retention{Tombstones: 3 * day})
		first := time.Date(2026, 7, 1, 0, 0, 0, 0, time.UTC)
		for d := range 10 {
			fillDay(b, pool, first.AddDate(0, 0, d), 200_000, 50_000)
			b.StartTimer()
			at := time.Now()
			require.NoError(b, w.Run(b.Context(), first.AddDate(0, 0, d+1)))
			took := time.Since(at)
			b.StopTimer()
			_, err := pool.Exec(b.Context(), `VACUUM ANALYZE`) // a day of autovacuum
			require.NoError(b, err)
			var text string
			require.NoError(b, pool.QueryRow(b.Context(), `
				SELECT format('posts %s MB, shares %s MB (%s rows; heap %s, key %s, window %s, link %s), links %s MB (%s rows, %s kept), tombstones %s MB',
				       (SELECT sum(pg_total_relation_size(inhrelid)) FROM pg_inherits WHERE inhparent = 'posts'::regclass)::bigint >> 20,
				       pg_total_relation_size('shares') >> 20, (SELECT count(*) FROM shares), pg_relation_size('shares') >> 20,
				       pg_relation_size('shares_pkey') >> 20, pg_relation_size('shares_window') >> 20, pg_relation_size('shares_link') >> 20,
				       pg_total_relation_size('links') >> 20, (SELECT count(*) FROM links),
				       (SELECT count(*) FROM links WHERE check_at = 'infinity'), pg_total_relation_size('tombstones') >> 20)`).Scan(&text))
			b.Logf("day %2d: expired in %6.2f s; %s", d+1, took.Seconds(), text)
		}
		b.StartTimer()
	}
}
