package e2e

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// killing is a network, a database and a process between them.
type killing struct {
	t       *testing.T
	net     *simnet.Net
	server  *devpg.Server
	env     []string
	process *process
	signed  bool // signatures are checked; those of deleted accounts cannot be
}

// killedAt starts a process that kills itself at the nth of the named points.
func (k *killing) killedAt(nth int, point string) {
	k.t.Helper()
	k.process = start(k.t, append(slices.Clone(k.env), killAt(nth, point)), "serve")
	k.process.dies(k.t)
}

func busyNetwork(t *testing.T) *simnet.Net {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: uint64(time.Now().UnixNano()), Accounts: 300, History: 2000, HistorySpan: time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	return n
}

// begin migrates with one URL and serves with another.
func begin(t *testing.T, n *simnet.Net, server *devpg.Server, migrate, serve string, env ...string) *killing {
	t.Helper()
	k := prepare(t, n, server, migrate, serve, env...)
	k.process = start(t, k.env, "serve")
	return k
}

// prepare is begin without the process.
func prepare(t *testing.T, n *simnet.Net, server *devpg.Server, migrate, serve string, env ...string) *killing {
	t.Helper()
	k := &killing{t: t, net: n, server: server}
	k.env = append(batching(t, n, serve), env...)
	succeed(t, slices.Concat(k.env, []string{"DATABASE_URL=" + migrate}), "migrate")
	t.Cleanup(k.explain)
	return k
}

// batching is like reads, with batches of both kinds: small ones are inserted, large ones copied.
func batching(t *testing.T, n *simnet.Net, database string) []string {
	t.Helper()
	if *chaosLength > 0 { // no other test runs beside it
		return append(alone(n, database), "WEIR_BATCH_EVENTS=100", "WEIR_BATCH_INTERVAL=50ms")
	}
	return append(reads(n, database), "WEIR_BATCH_EVENTS=100")
}

// explain logs the state that a failed test left.
func (k *killing) explain() {
	if !k.t.Failed() {
		return
	}
	var text string
	err := open(k.t, k.server.URL("weir")).QueryRow(context.Background(), `
SELECT (SELECT json_agg(s) FROM streams AS s) || E'\n' ||
       (SELECT json_agg(j)
		FROM (SELECT kind, state, attempted_by[1], count(*), max(errors::text) FROM river_job GROUP BY 1, 2, 3) AS j)`).Scan(&text)
	k.t.Logf("the last event is %+v\n%s\n%v", k.net.Log().Last(), text, err)
}

// progress waits until this many more commits have moved the cursor, so that a kill hits a working
// process.
func (k *killing) progress(commits int) {
	k.t.Helper()
	pool := open(k.t, k.server.URL("weir"))
	defer pool.Close()
	seen, last := 0, -1
	finishes(k.t, 3*time.Millisecond, func() (int, error) {
		cursor, err := tryCount(pool, `SELECT cursor FROM streams`)
		if err == nil && cursor != last {
			last = cursor
			seen++
		}
		return commits + 1 - seen, err
	}, "the stream does not move: %s", k.process.stderr.String())
}

// drain waits until every event is committed and processed. The last one is a post of its own, as the
// stream delivers it: events share times, and a server may give them new positions.
func (k *killing) drain(pool *pgxpool.Pool) {
	k.t.Helper()
	last, err := k.net.PostNow(someone(k.t, k.net), "the last post")
	require.NoError(k.t, err)
	read := fmt.Sprintf(`SELECT count(*) FROM posts WHERE did = '%s' AND rkey = '%s' AND rev = '%s'`, last.DID, last.Rkey, last.Rev)
	eventually.True(k.t, func() bool {
		n, err := tryCount(pool, read)
		return err == nil && n == 1
	}, 50*time.Millisecond, "not read: %s", tail(k.process.stderr.String(), 2000))
	finishes(k.t, 50*time.Millisecond, func() (int, error) { return unprocessed(pool) }, "not processed: %s",
		tail(k.process.stderr.String(), 2000))
}

// compare drains, stops the process and compares the tables with the oracle.
func (k *killing) compare() {
	t := k.t
	t.Helper()
	pool := open(t, k.server.URL("weir"))
	k.drain(pool)
	k.process.signal(syscall.SIGTERM)
	require.Zero(t, k.process.wait(t, time.Minute))

	oracle := fold(k.net.Log().Entries())
	oracle.keysGone = k.signed
	end := time.Now().Truncate(time.Second).Add(time.Second).UTC()
	problems, err := oracle.problems(t.Context(), pool, end)
	require.NoError(t, err)
	require.Empty(t, problems, "%s\n%s", strings.Join(problems, "\n"), rowsOfProblems(t, pool, problems))
	for _, window := range []time.Duration{time.Hour, 24 * time.Hour} {
		got := rankedLinks(t, k.env, strconv.Itoa(int(window.Hours()))+"h", end.Format(time.RFC3339))
		require.NotEmpty(t, got)
		require.Empty(t, oracle.compareTrending(got, end, window))
	}
	require.Empty(t, oracle.countedProblems(t, k.env))
	t.Logf("equal: %d events, %d posts, %d shares", len(k.net.Log().Entries()), count(t, pool, `SELECT count(*) FROM posts`),
		count(t, pool, `SELECT count(*) FROM shares`))
}

// rowsOfProblems returns what the database stores about the records that the first problems name.
func rowsOfProblems(t *testing.T, pool *pgxpool.Pool, problems []string) string {
	t.Helper()
	var text strings.Builder
	for _, named := range regexp.MustCompile(`did:plc:\w+/(\w+)`).FindAllStringSubmatch(strings.Join(problems[:min(3, len(problems))], "\n"),
		-1) {
		for table, sql := range map[string]string{
			"records":    `SELECT to_jsonb(r) FROM records AS r WHERE rkey = $1`,
			"tombstones": `SELECT to_jsonb(r) FROM tombstones AS r WHERE rkey = $1`,
			"shares": `
				SELECT to_jsonb(s) || jsonb_build_object('address', l.url) FROM shares AS s JOIN links AS l ON l.id = s.link_id WHERE rkey = $1`,
			"subjects": `SELECT to_jsonb(s) FROM subjects AS s WHERE rkey = $1 OR rkey IN (SELECT subject_rkey FROM shares WHERE rkey = $1)`,
			"waiting":  `SELECT to_jsonb(w) FROM waiting AS w WHERE $1 IN (rkey, for_rkey)`,
			"river_job": `
				SELECT to_jsonb(j) - 'metadata' || jsonb_build_object('args', left(j.args::text, 300)) FROM river_job AS j
				WHERE args::text LIKE '%' || $1 || '%'`,
		} {
			rows, _ := pool.Query(context.Background(), sql, named[1]) // CollectRows returns it
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			fmt.Fprintf(&text, "%s of %s: %s %v\n", table, named[1], strings.Join(lines, "\n  "), err)
		}
	}
	return text.String()
}
