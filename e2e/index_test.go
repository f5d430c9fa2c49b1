//go:build clickhouse

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/clickhouse"
	"github.com/weir-social/weir/internal/clickhouse/clickhousetest"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// indexing is a network, a process that archives it, and a ClickHouse server behind a
// gate, with a view that would count a duplicate.
type indexing struct {
	t       *testing.T
	net     *simnet.Net
	root    string // of the archive
	pool    *pgxpool.Pool
	server  *clickhousetest.Server
	gate    *insertGate
	env     []string
	process *process
}

func newIndexing(t *testing.T) *indexing {
	t.Helper()
	url := schematest.NewURL(t)
	i := &indexing{t: t, net: busyNetwork(t), root: t.TempDir(), pool: open(t, url), server: clickhousetest.Start(t)}
	i.gate = newInsertGate(t, i.server.URL)
	i.env = append(reads(i.net, url), "WEIR_ARCHIVE=dir:"+i.root, "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_BATCH_EVENTS=50",
		"WEIR_RESOLVE_LINKS=false", "WEIR_CLICKHOUSE="+i.gate.address,
		"WEIR_JOB_TIMEOUT=5s", "WEIR_RESCUE_AFTER=10s") // the timeout limits the jobs of the archive too
	i.start()
	eventually.True(t, func() bool { return i.ask(`EXISTS TABLE events`) == "1" }, 20*time.Millisecond)
	i.ask(`CREATE MATERIALIZED VIEW sums ENGINE = SummingMergeTree ORDER BY (author, collection, rkey, operation)
AS SELECT author, collection, rkey, operation, toUInt64(1) AS n FROM events`)
	return i
}

func (i *indexing) start() { i.process = start(i.t, i.env, "serve") }

// ask runs a statement on the server, past the gate.
func (i *indexing) ask(sql string) string {
	i.t.Helper()
	return i.server.Ask(i.t, sql)
}

// elapse makes all attempts old enough to be settled and all jobs due. No process may be running,
// and no insert may be in flight.
func (i *indexing) elapse() {
	i.t.Helper()
	i.gate.quiet()
	_, err := i.pool.Exec(i.t.Context(), `UPDATE segments SET index_begun_at = index_begun_at - $1::interval WHERE indexed_at IS NULL`,
		clickhouse.Settle)
	require.NoError(i.t, err)
	i.due(`'scheduled', 'retryable', 'running'`)
}

// due makes jobs due that are in one of these states, as if running ones were rescued.
func (i *indexing) due(states string) {
	i.t.Helper()
	_, err := i.pool.Exec(i.t.Context(),
		`UPDATE river_job SET state = 'available', scheduled_at = now(), attempt = 0 WHERE kind = 'index_segment' AND state IN (`+states+`)`)
	require.NoError(i.t, err)
}

// job waits until the job of a segment is in a state.
func (i *indexing) job(segment int, states string) {
	i.t.Helper()
	eventually.True(i.t, func() bool {
		n, err := tryCount(i.pool, fmt.Sprintf(`
			SELECT count(*) FROM river_job WHERE kind = 'index_segment' AND (args ->> 'segment')::int = %d AND state IN (%s)`, segment, states))
		return err == nil && n > 0
	}, 20*time.Millisecond)
}

// counted returns how often each event is in the archive's segments, keyed with its body and
// without it. It uses an independent decoder.
func (i *indexing) counted() (bodies, events map[string]int) {
	i.t.Helper()
	bodies, events = map[string]int{}, map[string]int{}
	eachArchived(i.t, i.root, func(frame []byte) {
		var ev struct {
			DID, Kind string
			Commit    struct {
				Operation, Collection, Rkey string
				Record                      json.RawMessage
			}
		}
		require.NoError(i.t, json.Unmarshal(frame, &ev), string(frame))
		switch ev.Kind {
		case "commit":
			event := fmt.Sprint(ev.DID, " ", ev.Commit.Collection, " ", ev.Commit.Rkey, " ", ev.Commit.Operation)
			events[event]++
			bodies[event+" "+string(ev.Commit.Record)]++
		case "identity", "account":
			events[fmt.Sprint(ev.DID, "   ", ev.Kind)]++
		}
	})
	return bodies, events
}

// once waits until all segments are indexed, and compares the table and the view with the archive.
func (i *indexing) once() {
	i.t.Helper()
	finishes(i.t, 50*time.Millisecond, func() (int, error) {
		return tryCount(i.pool, `SELECT (SELECT count(*) FROM archive_open) + (SELECT count(*) FROM segments WHERE indexed_at IS NULL)`)
	}, "not everything is indexed")
	wantBodies, want := i.counted()
	require.NotEmpty(i.t, want)
	require.Empty(i.t, notOnce(want, i.asked(`
		SELECT author, collection, rkey, operation, count() AS n FROM events GROUP BY author, collection, rkey, operation`)))
	require.Empty(i.t,
		notOnce(want, i.asked(`SELECT author, collection, rkey, operation, sum(n) AS n FROM sums GROUP BY author, collection, rkey, operation`)))
	require.Empty(i.t, notOnce(wantBodies, i.asked(`
		SELECT author, collection, rkey, operation, body, count() AS n FROM events WHERE collection != ''
		GROUP BY author, collection, rkey, operation, body`)))
	require.Equal(i.t, "0", i.ask(`SELECT count() - uniqExact(segment, position) FROM events`))
}

// asked returns counts by the other columns.
func (i *indexing) asked(sql string) map[string]int {
	i.t.Helper()
	counts := map[string]int{}
	for line := range strings.Lines(i.ask(sql + ` FORMAT JSONEachRow`)) {
		var row struct {
			Author, Collection, Rkey, Operation string
			Body                                *string
			N                                   int `json:",string"`
		}
		require.NoError(i.t, json.Unmarshal([]byte(line), &row))
		event := fmt.Sprint(row.Author, " ", row.Collection, " ", row.Rkey, " ", row.Operation)
		if row.Body != nil {
			event += " " + *row.Body
		}
		counts[event] = row.N
	}
	return counts
}

// hit plays events until the fault hits an insert, and returns the insert's segment.
func (i *indexing) hit(f *insertFault) int {
	i.t.Helper()
	f.held, f.resume = make(chan int, 1), make(chan struct{})
	i.gate.fault <- f
	i.net.Play(80)
	select {
	case segment := <-f.held:
		return segment
	case <-time.After(patience):
		require.Fail(i.t, "nothing is inserted", tail(i.process.stderr.String(), 4000))
		return 0
	}
}

// again kills the process, lets the attempts settle and starts another process.
func (i *indexing) again() {
	i.t.Helper()
	i.process.kill()
	i.elapse()
	i.start()
}

func nothing([]byte) int        { return 0 }
func half(body []byte) int      { return len(body) / 2 }
func whole(body []byte) int     { return len(body) }
func allButOne(body []byte) int { return len(body) - 1 }
func toColumn(body []byte) int  { return bytes.Index(body, []byte("\x04body\x06String")) }

// TestIndexKilled kills the process that indexes before, during and after an insert. Afterwards
// each event of the archive is in the table once, and the view counts it once.
func TestIndexKilled(t *testing.T) {
	t.Parallel()
	i := newIndexing(t)
	for _, forward := range []func([]byte) int{nothing, half, toColumn, allButOne, whole} {
		f := &insertFault{forward: forward}
		i.hit(f)
		i.process.kill()
		close(f.resume)
		i.again()
		i.once()
	}
}

// TestIndexByTwoProcesses holds an insert until its process has been killed or has given up, and a
// second process has found the mark of the attempt. Nothing else is inserted before the first
// insert has settled, although it arrives late.
func TestIndexByTwoProcesses(t *testing.T) {
	t.Parallel()
	i := newIndexing(t)
	for _, dies := range []bool{true, false} {
		f := &insertFault{forward: half, rest: true}
		segment := i.hit(f)
		first := i.process
		if dies {
			first.kill()
			i.due(`'running'`)
		}
		i.start()
		i.job(segment, `'scheduled'`)
		require.Equal(t, 1, i.gate.insertsOf(segment))
		close(f.resume)
		first.kill()
		i.again()
		i.once()
		require.Equal(t, 1, i.gate.insertsOf(segment), "the segment was inserted again although the first insert arrived")
	}
}

// TestIndexWithoutResponse loses the responses to inserts, cuts one short, sends one that is not
// the server's, and kills the server.
func TestIndexWithoutResponse(t *testing.T) {
	t.Parallel()
	i := newIndexing(t)
	for _, f := range []*insertFault{
		{rest: true, answer: func([]byte) []byte { return nil }},
		{rest: true, answer: func(b []byte) []byte { return b[:len(b)/2] }},
		{alone: true, answer: func([]byte) []byte { return []byte("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") }},
	} {
		segment := i.hit(f)
		close(f.resume)
		i.job(segment, `'retryable', 'scheduled'`)
		i.again()
		i.once()
	}
	for _, forward := range []func([]byte) int{half, whole} {
		f := &insertFault{forward: forward}
		segment := i.hit(f)
		i.server.Kill(t)
		close(f.resume)
		i.job(segment, `'retryable', 'scheduled'`)
		i.server.Start(t)
		i.again()
		i.once()
	}
}

// conditions returns the names of the conditions that a process reports.
func conditions(t *testing.T, opsURL string) (names []string) {
	t.Helper()
	report, _ := reported(t, opsURL)
	for _, c := range report.Conditions {
		names = append(names, c.Name)
	}
	return names
}

// TestIndexWithoutServer stops the server and makes the waiting segments an hour old. The stream
// and the archive go on, and exactly one condition is reported. After the server returns, every
// event is indexed once.
func TestIndexWithoutServer(t *testing.T) {
	t.Parallel()
	i := newIndexing(t)
	i.once()
	ops := i.process.opsURL(t)
	i.server.Kill(t)
	const pile = 8
	for n := range pile {
		i.net.Play(60)
		eventually.True(t, func() bool {
			waiting, err := tryCount(i.pool, `SELECT count(*) FROM segments WHERE indexed_at IS NULL AND synced_at IS NOT NULL`)
			return err == nil && waiting > n
		}, 20*time.Millisecond, "the archive stops")
		i.due(`'retryable', 'scheduled'`) // make the retries due early
	}
	k := &killing{t: t, net: i.net, process: i.process}
	k.drain(i.pool)
	require.Empty(t, conditions(t, ops))
	_, err := i.pool.Exec(t.Context(), `UPDATE segments SET synced_at = synced_at - interval '1 hour' WHERE indexed_at IS NULL`)
	require.NoError(t, err)
	eventually.True(t, func() bool { return slices.Equal(conditions(t, ops), []string{"WeirIndexBehind"}) }, 50*time.Millisecond)
	require.Zero(t, count(t, i.pool, `SELECT max(index_attempt) FROM segments WHERE indexed_at IS NULL`),
		"a refused connection must not leave an attempt that has to settle")
	require.Zero(t, count(t, i.pool, `SELECT count(*) FROM river_job WHERE kind = 'index_segment' AND state = 'discarded'`),
		"jobs must wait, and not be discarded")
	require.Equal(t, 1,
		count(t, i.pool, `SELECT max(array_length(errors, 1)) FROM river_job WHERE kind = 'index_segment' AND state <> 'completed'`),
		"a waiting job must have one error, not one per attempt")
	i.server.Start(t)
	i.due(`'retryable', 'scheduled'`)
	i.once()
	require.Empty(t, conditions(t, ops))
}
