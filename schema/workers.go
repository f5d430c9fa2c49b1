package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// lapsed is the condition that the process w has no heartbeat: it has had none for $1, or its last
// one is in the future because the clock was set back.
const lapsed = `(w.seen_at < clock_timestamp() - $1::interval OR w.seen_at > clock_timestamp() + interval '1 second')`

// Beat stores the heartbeat of a process. It returns the processes that have lapsed, or none until
// the heartbeats of this process itself have come without a pause for as long.
func Beat(ctx context.Context, db DB, name string, lapse time.Duration) ([]string, error) {
	const sql = `
WITH me AS (
    INSERT INTO workers AS w (name, seen_at, alive_since) VALUES ($2, clock_timestamp(), clock_timestamp())
    ON CONFLICT (name) DO UPDATE
    SET alive_since = CASE WHEN w.seen_at BETWEEN clock_timestamp() - $1::interval / 2
        AND clock_timestamp() THEN w.alive_since ELSE clock_timestamp() END,
        seen_at     = clock_timestamp()
    RETURNING alive_since
)
SELECT w.name FROM workers AS w, me WHERE w.name <> $2 AND me.alive_since <= clock_timestamp() - $1::interval AND ` + lapsed
	return All(ctx, db, "store the heartbeat", pgx.RowTo[string], sql, lapse, name)
}

// RescueJobs removes processes that are still lapsed, and makes their running jobs available, as
// River's rescuer does later. It returns how many.
func RescueJobs(ctx context.Context, pool *pgxpool.Pool, names []string, lapse time.Duration) (int64, error) {
	const sql = `
WITH gone AS (DELETE FROM workers AS w WHERE w.name = ANY ($2) AND ` + lapsed + ` RETURNING w.name)
UPDATE river_job AS j
SET state        = s.state::river_job_state,
    scheduled_at = CASE s.state WHEN 'available' THEN now() ELSE j.scheduled_at END,
    finalized_at = CASE s.state WHEN 'available' THEN NULL ELSE now() END,
    errors       = array_append(j.errors, jsonb_build_object('at', now(), 'attempt', j.attempt, 'error',
        'the process ' || gone.name || ' has no heartbeat', 'trace', '')),
    metadata     = j.metadata || jsonb_build_object('river:rescue_count',
                   CASE jsonb_typeof(j.metadata -> 'river:rescue_count') WHEN 'number' THEN (j.metadata ->> 'river:rescue_count')::int
                       ELSE 0 END + 1)
FROM gone, river_job AS r
CROSS JOIN LATERAL (SELECT CASE WHEN r.metadata ? 'cancel_attempted_at' THEN 'cancelled' WHEN r.attempt < r.max_attempts
    THEN 'available' ELSE 'discarded' END) AS s (state)
WHERE r.id = j.id AND j.state = 'running' AND j.attempted_by[array_upper(j.attempted_by, 1)] = gone.name`
	n, err := Change(ctx, pool, "rescue the jobs of dead processes", sql, lapse, names)
	return int64(n), err
}
