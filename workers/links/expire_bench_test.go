package links

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

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// fillDay stores a day of posts, links and shares. One link in a hundred is
// shared by six accounts, a third of the others by two. The shares of every fifth link are
// reposted, and those of every fiftieth copied to Nostr. Every twentieth post is deleted,
// and every fiftieth repost waits for its subject.
func fillDay(b *testing.B, pool *pgxpool.Pool, day time.Time, posts, links int) {
	b.Helper()
	require.NoError(b, schema.EnsurePostPartitions(b.Context(), pool, day.Add(18*time.Hour), 24*time.Hour))
	require.NoError(b, ranking.EnsureDays(b.Context(), pool, day.Add(18*time.Hour), 7*24*time.Hour))
	const minutes = `(SELECT i, $1::timestamptz + i * interval '1 minute' AS at,
		tid_floor($1::timestamptz + i * interval '1 minute') AS rkey FROM generate_series(0, 1439) AS i OFFSET 0) AS m`
	const ofDay = `l.first_seen >= $1 AND l.first_seen < $1::timestamptz + interval '1 day'`
	for _, fill := range []struct {
		sql  string
		rows int
	}{{`
INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
SELECT 'app.bsky.feed.post', 'did:plc:' || left(md5(n::text), 24), m.rkey, m.rkey,
    'bafyreib2rxk3rw6putwqhwjxsz3vb5cmvdmxdqbyv5kmcqzhz5j2bclvqq',
       m.at + interval '1 minute' * random(), jsonb_build_object('text', repeat(md5(n::text), 4), 'createdAt', m.at)
FROM generate_series(1, $2::int) AS n
JOIN ` + minutes + ` ON m.i = n % 1440`, posts}, {`
INSERT INTO tombstones (collection, did, rkey, rev, deleted_at)
SELECT 'app.bsky.feed.post', 'did:plc:' || n, to_char($1::timestamptz, 'YYYYMMDD'), 'r', $1::timestamptz + interval '1 day' * random()
FROM generate_series(1, $2::int / 20) AS n`, posts}, {`
INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey, since)
SELECT 'links', 'app.bsky.feed.repost', 'did:plc:' || n, to_char($1::timestamptz, 'YYYYMMDD'), 'app.bsky.feed.post',
    'did:plc:' || n, 's', $1::timestamptz + interval '1 day' * random()
FROM generate_series(1, $2::int / 50) AS n`, posts}, {`
INSERT INTO links (identity, url, site, first_seen)
SELECT u.url, u.url, 'site.example', $1::timestamptz + u.n * interval '1 day' / $2::int
FROM (SELECT n, 'https://' || md5(n::text) || '.example/' || to_char($1::timestamptz, 'YYYY/MM/DD/') || n AS url
    FROM generate_series(0, $2::int - 1) AS n) AS u`, links}, {`
INSERT INTO claims (link_id, hash, url, site, title, description, words)
SELECT l.id, decode(md5(l.id::text), 'hex'), l.url, l.site, repeat('title ', 8), repeat('description ', 12),
    array_to_tsvector(ARRAY['title', 't' || l.id % ($2 / 20), 'u' || l.id % 7])
FROM links AS l WHERE ` + ofDay, links}, {`
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at, claim_id, words)
SELECT 'did:plc:' || left(md5((l.id * 7 + n.nth)::text), 24), 'app.bsky.feed.post', m.rkey, l.id, l.id, 'post', m.at, m.at, c.id,
    array_to_tsvector(ARRAY['p' || l.id % ($2 / 20), 'q' || n.nth])
FROM links AS l
JOIN claims AS c ON c.link_id = l.id
JOIN ` + minutes + ` ON m.i = l.id % 1440,
     generate_series(1, CASE WHEN l.id % 100 = 0 THEN 6 WHEN l.id % 3 = 0 THEN 2 ELSE 1 END) AS n (nth)
WHERE ` + ofDay, links}, {`
INSERT INTO subjects (did, collection, rkey, links, checked_at)
SELECT s.did, s.collection, s.rkey, ARRAY[s.link_id], $1
FROM links AS l JOIN shares AS s ON s.link_id = l.id
WHERE ` + ofDay + ` AND l.id % 5 = 0 AND $2 > 0`, links}, {`
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at, subject_did, subject_collection, subject_rkey)
SELECT 'did:plc:' || left(md5(s.did || 'r'), 24), 'app.bsky.feed.repost', s.rkey, s.link_id, s.link_id, 'repost', s.shared_at,
    s.stored_at, s.did, s.collection, s.rkey
FROM links AS l JOIN shares AS s ON s.link_id = l.id
WHERE ` + ofDay + ` AND l.id % 5 = 0 AND $2 > 0`, links}, {`
INSERT INTO copies (did, collection, rkey, of_did, of_collection, of_rkey, checked_at)
SELECT 'did:nostr:' || md5(s.did), 'nostr.1', md5(s.did || s.rkey), s.did, s.collection, s.rkey, $1
FROM links AS l JOIN shares AS s ON s.link_id = l.id
WHERE ` + ofDay + ` AND l.id % 50 = 0 AND s.how = 'post' AND $2 > 0`, links}, {`
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, stored_at, copied)
SELECT 'did:nostr:' || md5(s.did), 'nostr.1', md5(s.did || s.rkey), s.link_id, s.link_id, 'post', s.shared_at, s.stored_at, true
FROM links AS l JOIN shares AS s ON s.link_id = l.id
WHERE ` + ofDay + ` AND l.id % 50 = 0 AND s.how = 'post' AND $2 > 0`, links}} {
		_, err := pool.Exec(b.Context(), fill.sql, day, fill.rows)
		require.NoError(b, err)
		// otherwise the planner expects no links of this day, and reads all shares for each link
		_, err = pool.Exec(b.Context(), `ANALYZE links, claims`)
		require.NoError(b, err)
	}
}

// writers commit batches as the consumer does, and the results of their jobs as a worker does,
// until the context ends. It returns how long each commit took.
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
			batch.Writes = append(batch.Writes, schema.Write{
				Key: postKey(fmt.Sprint("did:", name, n), rkey+fmt.Sprint(i)), Rev: "1", CreatedAt: now,
				Record: []byte(`{"text":"x"}`),
			})
		}
		_, err := batch.Apply(b.Context(), tx, lease)
		return err
	}))
	g.Go(timed(&worker, func(tx pgx.Tx, n int) error {
		var keys []schema.Key
		var shares []ranking.Share
		for i := range 20 {
			key := postKey(fmt.Sprintf("did:%s%06d", name, n), rkey+fmt.Sprintf("%02d", i))
			keys = append(keys, key)
			shares = append(shares, ranking.Share{
				Key: key,
				Link: link.Link{
					Identity: fmt.Sprintf("https://new.example/%d", (n*20+i)%5000),
					URL:      fmt.Sprintf("https://new.example/%d", (n*20+i)%5000),
				},
				How: "post", SharedAt: now,
			})
		}
		return ranking.ReplaceShares(b.Context(), tx, keys, shares, now)
	}))
	require.NoError(b, g.Wait())
	return consumer, worker
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// BenchmarkExpireDay expires the oldest of four days while others commit: half a million of two
// million posts, 220,000 of 880,000 shares and, after their grace, 124,000 of 500,000 links. It
// compares this with a plain DELETE of as many shares and links without concurrent commits.
func BenchmarkExpireDay(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		pool := schematest.New(b)
		w := expirer(b, pool, Retention{Shares: 3 * day, Grace: time.Nanosecond}, workers.Retention{Window: 3 * day})
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
		var took time.Duration
		g.Go(func() error {
			defer done()
			at := time.Now()
			err := w.Run(b.Context(), now)
			if err == nil {
				err = w.Run(b.Context(), now.Add(time.Second)) // expires the links
			}
			took = time.Since(at)
			return err
		})
		b.StartTimer()
		consumer, worker = writers(ctx, b, pool, "beside", now)
		require.NoError(b, g.Wait())
		b.StopTimer()
		b.ReportMetric(took.Seconds(), "everything-s")
		b.ReportMetric(milliseconds(slices.Max(consumer)), "consumer-max-ms")
		b.ReportMetric(milliseconds(slices.Max(worker)), "worker-max-ms")
		at := time.Now()
		require.NoError(b, w.Run(b.Context(), now))
		b.ReportMetric(milliseconds(time.Since(at)), "nothing-due-ms")
		at = time.Now()
		for _, sql := range []string{`DELETE FROM shares
			WHERE link_id IN (SELECT id FROM links WHERE first_seen >= $1 AND first_seen < $2)`, `DELETE FROM links
			WHERE first_seen >= $1 AND first_seen < $2`} {
			_, err = pool.Exec(b.Context(), sql, first.AddDate(0, 0, 1), first.AddDate(0, 0, 2))
			require.NoError(b, err)
		}
		b.ReportMetric(time.Since(at).Seconds()/took.Seconds(), "of-DELETE")
		b.ReportMetric(0, "ns/op")
		b.StartTimer()
	}
}
