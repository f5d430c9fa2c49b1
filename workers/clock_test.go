package workers

import (
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
)

// TestStepOfTheDatabasesClockIsDetected compares with the process's monotonic
// time. The clock steps at once or drifts gradually. A slow reply is not a
// step.
func TestStepOfTheDatabasesClockIsDetected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
		c := &clock{start: time.Now()}
		require.Equal(t, time.Now(), c.Now(), "the database's clock has not been read yet")
		started := time.Now()
		for _, read := range []struct{ elapsed, database, step, now time.Duration }{
			{0, 0, 0, 0},
			{5 * time.Second, 5 * time.Second, 0, 5 * time.Second},
			{10100 * time.Millisecond, 10 * time.Second, 0, 10100 * time.Millisecond}, // the reply took 100 ms
			{15 * time.Second, 13 * time.Second, -2 * time.Second, 13 * time.Second},
			{20 * time.Second, 18 * time.Second, 0, 18 * time.Second},
			{25 * time.Second, time.Hour, time.Hour - 23*time.Second, time.Hour},
			{30 * time.Second, 30 * time.Second, -time.Hour + 25*time.Second, 30 * time.Second},
			{35 * time.Second, 34400 * time.Millisecond, 0, 35 * time.Second},
			{40 * time.Second, 38800 * time.Millisecond, -1200 * time.Millisecond, 38800 * time.Millisecond},
		} {
			time.Sleep(read.elapsed - time.Since(started)) // in the bubble's time
			says := noon.Add(read.database)
			require.Equal(t, read.step, c.step(says), "%+v", read)
			c.set(says)
			require.Zero(t, c.step(says))
			require.Equal(t, noon.Add(read.now), c.Now(), "%+v", read)
		}
	})
}

// steps replaces the database's clock with one that the test sets.
func steps(t *testing.T, pool *pgxpool.Pool) (set func(by time.Duration)) {
	t.Helper()
	execute(t, pool, `
CREATE SCHEMA stepped;
CREATE TABLE stepped.clock (by interval NOT NULL);
INSERT INTO stepped.clock VALUES ('0');
CREATE FUNCTION stepped.now() RETURNS timestamptz LANGUAGE sql STABLE AS 'SELECT pg_catalog.now() + by FROM stepped.clock';
CREATE FUNCTION stepped.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE
    AS 'SELECT pg_catalog.clock_timestamp() + by FROM stepped.clock';
DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, stepped, pg_catalog', current_database()); END $$`)
	pool.Reset()
	return func(by time.Duration) {
		_, err := pool.Exec(t.Context(), `UPDATE stepped.clock SET by = $1`, by)
		require.NoError(t, err)
	}
}

// TestJobsAreDatedByTheDatabase shows that jobs have the database's time,
// whatever the clock of the process that adds them.
func TestJobsAreDatedByTheDatabase(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	set := steps(t, pool)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for _, by := range []time.Duration{72 * time.Hour, -72 * time.Hour} {
		set(by)
		added, err := queue.InsertMany(t.Context(), []river.InsertManyParams{{Args: readPosts{}}, {Args: jobs.Expire{}}})
		require.NoError(t, err)
		for _, a := range added {
			require.InDelta(t, by.Seconds(), time.Until(a.Job.ScheduledAt).Seconds(), 60)
			require.InDelta(t, by.Seconds(), time.Until(a.Job.CreatedAt).Seconds(), 60)
		}
		execute(t, pool, `DELETE FROM river_job`)
	}
}

// TestIngestFollowsTheDatabasesClock sets the clock beside a process that may not lead.
func TestIngestFollowsTheDatabasesClock(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	set := steps(t, pool)
	client, err := New(withPosts(Config{
		Shared: Shared{Pool: pool, Projections: registered(t, pool), Logger: slog.New(slog.DiscardHandler)},
		ID:     t.Name(), Processing: Processing{ProcessOnly: true},
	}))
	require.NoError(t, err)
	require.NoError(t, client.readClock(t.Context()))
	set(time.Hour)
	require.NoError(t, client.readClock(t.Context()))
	require.InDelta(t, time.Hour.Seconds(), time.Until(client.clock.Now()).Seconds(), 60)
}

// TestWorkersFollowTheDatabasesClock sets the database's clock. Periodic jobs
// continue without making up for skipped intervals, a failed job is retried
// soon, and due jobs run.
func TestWorkersFollowTheDatabasesClock(t *testing.T) {
	t.Parallel()
	const alertInterval = 100 * time.Millisecond
	pool := schematest.New(t)
	set := steps(t, pool)
	execute(t, pool, `ALTER TABLE watches DISABLE TRIGGER USER; INSERT INTO watches (target) VALUES ('a.example')`)
	client, err := New(withPosts(Config{
		Shared: Shared{Pool: pool, Bluesky: unreachable(t), Projections: registered(t, pool), Logger: slog.New(slog.DiscardHandler)},
		ID:     t.Name(), Alerting: Alerting{AlertInterval: alertInterval},
	}))
	require.NoError(t, err)
	running(t, client)
	count := func(sql string, args ...any) (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
		return n
	}
	eventually := func(sql string, args ...any) {
		t.Helper()
		eventually.True(t, func() bool { return count(sql, args...) > 0 }, 20*time.Millisecond, "%s", sql)
	}
	checked := func() {
		t.Helper()
		last, began := count(`SELECT last_value FROM river_job_id_seq`), time.Now()
		eventually(`SELECT count(*) / 3 FROM river_job WHERE kind = 'check_alerts' AND state = 'completed' AND id > $1`, last)
		used := count(`SELECT last_value FROM river_job_id_seq`) - last // each skipped duplicate uses one, too
		require.Less(t, used, 100+2*int(time.Since(began)/alertInterval), "skipped intervals are made up for")
	}
	eventually(`SELECT count(*) FROM river_job WHERE kind = 'check_alerts' AND state = 'completed'`)
	for _, by := range []time.Duration{72 * time.Hour, -time.Hour} {
		execute(t, pool,
			`INSERT INTO river_job (kind, args, max_attempts, queue, scheduled_at) VALUES ('read_posts', '{"records": []}', 45, 'elsewhere', now())`)
		set(by)
		checked()
		execute(t, pool, `
INSERT INTO river_job (kind, args, max_attempts, queue, created_at, scheduled_at, attempt, errors)
VALUES ('sync_follows', '{"watch": 1}', 45, 'network', now(), now(), 2,
    array_fill('{"at": "2026-01-01T00:00:00Z", "attempt": 1, "error": "x", "trace": ""}'::jsonb, ARRAY[2]))`)
		eventually(`
			SELECT count(*) FROM river_job WHERE cardinality(errors) = 3 AND state = 'retryable'
			    AND scheduled_at BETWEEN now() + interval '20 seconds' AND now() + interval '90 seconds'`)
		execute(t, pool, `DELETE FROM river_job WHERE state = 'retryable'; UPDATE river_job SET queue = 'process' WHERE queue = 'elsewhere'`)
		eventually(`SELECT 1 - least(count(*), 1) FROM river_job WHERE kind = 'read_posts' AND state <> 'completed'`)
	}
	eventually(`SELECT count(*) FROM river_leader WHERE expires_at <= now() + interval '1 minute'`) // the leader keeps its lease
}

// TestDeadLeadersLeaseInTheFutureIsShortened covers a leader that died while
// the database's clock was ahead. Without that, no process could lead
// until that time.
func TestDeadLeadersLeaseInTheFutureIsShortened(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	pool := schematest.New(t)
	execute(t, pool,
		`INSERT INTO river_leader (elected_at, expires_at, leader_id) VALUES (now() + interval '1 day', now() + interval '1 day', 'dead')`)
	working(t, pool)
	eventually.True(t, func() bool {
		var led bool
		require.NoError(t, pool.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM river_leader WHERE leader_id <> 'dead' AND expires_at < now() + interval '1 minute')
			AND NOT EXISTS (SELECT FROM river_job WHERE created_at > now() OR scheduled_at > now() + interval '1 hour' OR state = 'running'
			    AND attempted_at > now())
			AND EXISTS (SELECT FROM river_job WHERE kind = 'check_alerts' AND state = 'completed')`).Scan(&led))
		return led
	}, 20*time.Millisecond)
}
