package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// sizes are the numbers of stored posts that -sizes lists, the smallest first.
func sizes(b *testing.B) []int {
	b.Helper()
	usual := "100000,1000000"
	if testing.Short() {
		usual = "10000"
	}
	var all []int
	for field := range strings.SplitSeq(cmp.Or(*benchSizes, usual), ",") {
		n, err := strconv.Atoi(field)
		require.NoError(b, err, "-sizes: expected such as 100000,1000000,10000000")
		all = append(all, n)
	}
	slices.Sort(all)
	return all
}

// turns is how often each case of a comparison runs.
func turns() int {
	if testing.Short() {
		return cmp.Or(*benchTurns, 1)
	}
	return cmp.Or(*benchTurns, 10)
}

// preload copies this many posts of the last hours into a database, and a share
// for every third one. A few links have many shares; most have one or two.
func preload(b *testing.B, pool *pgxpool.Pool, posts int) {
	b.Helper()
	const span = 6 * time.Hour
	begin := time.Now().Add(-span)
	at := func(i int) time.Time { return begin.Add(time.Duration(float64(span) * float64(i) / float64(posts))) }
	did := func(i int) string { return fmt.Sprintf("did:plc:%024d", i%50_000) }
	rkey := func(i int) string { return syntax.NewTID(at(i).UnixMicro(), uint(i%1000)).String() }
	record := json.RawMessage(`{"$type":"app.bsky.feed.post","text":"` + strings.Repeat("a post like many ", 12) + `"}`)
	copied := func(table string, columns []string, rows int, row func(i int) []any) {
		n, err := pool.CopyFrom(b.Context(), pgx.Identifier{table}, columns,
			pgx.CopyFromSlice(rows, func(i int) ([]any, error) { return row(i), nil }))
		require.NoError(b, err)
		require.EqualValues(b, rows, n)
	}
	copied("records", []string{"collection", "did", "rkey", "rev", "cid", "created_at", "record"}, posts, func(i int) []any {
		return []any{
			schema.PostCollection, did(i), rkey(i), rkey(i), "bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa", at(i), record,
		}
	})
	links := 1000 + posts/6
	random := rand.New(rand.NewPCG(1, 1))
	shared := func() int64 { return int64(float64(links) * math.Pow(random.Float64(), 3)) }
	_, err := pool.Exec(b.Context(), `
		INSERT INTO links (identity, url, site, title, first_seen)
		SELECT 'preloaded.example/' || i, 'https://preloaded.example/' || i, 'preloaded.example', 'An article like many others', now()
		FROM generate_series(1, $1::int) AS i`, links)
	require.NoError(b, err)
	var first int64
	require.NoError(b, pool.QueryRow(b.Context(), `SELECT min(id) FROM links`).Scan(&first))
	copied("shares", []string{"collection", "did", "rkey", "link_id", "named_id", "how", "shared_at"}, posts/3, func(i int) []any {
		link := first + shared()
		return []any{schema.PostCollection, did(3 * i), rkey(3 * i), link, link, "post", at(3 * i)}
	})
	_, err = pool.Exec(b.Context(), `VACUUM ANALYZE`) // as autovacuum would have done
	require.NoError(b, err)
}

// BenchmarkSize measures the same work in databases of several sizes, as a
// multiple of the time in the smallest one.
func BenchmarkSize(b *testing.B) {
	const events = 20_000
	server := benchServer(b)
	file, _ := benchRecording(b, simnet.MixPosts, events, newPost)
	var least map[string]time.Duration
	for _, size := range sizes(b) {
		b.Run(fmt.Sprintf("posts=%d", size), func(b *testing.B) {
			for b.Loop() {
				url, pool := benchDatabase(b, server)
				preload(b, pool, size)
				cost := map[string]time.Duration{}
				cost["consume"], _ = timed(b, url, "ingest", "--work=false", file)
				cost["process"], _ = timed(b, url, "ingest", os.DevNull)
				cost["trending-1h"], cost["trending-24h"] = rankingTime(b, pool, time.Hour), rankingTime(b, pool, 24*time.Hour)
				if least == nil {
					least = cost
				}
				for what, took := range cost {
					b.ReportMetric(float64(took.Milliseconds()), what+"-ms")
					b.ReportMetric(float64(took)/float64(least[what]), what+"-x")
				}
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// rankingTime is the median time of seven rankings.
func rankingTime(b *testing.B, pool *pgxpool.Pool, window time.Duration) time.Duration {
	b.Helper()
	var all []time.Duration
	for range 7 {
		began := time.Now()
		page, err := ranking.Trending(b.Context(), pool, ranking.Query{Window: window, Limit: 50})
		require.NoError(b, err)
		require.Len(b, page.Links, 50)
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkWorkers has one to four processes empty the same queue, and reports the
// speed-up over one.
func BenchmarkWorkers(b *testing.B) {
	const events = 50_000
	server := benchServer(b)
	file, _ := benchRecording(b, simnet.MixPosts, events, newPost)
	var one time.Duration
	for processes := 1; processes <= 4; processes++ {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			for b.Loop() {
				url, pool := benchDatabase(b, server)
				timed(b, url, "ingest", "--work=false", file)
				began := time.Now()
				var fleet []*process
				for range processes {
					fleet = append(fleet, start(b, []string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn", "WEIR_RETENTION=0"}, "work"))
				}
				eventually.True(b, func() bool {
					left, err := tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state <> 'completed'`)
					return err == nil && left == 0
				}, 20*time.Millisecond)
				took := time.Since(began)
				for _, p := range fleet {
					p.signal(syscall.SIGTERM)
					require.Zero(b, p.wait(b, time.Minute))
				}
				one = cmp.Or(one, took)
				b.ReportMetric(events/took.Seconds(), "posts/s")
				b.ReportMetric(float64(one)/float64(took), "x")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// BenchmarkIdle measures the cost of an idle `weir serve`.
func BenchmarkIdle(b *testing.B) {
	server := benchServer(b)
	for b.Loop() {
		one := steady(b, server, 0)
		b.ReportMetric(one.cpu, "CPU-s/min")
		b.ReportMetric(one.postgres, "Postgres-CPU-s/min")
		b.ReportMetric(one.transactions, "transactions/min")
		b.ReportMetric(one.wal/1024, "WAL-KB/min")
		b.ReportMetric(one.memory, "MB")
		b.ReportMetric(0, "ns/op")
	}
}

// steadyCost is what `weir serve` and its Postgres take a minute, and the memory of the former in MB.
type steadyCost struct{ cpu, postgres, transactions, wal, memory float64 }

// steady measures `weir serve` for a minute at a rate of events a second.
func steady(b *testing.B, server *devpg.Server, rate float64) steadyCost {
	b.Helper()
	url, pool := benchDatabase(b, server)
	n, err := simnet.New(simnet.Config{Seed: 6, Mix: simnet.MixNetwork, History: 100})
	require.NoError(b, err)
	require.NoError(b, n.Start("127.0.0.1:0"))
	defer n.Stop()
	defaults := []string{"WEIR_LEASE_TTL=", "WEIR_JOB_TIMEOUT=", "WEIR_RESCUE_AFTER=", "WEIR_QUIET_AFTER="} // not those of tests
	serve := start(b, append(alone(n, url), defaults...), "serve")
	at := serve.opsURL(b)
	becomes(b, at, "quiet")
	transactions := func() (n float64) {
		require.NoError(b, pool.QueryRow(b.Context(), `
			SELECT (xact_commit + xact_rollback)::float8 FROM pg_stat_database WHERE datname = current_database()`).Scan(&n))
		return n
	}
	var backend int
	require.NoError(b, pool.QueryRow(b.Context(), `SELECT pg_backend_pid()`).Scan(&backend))
	postgres := against{b: b, postmaster: readProcess(b, backend).parent}
	live := func(span time.Duration) {
		ctx, cancel := context.WithTimeout(b.Context(), span)
		defer cancel()
		n.Live(ctx, rate)
	}
	live(11 * time.Second) // connections report their transactions after ten idle seconds: those of the wait above, too
	before, transacted, worked := readSoak(b, pool, at), transactions(), postgres.postgres()
	live(time.Minute) // so that each periodic job of a minute runs once
	after := readSoak(b, pool, at)
	perMinute := time.Minute.Seconds() / after.at.Sub(before.at).Seconds()
	one := steadyCost{after.since(before, "process_cpu_seconds_total") * perMinute, (postgres.postgres() - worked).Seconds() * perMinute,
		(transactions() - transacted) * perMinute,
		(after.wal - before.wal) * perMinute, after.value("process_resident_memory_bytes") / (1 << 20)}
	serve.signal(syscall.SIGTERM)
	require.Zero(b, serve.wait(b, time.Minute))
	pool.Close()
	return one
}
