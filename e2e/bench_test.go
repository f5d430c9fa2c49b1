package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// The benchmarks run the real binary on a Postgres of their own that syncs its
// writes. Rates mean little on a shared machine, so each is printed beside the
// rate of a bare COPY of the same rows into the same tables in the same run.

const (
	benchPosts  = 100_000 // events, all of them stored posts
	benchEvents = 300_000 // events of every kind that the network sends
)

// benchServer is a Postgres configured as in production.
func benchServer(t testing.TB) *devpg.Server {
	t.Helper()
	server, err := devpg.Start(context.Background(), devpg.Options{Fsync: true, Settings: map[string]string{
		"shared_buffers": "512MB", "max_wal_size": "8GB", "track_commit_timestamp": "on"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	return server
}

// benchDatabase is an empty one with Weir's schema.
func benchDatabase(t testing.TB, server *devpg.Server) (url string, pool *pgxpool.Pool) {
	t.Helper()
	admin, err := pgx.Connect(t.Context(), server.URL("postgres"))
	require.NoError(t, err)
	name := fmt.Sprintf("bench_%d", time.Now().UnixNano())
	_, err = admin.Exec(t.Context(), `CREATE DATABASE `+name)
	require.NoError(t, err)
	require.NoError(t, admin.Close(t.Context()))
	url = server.URL(name)
	pool, err = app.Config{}.OpenPool(t.Context(), url, 4)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.NoError(t, schematest.Migrate(t.Context(), pool))
	partitioned(t, pool, time.Now())
	return url, pool
}

// benchRecording writes the events of the simulated network to a file: only new
// posts, or all of them.
func benchRecording(b *testing.B, mix simnet.Mix, events int, wanted func(*simnet.Entry) bool) (file string, entries []*simnet.Entry) {
	b.Helper()
	n, err := simnet.New(simnet.Config{Seed: 5, Accounts: 20_000, Mix: mix, History: events + events/5, HistorySpan: 6 * time.Hour})
	require.NoError(b, err)
	var lines bytes.Buffer
	require.NoError(b, n.Log().WriteJSONL(&lines, simnet.V2))
	file = filepath.Join(b.TempDir(), "recording.jsonl")
	out, err := os.Create(file)
	require.NoError(b, err)
	buffered := bufio.NewWriter(out)
	all := n.Log().Entries()
	for line := range bytes.Lines(lines.Bytes()) {
		if e := all[0]; wanted(e) && len(entries) < events {
			entries = append(entries, e)
			_, err := buffered.Write(line)
			require.NoError(b, err)
		}
		all = all[1:]
	}
	require.NoError(b, buffered.Flush())
	require.NoError(b, out.Close())
	require.Len(b, entries, events)
	return file, entries
}

func newPost(e *simnet.Entry) bool {
	return e.Kind == "commit" && e.Operation == "create" && e.Collection == schema.PostCollection
}

// copyRate is the number of posts per second that a bare COPY stores, in
// transactions as large as the consumer's.
func copyRate(b *testing.B, server *devpg.Server, entries []*simnet.Entry) float64 {
	b.Helper()
	_, pool := benchDatabase(b, server)
	rows := make([][]any, 0, len(entries))
	for _, e := range entries {
		rows = append(rows, []any{e.Collection, e.DID, e.Rkey, e.Rev, e.CID, e.CreatedAt, json.RawMessage(e.Record)})
	}
	columns := []string{"collection", "did", "rkey", "rev", "cid", "created_at", "record"}
	started := time.Now()
	for batch := range slices.Chunk(rows, 500) {
		_, err := pool.CopyFrom(b.Context(), pgx.Identifier{"records"}, columns, pgx.CopyFromRows(batch))
		require.NoError(b, err)
	}
	return float64(len(entries)) / time.Since(started).Seconds()
}

// timed runs the binary to its end, and returns how long it took and its peak
// memory in MB.
func timed(b *testing.B, url string, args ...string) (took time.Duration, memory float64) {
	b.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Env = []string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn"}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	started := time.Now()
	require.NoError(b, cmd.Start())
	peak := watchMemory(cmd.Process.Pid)
	err := cmd.Wait()
	took = time.Since(started)
	require.NoError(b, err, out.String())
	return took, peak()
}

// watchMemory polls a process's peak of resident memory until it ends. The
// kernel's figure after the end includes that of the parent process.
func watchMemory(pid int) (peak func() float64) {
	result := make(chan float64, 1)
	go func() {
		last := 0.0
		for {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, after, found := strings.Cut(string(text), "VmHWM:")
			if err != nil || !found {
				result <- last
				return
			}
			var kilobytes float64
			if _, err := fmt.Sscan(after, &kilobytes); err == nil {
				last = kilobytes / 1024
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	return func() float64 { return <-result }
}

func report(b *testing.B, what string, rate, limit, memory float64) {
	b.Helper()
	b.ReportMetric(rate, what+"/s")
	b.ReportMetric(limit, "COPY-rows/s")
	b.ReportMetric(rate/limit, "of-COPY")
	b.ReportMetric(memory, "MB")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkConsumePosts stores a recorded stream in which every event is a
// stored post.
func BenchmarkConsumePosts(b *testing.B) {
	server := benchServer(b)
	file, entries := benchRecording(b, simnet.MixPosts, benchPosts, newPost)
	for b.Loop() {
		limit := copyRate(b, server, entries)
		url, pool := benchDatabase(b, server)
		took, memory := timed(b, url, "ingest", "--work=false", file)
		rows, err := tryCount(pool, `SELECT count(*) FROM posts`)
		require.NoError(b, err)
		require.Equal(b, benchPosts, rows)
		report(b, "posts", benchPosts/took.Seconds(), limit, memory)
	}
}

// BenchmarkConsumeNetwork consumes the events of the whole network and stores
// the posts.
func BenchmarkConsumeNetwork(b *testing.B) {
	server := benchServer(b)
	_, posts := benchRecording(b, simnet.MixPosts, benchPosts, newPost)
	file, _ := benchRecording(b, simnet.MixNetwork, benchEvents, func(*simnet.Entry) bool { return true })
	for b.Loop() {
		limit := copyRate(b, server, posts)
		url, _ := benchDatabase(b, server)
		took, memory := timed(b, url, "ingest", "--work=false", file)
		report(b, "events", benchEvents/took.Seconds(), limit, memory)
	}
}

// BenchmarkProcess processes stored posts into links and shares.
func BenchmarkProcess(b *testing.B) {
	server := benchServer(b)
	file, entries := benchRecording(b, simnet.MixPosts, benchPosts, newPost)
	for b.Loop() {
		limit := copyRate(b, server, entries)
		url, pool := benchDatabase(b, server)
		timed(b, url, "ingest", "--work=false", file)
		took, memory := timed(b, url, "ingest", os.DevNull)
		left, err := tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state <> 'completed'`)
		require.NoError(b, err)
		require.Zero(b, left)
		report(b, "posts", benchPosts/took.Seconds(), limit, memory)
	}
}

// BenchmarkStreamToRanking consumes and processes at the same time.
func BenchmarkStreamToRanking(b *testing.B) {
	server := benchServer(b)
	file, entries := benchRecording(b, simnet.MixPosts, benchPosts, newPost)
	for b.Loop() {
		limit := copyRate(b, server, entries)
		url, pool := benchDatabase(b, server)
		took, memory := timed(b, url, "ingest", file)
		left, err := tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state <> 'completed'`)
		require.NoError(b, err)
		require.Zero(b, left)
		report(b, "posts", benchPosts/took.Seconds(), limit, memory)
	}
}

// BenchmarkLive reads 500 events a second over the wire for half a minute. The
// times are the database's: when the transaction of each row was committed. It
// counts only events after the consumer has caught up with the history and reads
// live ones, so the start of the process is not included.
func BenchmarkLive(b *testing.B) {
	const rate, warm, span = 500, 2 * time.Second, 30 * time.Second
	server := benchServer(b)
	for b.Loop() {
		url, pool := benchDatabase(b, server)
		n, err := simnet.New(simnet.Config{Seed: 6, History: 5000})
		require.NoError(b, err)
		require.NoError(b, n.Start("127.0.0.1:0"))
		cmd := exec.Command(binary, "serve")
		cmd.Env = alone(n, url)
		require.NoError(b, cmd.Start())
		peak := watchMemory(cmd.Process.Pid)
		idle := func() {
			b.Helper()
			readsAll(b, pool, n)
			eventually.True(b, func() bool {
				n, err := tryCount(pool, `SELECT count(*) FROM river_job WHERE kind = 'process_posts' AND state <> 'completed'`)
				return err == nil && n == 0
			}, 20*time.Millisecond)
		}
		flow := func(d time.Duration) {
			ctx, cancel := context.WithTimeout(b.Context(), d)
			defer cancel()
			n.Live(ctx, rate)
		}
		idle()
		flow(warm)
		idle()
		before := n.Log().Last().TimeUS
		flow(span)
		idle()
		require.NoError(b, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(b, cmd.Wait())
		n.Stop()

		happened := map[string]int64{} // the time of each event, by the post and its revision
		for _, e := range n.Log().Entries() {
			happened[e.DID+"/"+e.Rkey+"/"+e.Rev] = e.TimeUS
		}
		late := func(sql string) (p50, p99 float64, count int) {
			rows, err := pool.Query(b.Context(), sql)
			require.NoError(b, err)
			type seen struct {
				Key string
				At  time.Time
			}
			all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[seen])
			require.NoError(b, err)
			var delays []float64
			for _, s := range all {
				if at := happened[s.Key]; at > before {
					delays = append(delays, float64(s.At.UnixMicro()-at)/1000)
				}
			}
			slices.Sort(delays)
			return delays[len(delays)/2], delays[len(delays)*99/100], len(delays)
		}
		row50, row99, stored := late(`SELECT did || '/' || rkey || '/' || rev, pg_xact_commit_timestamp(xmin) FROM posts`)
		share50, share99, shared := late(`SELECT r.did || '/' || r.rkey || '/' || r.rev, pg_xact_commit_timestamp(s.xmin)
			FROM shares AS s JOIN records AS r USING (collection, did, rkey)`)
		b.ReportMetric(row50, "ms-to-row-p50")
		b.ReportMetric(row99, "ms-to-row-p99")
		b.ReportMetric(share50, "ms-to-trending-p50")
		b.ReportMetric(share99, "ms-to-trending-p99")
		b.ReportMetric(float64(stored), "rows")
		b.ReportMetric(float64(shared), "shares")
		b.ReportMetric(peak(), "MB")
		b.ReportMetric(0, "ns/op")
	}
}

// BenchmarkColdStart follows 342 accounts on an empty database, at the default
// limit of ten concurrent calls, 0.1 s apart. The limit alone requires the number
// of calls times 0.1 s.
func BenchmarkColdStart(b *testing.B) {
	server := benchServer(b)
	for b.Loop() {
		url, pool := benchDatabase(b, server)
		n, err := simnet.New(simnet.Config{Seed: 6, Accounts: 2000, Follows: 342, History: 40_000})
		require.NoError(b, err)
		require.NoError(b, n.Start("127.0.0.1:0"))
		n.SetLatency(50 * time.Millisecond)
		cmd := exec.Command(binary, "serve")
		cmd.Env = append(alone(n, url), "WEIR_START=tip", "WEIR_APPVIEW="+n.AppViewURL(), "WEIR_DIRECTORY="+n.DirectoryURL(),
			"WEIR_WATCH="+n.Hub().Handle, "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=5m")
		started := time.Now()
		require.NoError(b, cmd.Start())
		eventually.True(b, func() bool {
			n, err := tryCount(pool,
				`SELECT count(*) FROM watch_members AS w
			WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND (a.feed_read_at IS NOT NULL OR a.feed_problem <> ''))
				UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT FROM watch_members) ORDER BY 1 DESC LIMIT 1`)
			return err == nil && n == 0
		}, 20*time.Millisecond)
		took := time.Since(started)
		dictated := time.Duration(len(n.Calls())) * 100 * time.Millisecond
		require.NoError(b, cmd.Process.Signal(syscall.SIGTERM))
		require.NoError(b, cmd.Wait())
		posts, err := tryCount(pool, `SELECT count(*) FROM posts`)
		require.NoError(b, err)
		b.ReportMetric(took.Seconds(), "s")
		b.ReportMetric(dictated.Seconds(), "s-dictated")
		b.ReportMetric((took - dictated).Seconds(), "s-beyond")
		b.ReportMetric(float64(len(n.Calls())), "calls")
		b.ReportMetric(float64(posts), "posts")
		b.ReportMetric(0, "ns/op")
		n.Stop()
	}
}
