package ranking

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// How large the benchmarks' database is. With -short, in which they only have to run, it is small.
var (
	benchDay      = 1_000_000 // shares of the last 24 h, of benchLinks links by benchAccounts accounts
	benchBefore   = 4_000_000 // shares of the six days before
	benchLinks    = 200_000
	benchAccounts = 148_000
	benchMembers  = 1000 // members of the watch
	benchWatches  = 1000 // other watches, with as many members each
	benchArriving = 100  // shares a second that arrive during the measurement
	benchTurns    = 500  // requests of each kind
	benchSearches = 200  // requests of each kind that search for a text
	benchNostr    = 50   // one account in this many is of Nostr

	shrink = sync.OnceFunc(func() {
		if testing.Short() {
			benchDay, benchBefore, benchLinks, benchAccounts, benchWatches = 100_000, 100_000, 20_000, 14_800, 10
			benchTurns, benchSearches = 5, 2
		}
	})
)

// grouped is the ranking as a query that groups all shares of the window for each request, for
// comparison.
const grouped = `
WITH counted AS MATERIALIZED (
    SELECT s.link_id, count(*) AS shares, max(s.shared_at) AS last_shared FROM shares AS s WHERE s.shared_at > $1 AND s.shared_at <= $2
    GROUP BY s.link_id
), least AS MATERIALIZED (
    SELECT n.sharers, n.last_shared
    FROM (SELECT link_id FROM counted ORDER BY shares DESC, last_shared DESC LIMIT 50) AS c ` + groupedCount + `
    WHERE n.sharers > 0 ORDER BY n.sharers DESC, n.last_shared DESC OFFSET 49
)
SELECT c.link_id, n.sharers
FROM counted AS c ` + groupedCount + `
WHERE n.sharers > 0 AND (NOT EXISTS (SELECT FROM least) OR (c.shares, c.last_shared) >= (SELECT sharers, last_shared FROM least))
ORDER BY n.sharers DESC, n.last_shared DESC
LIMIT 50`

const groupedCount = `
CROSS JOIN LATERAL (
    SELECT count(DISTINCT s.did) AS sharers, max(s.shared_at) AS last_shared
    FROM shares AS s
    WHERE s.link_id = c.link_id AND s.shared_at > $1 AND s.shared_at <= $2
      AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = s.did AND a.status <> 'active')
      AND ($3 = '' OR EXISTS (SELECT FROM watch_members AS w JOIN watches AS v ON v.id = w.watch_id WHERE w.did = s.did AND v.target = $3))
) AS n`

// benchPool is a database with a week of shares, counted.
func benchPool(b *testing.B) *pgxpool.Pool {
	b.Helper()
	shrink()
	server, err := devpg.Start(context.Background(), devpg.Options{Fsync: true, Settings: map[string]string{
		"shared_buffers": "2GB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "maintenance_work_mem": "512MB", "work_mem": "32MB"}})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, server.Stop(context.Background())) })
	cfg, err := pgxpool.ParseConfig(server.URL("weir"))
	require.NoError(b, err)
	cfg.AfterConnect = schema.ApplySettings
	pool, err := pgxpool.NewWithConfig(b.Context(), cfg)
	require.NoError(b, err)
	b.Cleanup(pool.Close)
	require.NoError(b, schematest.Migrate(b.Context(), pool))
	benchFill(b, pool)
	return pool
}

// benchDID is the account with the number in a column.
func benchDID(n string) string {
	return fmt.Sprintf(`CASE mod(%[2]s, %[1]d) WHEN 0 THEN 'did:nostr:' ELSE 'did:plc:' END || lpad(%[2]s::text, 24, '0')`, benchNostr, n)
}

func benchFill(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	began := time.Now()
	require.NoError(b, schema.EnsurePostPartitions(b.Context(), pool, began, 24*time.Hour))
	require.NoError(b, EnsureDays(b.Context(), pool, began, 7*24*time.Hour))
	for _, sql := range []string{
		`DROP INDEX shares_window, shares_link, shares_sharer, shares_words, claims_words, links_address`, // faster to create them at the end
		fmt.Sprintf(`INSERT INTO accounts (did, handle) SELECT `+benchDID("n")+`, 'user' || n || '.example' FROM generate_series(0, %d) AS n`,
			benchAccounts-1),
		fmt.Sprintf(`
			INSERT INTO links (identity, url, site, title, first_seen)
			SELECT substr(md5((n %% 5000)::text), 1, 9) || '.example/2026/' || n, 'https://site' || n %% 5000 || '.example/an/article/' || n,
			    'site' || n %% 5000 || '.example', 'An article', now() FROM generate_series(1, %d) AS n`, 7*benchLinks),
		fmt.Sprintf(`INSERT INTO claims (id, link_id, hash, url, site, title, description, image, words) OVERRIDING SYSTEM VALUE
SELECT 2 * l.id + k, l.id, decode(lpad(k::text, 32, '0'), 'hex'), l.url, l.site, repeat('A title ', 5 + k),
    repeat('A description. ', 10), 'bafkreih25gep6oitcncurehgwzfd7ygezmukp7frooflsgqmy65dxtrevm',
       `+benchWords("t", 10)+` || array_to_tsvector(ARRAY['site' || n %% 5000, 'example', 'an', 'article', n::text])
FROM generate_series(1, %d) AS n JOIN links AS l ON l.id = n CROSS JOIN generate_series(0, 1) AS k`, 7*benchLinks),
		// The links of the last day have the highest ids.
		fmt.Sprintf(`INSERT INTO shares (did, collection, rkey, how, shared_at, link_id, named_id, claim_id, words)
SELECT `+benchDID("account")+`, 'app.bsky.feed.post', CASE WHEN n <= %[1]d THEN lpad(n::text, 13, '0') ELSE tid_floor(at) END, how, at,
link, link, CASE how WHEN 'post' THEN 2 * link + (random() ^ 2)::int END,
       CASE WHEN n > %[1]d AND how <> 'repost' THEN `+benchWords("p", 15)+` END
FROM (
SELECT n, (random() * %[3]d)::int AS account,
       CASE WHEN n <= %[1]d THEN (random() ^ 4 * %[2]d)::int + 1 + (6 - n %% 6 - 1) * %[2]d
           ELSE (random() ^ 4 * (%[2]d - 1))::int + 1 + 6 * %[2]d END AS link,
       CASE WHEN n %% 4 = 0 THEN 'repost' WHEN n %% 9 = 0 THEN 'quote' ELSE 'post' END AS how,
       CASE WHEN n <= %[1]d THEN now() - interval '7 days' + interval '6 days' * (n / %[1]d.0)
           ELSE now() - interval '1 day' + interval '1 day' * ((n - %[1]d) / %[4]d.0) END AS at
FROM generate_series(1, %[1]d + %[4]d) AS n) AS s`, benchBefore, benchLinks, benchAccounts-1, benchDay),
		`
			INSERT INTO posts (collection, did, rkey, rev, cid, created_at, record) SELECT collection, did, rkey, '1', '', shared_at, '{}'
			FROM shares WHERE words IS NOT NULL`,
		`CREATE INDEX shares_words ON shares USING gin (words) WITH (gin_pending_list_limit = 1024) WHERE words IS NOT NULL`,
		`CREATE INDEX claims_words ON claims USING gin (words) WITH (gin_pending_list_limit = 1024)`,
		`CREATE INDEX links_address ON links USING gin (identity gin_trgm_ops) WITH (gin_pending_list_limit = 1024)`,
		`CREATE INDEX shares_window ON shares (shared_at, link_id)`,
		`CREATE INDEX shares_link ON shares (link_id, shared_at)`,
		`CREATE INDEX shares_sharer ON shares (link_id, did)`,
		fmt.Sprintf(`WITH w AS (INSERT INTO watches (target, kind)
		VALUES ('reader.example', 'follows'), ('everyone.example', 'follows') RETURNING id, target)
INSERT INTO watch_members (watch_id, did) SELECT w.id, a.did FROM w
JOIN accounts AS a ON w.target = 'everyone.example' OR right(a.did, 6) < '%06d'`, benchMembers),
		fmt.Sprintf(`WITH w AS (INSERT INTO watches (target, kind)
		SELECT 'other' || n || '.example', 'follows' FROM generate_series(1, %[1]d) AS n RETURNING id)
INSERT INTO watch_members (watch_id, did) SELECT w.id, `+benchDID("n")+` FROM w CROSS JOIN generate_series(0,`+
			` %[2]d) AS k CROSS JOIN LATERAL (SELECT mod(w.id * 7919 + k, %[3]d) AS n) AS a`, benchWatches, benchMembers-1, benchAccounts),
		`VACUUM ANALYZE`,
	} {
		conn, err := pool.Acquire(b.Context())
		require.NoError(b, err)
		if strings.HasPrefix(sql, "INSERT INTO") { // without triggers: everything is counted at the end
			_, err = conn.Exec(b.Context(), `SET session_replication_role = replica`)
			require.NoError(b, err)
		}
		_, err = conn.Exec(b.Context(), sql)
		require.NoError(b, err)
		_, err = conn.Exec(b.Context(), `RESET session_replication_role`)
		require.NoError(b, err)
		conn.Release()
	}
	b.Logf("filled in %s", time.Since(began).Round(time.Second))
	began = time.Now()
	done, err := Count(b.Context(), pool, time.Now())
	require.NoError(b, err)
	require.True(b, done.Everything)
	_, err = pool.Exec(b.Context(), `VACUUM ANALYZE`)
	require.NoError(b, err)
	b.Logf("counted everything in %s", time.Since(began).Round(time.Second))
}

// single is a pool of one connection, and the process that serves it.
func single(b *testing.B, pool *pgxpool.Pool) (one *pgxpool.Pool, backend uint32) {
	b.Helper()
	config := pool.Config()
	config.MaxConns = 1
	one, err := pgxpool.NewWithConfig(b.Context(), config)
	require.NoError(b, err)
	require.NoError(b, one.QueryRow(b.Context(), `SELECT pg_backend_pid()`).Scan(&backend))
	return one, backend
}

// arrive inserts n shares in batches, as a worker does. If viral is true, every second share is of
// the same link.
func arrive(b *testing.B, conn *pgx.Conn, r *rand.Rand, n int, viral bool) {
	b.Helper()
	did, rkey, link := make([]string, n), make([]string, n), make([]int64, n)
	for i := range n {
		n := r.IntN(benchAccounts)
		if did[i] = fmt.Sprintf("did:plc:%024d", n); n%benchNostr == 0 {
			did[i] = fmt.Sprintf("did:nostr:%024d", n)
		}
		rkey[i] = fmt.Sprintf("4%012x", r.Uint64()>>16)
		link[i] = int64(math.Pow(r.Float64(), 4)*float64(benchLinks-1)) + 1 + 6*int64(benchLinks)
		if viral && i%2 == 0 {
			link[i] = 6*int64(benchLinks) + 777
		}
	}
	_, err := conn.Exec(b.Context(), `
INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at, claim_id)
SELECT d, 'app.bsky.feed.post', k, l, l, 'post', clock_timestamp(), 2 * l + ascii(k) % 2
FROM unnest($1::text[], $2::text[], $3::bigint[]) AS a (d, k, l)
ON CONFLICT (did, collection, rkey, named_id) DO UPDATE SET how = excluded.how WHERE shares.how <> excluded.how`, did, rkey, link)
	require.NoError(b, err)
}

// BenchmarkRanking fills a database with a week of shares. It measures the cost of keeping the
// counts and the latency of pages.
func BenchmarkRanking(b *testing.B) {
	pool := benchPool(b)
	b.Run("search", func(b *testing.B) { benchSearch(b, pool) })
	b.Run("trending", func(b *testing.B) { benchTrending(b, pool) })
	b.Run("upkeep", func(b *testing.B) { benchUpkeep(b, pool) })
}

// benchUpkeep measures the CPU time per share of keeping the counts. It consists of the writer's
// cost of the triggers and of the index that only counting needs, and of the counter's
// transactions. It is measured with and without a viral link.
func benchUpkeep(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	const batches, size = 60, 100
	for b.Loop() {
		conn, err := pool.Acquire(b.Context())
		require.NoError(b, err)
		pid := conn.Conn().PgConn().PID()
		write := func(viral bool) time.Duration {
			began := schematest.CPU(b, pid)
			for range batches {
				arrive(b, conn.Conn(), r, size, viral)
			}
			return (schematest.CPU(b, pid) - began) / (batches * size)
		}
		report := func(what string, cost time.Duration) {
			b.ReportMetric(float64(cost.Nanoseconds())/1000, what+"-µs/share")
		}
		counting := func(every int, viral bool) (server, took time.Duration) {
			one, backend := single(b, pool)
			defer one.Close()
			for range 5 { // counts the shares of before
				_, err := Count(b.Context(), one, time.Now())
				require.NoError(b, err)
			}
			counted := 0
			for range batches {
				for range every {
					arrive(b, conn.Conn(), r, size, viral)
				}
				at, began := time.Now(), schematest.CPU(b, backend)
				done, err := Count(b.Context(), one, time.Now())
				require.NoError(b, err)
				took += time.Since(at)
				server += schematest.CPU(b, backend) - began
				counted += done.Pending
			}
			return server / time.Duration(counted), took / time.Duration(counted)
		}
		with := write(false)
		report("writer-with", with)
		_, err = conn.Exec(b.Context(), `ALTER TABLE shares DISABLE TRIGGER USER`)
		require.NoError(b, err)
		_, err = conn.Exec(b.Context(), `BEGIN; DROP INDEX shares_sharer`)
		require.NoError(b, err)
		without := write(false)
		report("writer-without", without)
		_, err = conn.Exec(b.Context(), `ROLLBACK; ALTER TABLE shares ENABLE TRIGGER USER`)
		require.NoError(b, err)
		require.NoError(b, CountEverything(b.Context(), pool))
		for _, c := range []struct {
			name  string
			every int
			viral bool
		}{{"counter", 1, false}, {"counter-viral", 1, true}, {"counter-burst", 20, false}} {
			server, took := counting(c.every, c.viral)
			report(c.name+"-server", server)
			report(c.name+"-took", took)
		}
		conn.Release()
		report("leaving-server", leaving(b, pool))
		b.ReportMetric(0, "ns/op")
	}
}

// leaving returns the cost of a share leaving all windows one after the other. The windows advance
// by some minutes in small steps while no shares arrive.
func leaving(b *testing.B, pool *pgxpool.Pool) time.Duration {
	b.Helper()
	const step, steps = 5 * time.Second, 60
	one, backend := single(b, pool)
	defer one.Close()
	now := time.Now()
	_, err := Count(b.Context(), one, now)
	require.NoError(b, err)
	began := schematest.CPU(b, backend)
	for n := range steps {
		_, err := Count(b.Context(), one, now.Add(time.Duration(n+1)*step))
		require.NoError(b, err)
	}
	left := time.Duration(steps*step.Seconds()*float64(benchDay)) / (24 * 3600)
	return (schematest.CPU(b, backend) - began) / left
}

// benchTrending measures pages of 50 links while shares arrive and the counter runs, and the query
// grouped on the same data.
func benchTrending(b *testing.B, pool *pgxpool.Pool) {
	b.Helper()
	stop := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- live(b, pool, stop) }()
	for _, watch := range []string{"", "reader.example"} {
		for _, sort := range []Sort{Sharers, Speed, Newest} {
			for _, w := range Windows() {
				if sort != Sharers && w.Name != "6h" && w.Name != "24h" {
					continue
				}
				name := fmt.Sprintf("watch=%t/sort=%s/window=%s", watch != "", sort, w.Name)
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						benchPage(b, pool, Query{Window: w.Length, Sort: sort, Watch: watch, Limit: 50}, sort == Sharers)
					}
				})
			}
		}
	}
	for _, network := range []Network{Bluesky, Nostr} {
		for _, sort := range []Sort{Sharers, Speed, Newest} {
			for _, w := range []Window{Windows()[2], Windows()[4], Windows()[5]} {
				b.Run(fmt.Sprintf("network=%s/sort=%s/window=%s", network, sort, w.Name), func(b *testing.B) {
					for b.Loop() {
						benchPage(b, pool, Query{Window: w.Length, Sort: sort, Network: network, Limit: 50}, false)
					}
				})
			}
		}
	}
	for _, sort := range []Sort{Sharers, Speed} {
		for _, age := range []time.Duration{10 * time.Minute, 50 * time.Minute} { // the age of the first page
			b.Run(fmt.Sprintf("second-page/sort=%s/window=24h/after=%s", sort, age), func(b *testing.B) {
				q := Query{Window: 24 * time.Hour, Sort: sort, Limit: 50}
				for b.Loop() {
					benchPage(b, pool, benchCursor(b, pool, q, age), false)
				}
			})
		}
	}
	close(stop)
	require.NoError(b, <-ended)
}

// benchCursor returns a query that continues a ranking whose first page is this old.
func benchCursor(b *testing.B, pool *pgxpool.Pool, q Query, age time.Duration) Query {
	q.At = time.Now()
	p, err := Trending(b.Context(), pool, q)
	require.NoError(b, err)
	end, before, last, err := p.Next.read(q, q.At)
	require.NoError(b, err)
	q.After, q.At = newCursor(end.Add(-age), before, *last, q), time.Time{}
	return q
}

// live adds benchArriving shares per second, and counts every second.
func live(b *testing.B, pool *pgxpool.Pool, stop <-chan struct{}) error {
	conn, err := pool.Acquire(b.Context())
	if err != nil {
		return err
	}
	defer conn.Release()
	r := rand.New(rand.NewPCG(3, 4))
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		arrive(b, conn.Conn(), r, benchArriving/20, n%2 == 0)
		if n%20 == 0 {
			if _, err := Count(b.Context(), pool, time.Now()); err != nil {
				return err
			}
		}
	}
}

func benchPage(b *testing.B, pool *pgxpool.Pool, q Query, beside bool) {
	b.Helper()
	times := func(n int, f func()) (p50, p99 float64) {
		all := make([]time.Duration, n)
		for i := range all {
			began := time.Now()
			f()
			all[i] = time.Since(began)
		}
		slices.Sort(all)
		return all[n/2].Seconds() * 1000, all[n*99/100].Seconds() * 1000
	}
	one, backend := single(b, pool)
	defer one.Close()
	turns := benchTurns
	if q.Text != "" {
		turns = benchSearches
	}
	began := schematest.CPU(b, backend)
	p50, p99 := times(turns, func() {
		p, err := Trending(b.Context(), one, q)
		require.NoError(b, err)
		require.True(b, q.Text != "" || len(p.Links) == 50)
		require.False(b, p.Recounted)
	})
	b.ReportMetric((schematest.CPU(b, backend)-began).Seconds()*1000/float64(turns), "cpu-ms") // of the server; depends little on other load
	b.ReportMetric(p50, "p50-ms")
	b.ReportMetric(p99, "p99-ms")
	if beside {
		old, _ := times(3, func() {
			_, err := pool.Exec(b.Context(), grouped, time.Now().Add(-q.Window), time.Now(), q.Watch)
			require.NoError(b, err)
		})
		b.ReportMetric(old, "grouped-ms")
	}
	b.ReportMetric(0, "ns/op")
}
