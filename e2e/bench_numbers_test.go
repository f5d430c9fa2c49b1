package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// networkRate is the events a second of the whole network for which docs/numbers.md gives sizes.
const networkRate = 600

// numbers is what docs/numbers.md says.
type numbers struct {
	*against
	costs *table // of an event
	runs  *table // of a process that runs
	days  *table // of the whole network
	first *table // the first hour with new accounts
	sizes *table // of tables
}

// BenchmarkNumbers measures what a user wants to know before the first day: memory, processor time, WAL and bytes, how long
// a first start takes, and how tables grow. With -report it writes docs/numbers.md.
func BenchmarkNumbers(b *testing.B) {
	for b.Loop() {
		m := &numbers{against: newMeasured(b),
			costs: newTable("", "CPU-seconds a million", "WAL, bytes each", "on disk, bytes each", "peak memory, MB"),
			runs:  newTable("`weir serve`", "memory, MB", "CPU-seconds a minute", "transactions a minute", "WAL, KB a minute"),
			days:  newTable(fmt.Sprintf("the whole network at %d events/s", networkRate), "GB a day on disk", "GB of WAL a day", "of one core"),
			first: newTable("", "figure"),
			sizes: newTable("posts", "table", "rows", "heap, MB", "indexes, MB", "bytes a row")}
		m.events()
		m.running()
		m.past()
		for _, size := range sizes(b) {
			m.grown(size)
		}
		m.publish()
		b.ReportMetric(0, "ns/op")
	}
}

// events measures the cost of an event, in four kinds of work.
func (m *numbers) events() {
	events := 100_000
	if testing.Short() {
		events = 5_000
	}
	posts, _ := benchRecording(m.b, simnet.MixPosts, events, newPost)
	mixed, _ := benchRecording(m.b, simnet.MixNetwork, events, func(*simnet.Entry) bool { return true })
	url, drop := m.database(binary)
	pool := open(m.b, url)
	env := []string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn", "WEIR_RETENTION=0"}
	m.work("a post: stored", pool, func() int { return events }, env, "ingest", "--work=false", posts)
	shares := func() int { return m.count(url, `SELECT count(*) FROM shares`) }
	m.work("a share: found in its post, counted and ranked", pool, shares, env, "ingest", os.DevNull)
	pool.Close()
	drop()

	for _, row := range []struct{ name, day, collections string }{
		{"an event of the network: posts and reposts are stored", "posts and reposts, with their links", ""},
		{"an event of the network: every record is stored", "every record", "WEIR_COLLECTIONS=app.bsky.*"},
	} {
		url, drop := m.database(binary)
		pool := open(m.b, url)
		env := []string{"DATABASE_URL=" + url, "WEIR_LOG_LEVEL=warn", "WEIR_RETENTION=0"}
		if row.collections != "" {
			env = append(env, row.collections)
		}
		each := m.work(row.name, pool, func() int { return events }, env, "ingest", mixed)
		m.day(row.day, each)
		pool.Close()
		drop()
	}
	m.archived(mixed, events)
}

// each is the cost of one event.
type each struct{ cpu, wal, disk float64 } // seconds and bytes

// work runs a command and adds its row. of is the number by which the costs are divided, once it has run.
func (m *numbers) work(name string, pool *pgxpool.Pool, of func() int, env []string, args ...string) each {
	m.b.Helper()
	before, memory := databaseBytes(m.b, pool), 0.0
	pool.Reset()
	cost := m.measure(func() *os.ProcessState {
		p := start(m.b, env, args...)
		peak := watchMemory(p.cmd.Process.Pid)
		require.Zero(m.b, p.wait(m.b, 30*time.Minute), p.stderr.String())
		memory = peak()
		return p.cmd.ProcessState
	})
	n := float64(of())
	one := each{(cost.process + cost.postgres).Seconds() / n, float64(cost.wal) / n, (databaseBytes(m.b, pool) - before) / n}
	pool.Reset()
	m.costs.line(name, rounded(one.cpu*1e6), rounded(one.wal), rounded(one.disk), rounded(memory))
	return one
}

func rounded(f float64) string { return fmt.Sprintf("%.0f", f) }

func (m *numbers) day(name string, of each) {
	const gb, day = 1e9, 86_400 * networkRate
	m.days.line(name, fmt.Sprintf("%.1f", of.disk*day/gb), fmt.Sprintf("%.1f", of.wal*day/gb), fmt.Sprintf("%.0f %%", 100*of.cpu*networkRate))
}

// archived measures the files of an archive of all events.
func (m *numbers) archived(recording string, events int) {
	dir := m.b.TempDir()
	url, drop := m.database(binary)
	defer drop()
	env := []string{"DATABASE_URL=" + url, "WEIR_RETENTION=0", "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_COLLECTIONS=app.bsky.*",
		"WEIR_ARCHIVE=dir:" + dir}
	m.run(env, binary, "ingest", "--work=false", recording)
	records := m.count(url, `SELECT coalesce(sum(records), 0) FROM archive_open`)
	work := start(m.b, env, "work", "--queues", "archive")
	eventually.True(m.b, func() bool { return m.count(url, `SELECT count(*) FROM archive_open`) == 0 }, 50*time.Millisecond)
	work.kill()
	bytes := 0.0
	require.NoError(m.b, filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err == nil {
			bytes += float64(info.Size())
		}
		return err
	}))
	one := bytes / float64(max(1, records))
	m.costs.line("an archived event, in its sealed segment", "–", "–", fmt.Sprintf("%.0f", one), "–")
	m.days.line("the archive of every event, beside Postgres", fmt.Sprintf("%.1f", bytes/float64(events)*86_400*networkRate/1e9), "–", "–")
}

// running measures a process that reads the network at its usual rate, and one that has nothing to do.
func (m *numbers) running() {
	for _, row := range []struct {
		name string
		rate float64
	}{{"at rest", 0}, {fmt.Sprintf("at %d events/s of the network", networkRate), networkRate}} {
		one := steady(m.b, m.server, row.rate)
		m.runs.line(row.name, rounded(one.memory), fmt.Sprintf("%.1f", one.cpu), rounded(one.transactions), rounded(one.wal/1024))
	}
}

// past counts the calls that a first start makes for a thousand followed accounts. At the default limit of calls, which is
// that of Bluesky's services, their number gives the time.
func (m *numbers) past() {
	accounts, past := 1000, 100_000
	if testing.Short() {
		accounts, past = 50, 2_000
	}
	const perCall = 100 * time.Millisecond // WEIR_API_INTERVAL
	url, pool := benchDatabase(m.b, m.server)
	n, err := simnet.New(simnet.Config{Seed: 6, Accounts: 2000, Follows: accounts, History: past})
	require.NoError(m.b, err)
	require.NoError(m.b, n.Start("127.0.0.1:0"))
	defer n.Stop()
	serve := start(m.b, append(alone(n, url), "WEIR_START=tip", "WEIR_APPVIEW="+n.AppViewURL(), "WEIR_DIRECTORY="+n.DirectoryURL(),
		"WEIR_WATCH="+n.Hub().Handle, "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=5m", "WEIR_API_INTERVAL=0s"), "serve")
	peak := watchMemory(serve.cmd.Process.Pid)
	eventually.True(m.b, func() bool {
		left, err := tryCount(pool, `SELECT count(*) FROM watch_members AS w
			WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND (a.feed_read_at IS NOT NULL OR a.feed_problem <> ''))
			UNION ALL SELECT 1 WHERE NOT EXISTS (SELECT FROM watch_members) ORDER BY 1 DESC LIMIT 1`)
		return err == nil && left == 0
	}, 100*time.Millisecond)
	calls := len(n.Calls())
	serve.signal(syscall.SIGTERM)
	require.Zero(m.b, serve.wait(m.b, time.Minute))
	m.first.line("accounts that one handle follows", fmt.Sprint(accounts))
	m.first.line("posts of the last day that they wrote", fmt.Sprint(m.count(url, `SELECT count(*) FROM posts`)))
	m.first.line("calls of Bluesky's services, for each account", fmt.Sprintf("%.2f", float64(calls)/float64(accounts)))
	m.first.line("time, at the default of ten calls a second", fmt.Sprintf("%.2f h", (time.Duration(calls)*perCall).Hours()))
	m.first.line("peak memory of `weir serve`, MB", fmt.Sprintf("%.0f", peak()))
}

// grown stores this many posts, and a share of every third, and adds the sizes of the largest tables.
func (m *numbers) grown(size int) {
	_, pool := benchDatabase(m.b, m.server)
	preload(m.b, pool, size)
	rows, err := pool.Query(m.b.Context(), `
SELECT regexp_replace(c.relname, '_?p?[0-9_]+$|_default$', '') AS name,
       sum(c.reltuples)::float8, sum(pg_relation_size(c.oid))::float8, sum(pg_indexes_size(c.oid))::float8
FROM pg_class AS c
WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.reltuples > 0
GROUP BY 1 HAVING sum(c.reltuples) >= $1::int / 10 ORDER BY 3 DESC`, size)
	require.NoError(m.b, err)
	var name string
	var live, heap, indexes float64
	_, err = pgx.ForEachRow(rows, []any{&name, &live, &heap, &indexes}, func() error {
		m.sizes.line(fmt.Sprintf("10^%.0f", math.Log10(float64(size))), "`"+name+"`", rounded(live),
			fmt.Sprintf("%.1f", heap/(1<<20)), fmt.Sprintf("%.1f", indexes/(1<<20)), rounded((heap+indexes)/live))
		return nil
	})
	require.NoError(m.b, err)
	pool.Close()
}

// databaseBytes is the size of a database without what VACUUM would free.
func databaseBytes(b *testing.B, pool *pgxpool.Pool) (size float64) {
	b.Helper()
	_, err := pool.Exec(b.Context(), `VACUUM`)
	require.NoError(b, err)
	require.NoError(b, pool.QueryRow(b.Context(), `SELECT pg_database_size(current_database())::float8`).Scan(&size))
	return size
}

// publish writes the page.
func (m *numbers) publish() {
	var version string
	require.NoError(m.b, m.admin.QueryRow(m.b.Context(), `SELECT current_setting('server_version')`).Scan(&version))
	version, _, _ = strings.Cut(version, " ")
	publish(m.b, fmt.Sprintf(numbersPage, time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), version,
		m.costs, m.runs, m.days, m.first, m.sizes))
}

const numbersPage = `# Numbers

Made by ` + "`make numbers`" + ` on %s, on a machine with %d cores and PostgreSQL %s. Let nothing else run
meanwhile: beside builds, processor time was 1.2 to 1.6 times as much. The network is the simulated one; its posts have
about the size of real ones. [reliability.md](reliability.md) has how costs change with the size, and what faults cost.

## What an event costs

Processor time is that of Weir and Postgres together; bytes on disk include the indexes, the job and the counts. Peak
memory is that of ` + "`weir ingest`" + `, which reads as fast as it can.

%s
## What a running process costs

Processor time is without that of Postgres here. [reliability.md](reliability.md#cost) says what a process at rest asks
Postgres.

%s
## What the whole network costs

Nothing expires in these figures: with a retention, multiply a day by its days. Deletions, edits and accounts are
included. The WAL is without that of checkpoints.

%s
## How long a first start takes

The calls are counted, and take a tenth of a second each: ` + "`WEIR_API_INTERVAL`" + `, which keeps to the limit that the
services set for one address (3,000 calls in five minutes). All processes share it. Accounts that write more than a
hundred posts within the retention need one more call for each further hundred.

%s
## How tables grow

The bytes a row should stay the same. ` + "`SIZES=100000,1000000,10000000`" + ` adds 10^7 posts, and needs 20 GB in /dev/shm.

%s`
