package workers

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
)

// TestJobOfADeadProcessIsProcessed shows that River's rescuer retries a job
// whose process was killed in its last attempt, and that there is no dead
// letter.
func TestJobOfADeadProcessIsProcessed(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
INSERT INTO river_job (kind, args, queue, max_attempts, attempt, state, attempted_at, attempted_by)
SELECT kind, args, queue, 25, 5, 'running', now() - interval '1 hour', ARRAY['dead']
FROM (VALUES ('audit', '{}'::jsonb, 'network'), ('close_gap', '{"gap": 7}', 'network'), ('read_posts', '{"records": []}',
    'process')) AS j (kind, args, queue)`)
	working(t, pool)
	eventually.True(t, func() bool {
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), `
			SELECT count(*) FROM river_job WHERE state = 'completed' AND 'dead' = ANY (attempted_by)
		    AND attempt = 6 AND cardinality(errors) = 1`).Scan(&n))
		return n == 3
	}, 20*time.Millisecond, "the rescued jobs are done")
	var letters int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dead_letters`).Scan(&letters))
	require.Zero(t, letters)
}

// TestJobOfALapsedProcessStartsAtOnce shows that a worker stores heartbeats, and starts the job of a process without one long before
// River's rescuer would.
func TestJobOfALapsedProcessStartsAtOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
INSERT INTO workers (name, seen_at, alive_since) SELECT 'dead', now() - interval '1 minute', now() - interval '1 hour';
INSERT INTO river_job (kind, args, queue, max_attempts, attempt, state, attempted_at, attempted_by)
VALUES ('read_posts', '{"records": []}', 'process', 45, 1, 'running', now(), ARRAY['dead'])`)
	working(t, pool)
	is := func(sql string) func() bool {
		return func() (is bool) {
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT EXISTS (`+sql+`)`).Scan(&is))
			return is
		}
	}
	eventually.True(t, is(`SELECT FROM workers WHERE name <> 'dead'`), 20*time.Millisecond)
	execute(t, pool, `UPDATE workers SET alive_since = now() - interval '1 hour'`) // the test does not wait for twenty seconds
	eventually.True(t, is(`SELECT FROM river_job WHERE state = 'completed' AND attempted_by[1] = 'dead' AND attempt = 2`), 20*time.Millisecond)
	require.False(t, is(`SELECT FROM workers WHERE name = 'dead'`)())
}

// TestDeathsAreNoFailures shows that deaths of the process neither use up a
// job's attempts nor lengthen its delay. After twenty deaths the job becomes a
// dead letter with that cause.
func TestDeathsAreNoFailures(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
INSERT INTO river_job (kind, args, queue, max_attempts, attempt, state, attempted_at, metadata, errors)
SELECT kind, args, 'network', 25, failures + deaths, state::river_job_state, now() - interval '1 hour',
    jsonb_build_object('river:rescue_count', deaths),
       array_fill('{"at": "2026-01-01T00:00:00Z", "attempt": 1, "error": "x", "trace": ""}'::jsonb, ARRAY[failures + deaths])
FROM (VALUES ('sync_follows', '{"watch": 1}'::jsonb, 'available', 3, 3),
             ('sync_follows', '{"watch": 2}',        'available', 4, 3),
             ('close_gap',    '{"gap": 7}',          'running',   0, 19)) AS j (kind, args, state, failures, deaths)`)
	execute(t, pool, `ALTER TABLE watches DISABLE TRIGGER USER; INSERT INTO watches (target) VALUES ('a.example'), ('b.example')`)
	working(t, pool)
	ended := func(what, sql string) {
		t.Helper()
		eventually.True(t, func() bool {
			var is bool
			require.NoError(t, pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM river_job AS j WHERE `+sql+`)`).Scan(&is))
			return is
		}, 20*time.Millisecond, what)
	}
	ended("the fourth failure of five", `args ->> 'watch' = '1' AND attempt = 7 AND state = 'retryable'
		-- 256 s and a tenth either way, after an attempt of any length
		AND scheduled_at BETWEEN attempted_at + interval '230 s' AND clock_timestamp() + interval '282 s'`)
	ended("the fifth failure of five", `args ->> 'watch' = '2' AND attempt = 8 AND state = 'discarded'`)
	ended("the twentieth death", `kind = 'close_gap' AND state = 'cancelled' AND attempt = 20`)
	var cause string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT cause FROM dead_letters`).Scan(&cause))
	require.Contains(t, cause, "the process died, or the job never returned, 20 times")
}

// TestDeathsAreCountedApart shows the same of a single job: which attempts and which delay it has
// left, and the death that ends it.
func TestDeathsAreCountedApart(t *testing.T) {
	t.Parallel()
	job := func(failures, died int) *rivertype.JobRow {
		return &rivertype.JobRow{MaxAttempts: 5 + jobs.Deaths, Attempt: failures + died, Errors: make([]rivertype.AttemptError, failures+died),
			Metadata: fmt.Appendf(nil, `{"river:rescue_count": %d}`, died)}
	}
	for died := range jobs.Deaths {
		j := job(3, died)
		require.NoError(t, checkDeaths(j))
		require.NoError(t, (deaths{}).WorkBegin(t.Context(), j))
		require.Equal(t, 5+died, j.MaxAttempts, "five failures end it, besides the deaths")
		delay := time.Until(retries{new(clock)}.NextRetry(j))
		require.InDelta(t, 256*time.Second, delay, float64(30*time.Second), "the delay after the fourth failure")
	}
	require.ErrorContains(t, checkDeaths(job(3, jobs.Deaths)), "died, or the job never returned, 20 times")
}

// TestJobWithFewAttemptsHasThem covers a job whose inserter does not allow for
// deaths.
func TestJobWithFewAttemptsHasThem(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `ALTER TABLE watches DISABLE TRIGGER USER; INSERT INTO watches (target) VALUES ('a.example')`)
	execute(t, pool, `INSERT INTO river_job (kind, args, queue, max_attempts) VALUES ('sync_follows', '{"watch": 1}', 'network', 3)`)
	working(t, pool)
	eventually.True(t, func() bool {
		var state string
		require.NoError(t,
			pool.QueryRow(t.Context(), `SELECT state FROM river_job WHERE args ->> 'watch' = '1' ORDER BY id LIMIT 1`).Scan(&state))
		require.NotEqual(t, "discarded", state)
		return state == "retryable"
	}, 20*time.Millisecond, "the first failure of three")
}

// TestRiverRebuildsIndexesThatExist shows that all of the indexes exist: at
// midnight River warns about each missing one.
func TestRiverRebuildsIndexesThatExist(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	pool := schematest.New(t)
	var there []string
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT array_agg(indexrelid::regclass::text) FROM pg_index WHERE indrelid = 'river_job'::regclass`).Scan(&there))
	require.ElementsMatch(t, there, riverIndexes())
}

// TestStopDoesNotWaitForOthers shows that a job that waits to retry a call to
// an unreachable service ends at once when the process stops. It keeps its
// attempts, and its watch has no problem.
func TestStopDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	api, err := bluesky.New(bluesky.Config{AppView: "http://127.0.0.1:1", Directory: "http://127.0.0.1:1",
		Logger: slog.New(slog.DiscardHandler), Retries: []time.Duration{time.Hour}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	stopping := make(chan struct{})
	client, err := New(withPosts(Config{Shared: Shared{Pool: pool, Projections: registered(t, pool), Bluesky: api,
		Logger: slog.New(slog.DiscardHandler), JobTimeout: time.Hour},
		ID: t.Name(), Processing: Processing{Stopping: stopping, RescueAfter: 2 * time.Hour}}))
	require.NoError(t, err)
	require.NoError(t, client.Start(ctx))
	synced(t, pool)
	execute(t, pool, `INSERT INTO watches (target) VALUES ('alice.example')`)
	count := func(sql string) (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	eventually.True(t, func() bool {
		return count(`SELECT count(*) FROM river_job WHERE args ->> 'watch' = '1' AND state = 'running'`) == 1
	}, 20*time.Millisecond)
	close(stopping) // while River still runs: its own stop ends a job after 20 s
	eventually.True(t, func() bool {
		return count(`SELECT count(*) FROM river_job WHERE args ->> 'watch' = '1' AND metadata ? 'snoozes'`) == 1
	}, 20*time.Millisecond, "the stop waits for the call")
	cancel()
	<-client.Stopped()
	require.Equal(t, 1,
		count(`SELECT count(*) FROM river_job WHERE args ->> 'watch' = '1' AND state = 'available' AND attempt = 0 AND errors IS NULL`))
	require.Zero(t, count(`SELECT count(*) FROM watches WHERE problem <> ''`))
}
