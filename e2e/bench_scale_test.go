package e2e

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// BenchmarkWorkersWithLatency has one process and then four empty the same queue over a connection
// with 10 ms of latency, and reports the speed-up. Jobs are small and each process runs few of them
// at once, so that the latency is the limit, not the processors.
func BenchmarkWorkersWithLatency(b *testing.B) {
	const events = 10_000
	server := benchServer(b)
	file, _ := benchRecording(b, simnet.MixPosts, events, newPost)
	var one time.Duration
	for _, processes := range []int{1, 4} {
		b.Run(fmt.Sprintf("processes=%d", processes), func(b *testing.B) {
			for b.Loop() {
				database, pool := benchDatabase(b, server)
				require.Zero(b,
					start(b, []string{"DATABASE_URL=" + database, "WEIR_BATCH_EVENTS=50"}, "ingest", "--work=false", file).wait(b, 5*time.Minute))
				at, err := url.Parse(database)
				require.NoError(b, err)
				slow := newProxy(b, "postgres", at.Host)
				slow.renew(`{"name": "slow", "type": "latency", "stream": "downstream", "attributes": {"latency": 10}}`)
				at.Host = slow.Listen
				took := emptied(b, pool, processes, "DATABASE_URL="+at.String(), "WEIR_LOG_LEVEL=warn", "WEIR_RETENTION=0", "WEIR_WORKERS=2")
				if processes == 1 {
					one = took
				}
				b.ReportMetric(events/took.Seconds(), "posts/s")
				b.ReportMetric(float64(one)/float64(took), "x")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}

// emptied has processes empty the queue. It returns how long that would take at the rate at which
// all of them process jobs: the first one already processes jobs while the others start.
func emptied(b *testing.B, pool *pgxpool.Pool, processes int, env ...string) (took time.Duration) {
	b.Helper()
	var fleet []*process
	worked := 0
	for range processes {
		fleet = append(fleet, start(b, env, "work"))
	}
	eventually.True(b, func() bool {
		left, err := tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state <> 'completed'`)
		return err == nil && left == 0
	}, 20*time.Millisecond)
	require.NoError(b, pool.QueryRow(b.Context(), `
WITH jobs AS MATERIALIZED (
    SELECT attempted_by[1] AS process, attempted_at, finalized_at FROM river_job WHERE kind = 'process_posts'
), started AS (
    SELECT max(s.at) AS at, count(*) AS processes FROM (SELECT min(attempted_at) AS at FROM jobs GROUP BY process) AS s
)
SELECT (max(j.finalized_at) - s.at) * count(*)::float8 / count(*) FILTER (WHERE j.finalized_at > s.at), s.processes
FROM jobs AS j, started AS s GROUP BY s.at, s.processes`).Scan(&took, &worked))
	require.Equal(b, processes, worked)
	for _, p := range fleet {
		p.signal(syscall.SIGTERM)
		require.Zero(b, p.wait(b, time.Minute))
	}
	return took
}

// BenchmarkBurst processes many posts at once, and reports how long after the last of them the
// maintained order equals that of the shares. Readers see the exact order earlier: they correct the
// maintained one.
func BenchmarkBurst(b *testing.B) {
	server := benchServer(b)
	file, _ := benchRecording(b, simnet.MixPosts, benchPosts, newPost)
	for b.Loop() {
		database, pool := benchDatabase(b, server)
		timed(b, database, "ingest", "--work=false", file)
		work := start(b, []string{"DATABASE_URL=" + database, "WEIR_LOG_LEVEL=warn", "WEIR_RETENTION=0"}, "work")
		var late float64
		eventually.True(b, func() bool {
			// Reading the dates of all shares takes 50 ms, so it happens only at the end.
			const sql = `
SELECT CASE WHEN EXISTS (SELECT FROM river_job WHERE kind = 'process_posts' AND state <> 'completed')
    OR EXISTS (SELECT FROM pending_counts) THEN 1
       ELSE (SELECT count(*) FROM count_state WHERE counted < (SELECT max(pg_xact_commit_timestamp(xmin)) FROM shares)) END`
			left, err := tryCount(pool, sql)
			return err == nil && left == 0
		}, 20*time.Millisecond)
		require.NoError(b, pool.QueryRow(b.Context(), `
SELECT 1000 * extract(epoch FROM (SELECT pg_xact_commit_timestamp(xmin) FROM count_state) - (SELECT max(pg_xact_commit_timestamp(xmin))
    FROM shares))::float8`).Scan(&late))
		work.signal(syscall.SIGTERM)
		require.Zero(b, work.wait(b, time.Minute))
		b.ReportMetric(late, "ms-to-order")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkViral processes posts in which every second post with a link has the same link. It
// alternates with the same posts with their own links, and reports the ratio of processor time.
func BenchmarkViral(b *testing.B) {
	const turns = 3
	a := newAgainst(b)
	recordings := []string{a.recording, viral(b, a.recording)}
	for b.Loop() {
		var of [2][]costs
		for range turns {
			for i, file := range recordings {
				database, drop := a.database(binary)
				env := []string{"DATABASE_URL=" + database, "WEIR_LOG_LEVEL=warn"}
				a.run(env, binary, "ingest", "--work=false", file)
				cost := costs{}
				cost.add("process", againstPosts, a.measure(func() *os.ProcessState { return a.run(env, binary, "ingest", os.DevNull) }))
				of[i] = append(of[i], cost)
				drop()
			}
		}
		usual, _ := median(of[0], "process"+cpuOfBoth)
		together, _ := median(of[1], "process"+cpuOfBoth)
		b.ReportMetric(usual, "µs/post")
		b.ReportMetric(together, "µs/post-viral")
		b.ReportMetric(together/usual, "x")
		b.ReportMetric(0, "ns/op")
	}
}

// viral copies a recording and gives every second post with a link the same link.
func viral(b *testing.B, recording string) (file string) {
	b.Helper()
	text, err := os.ReadFile(recording)
	require.NoError(b, err)
	address := regexp.MustCompile(`"uri":"https?://[^"]*"`)
	var out bytes.Buffer
	linked := 0
	for line := range bytes.Lines(text) {
		if address.Match(line) {
			if linked++; linked%2 == 0 {
				line = address.ReplaceAll(line, []byte(`"uri":"https://viral.example/story"`))
			}
		}
		out.Write(line)
	}
	require.Greater(b, linked, againstPosts/10)
	file = filepath.Join(b.TempDir(), "viral.jsonl")
	require.NoError(b, os.WriteFile(file, out.Bytes(), 0o600))
	return file
}
