package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Now returns the time by the database's clock.
func Now(ctx context.Context, db DB) (time.Time, error) {
	return One(ctx, db, "read the database's clock", pgx.RowTo[time.Time], `SELECT clock_timestamp()`)
}

// ClockReading is the state of the database's clock that workers check.
type ClockReading struct {
	Now       time.Time
	Ahead     bool // jobs are dated in the future: the clock was set back
	Shortened bool // the lease of River's leader ended too far in the future
	Woken     int  // queues with waiting jobs
}

// ReadClock reads the database's clock. Jobs are dated when they are inserted and
// when they start, so it checks the latest and the running jobs. It also wakes the processes
// of those queues that have waiting jobs: River notifies of inserts only, and of one in 100 ms. It
// shortens a leader's lease that ends too far in the future: a living leader renews it every 5 s.
func ReadClock(ctx context.Context, db DB, queues []string) (ClockReading, error) {
	const sql = `
WITH shortened AS (
    UPDATE river_leader SET expires_at = clock_timestamp() + interval '15 seconds'
    WHERE expires_at > clock_timestamp() + interval '1 minute' RETURNING 1
)
SELECT clock_timestamp() AS now,
       EXISTS (SELECT FROM (SELECT created_at FROM river_job ORDER BY id DESC LIMIT 500) AS j
           WHERE j.created_at > clock_timestamp() + interval '2 seconds')
       OR EXISTS (SELECT FROM river_job WHERE state = 'running' AND attempted_at > clock_timestamp() + interval '2 seconds') AS ahead,
       EXISTS (SELECT FROM shortened) AS shortened,
       (SELECT count(pg_notify(current_schema() || '.river_insert', jsonb_build_object('queue', q.name)::text))
        FROM unnest($1::text[]) AS q (name)
        WHERE EXISTS (SELECT FROM river_job WHERE state = 'available') AND count_jobs(q.name, 'available', 1) > 0) AS woken`
	return One(ctx, db, "read the database's clock", pgx.RowToStructByName[ClockReading], sql, queues)
}

// newestEvent is the server's time of the newest stored event; NULL: there is none.
const newestEvent = `(SELECT max(s.last_event_at) FROM streams AS s)`

// EarliestTime returns the earliest of the process's time, the database's time and
// the server's time of the newest stored event. Anything due by this time is due
// even if one of the clocks is ahead.
func EarliestTime(ctx context.Context, db DB, now time.Time) (time.Time, error) {
	const sql = `SELECT least($1::timestamptz, clock_timestamp(), ` + newestEvent + `)`
	return One(ctx, db, "compare the clocks", pgx.RowTo[time.Time], sql, now)
}

// LatestTime returns the later of the process's time and the database's time. A
// record with a later date is dated wrongly, even if one of the clocks is behind.
func LatestTime(ctx context.Context, db DB, now time.Time) (time.Time, error) {
	return One(ctx, db, "compare the clocks", pgx.RowTo[time.Time], `SELECT greatest($1::timestamptz, clock_timestamp())`, now)
}

// MaxServerAhead limits how far a server's clock may be ahead of ours.
const MaxServerAhead = 24 * time.Hour

// ServerTime returns the later of our time and a server's time, at most a day ahead
// of ours. It helps if the clocks of both the process and the database are behind.
func ServerTime(now, server time.Time) time.Time {
	if most := now.Add(MaxServerAhead); server.After(most) {
		return most
	}
	if server.After(now) {
		return server
	}
	return now
}

// RepairJobSchedule corrects unfinished jobs that are dated in the future because the database's
// clock was set back. An available job becomes due now. A retryable or scheduled job waits at most
// as long as its original delay. back is how far the clock was just set back, or 0. It reads all
// unfinished jobs, and returns how many it changed, at most 10,000.
func RepairJobSchedule(ctx context.Context, db DB, back time.Duration) (int, error) {
	// River sets created_at and attempted_at by the database's clock. If one of them is in the
	// future, all dates of the job are late by the same amount. River's scheduler makes jobs
	// available five seconds before they are due. A job may have begun before the clock was ahead
	// and failed before a worker noticed that the clock was right again; it is only retried too
	// late. Among the jobs that wait for longer than the step, such a job looks like any other:
	// these are retried earlier than planned, which does no harm. A job that was to be retried at
	// once waits a little less, because some time has passed since the step.
	const sql = `
WITH late AS (
    SELECT id, CASE WHEN created_at > now() OR attempted_at > now() THEN greatest(created_at, attempted_at) - now() ELSE $1 END AS by
    FROM river_job
    WHERE state IN ` + UnfinishedStates + `
      AND (created_at > now() + interval '1 second' OR attempted_at > now() + interval '1 second'
           OR state = 'available' AND scheduled_at > now() + interval '10 seconds'
           OR state IN ('retryable', 'scheduled') AND attempted_at IS NOT NULL AND $1 > interval '0'
              AND scheduled_at >= now() + $1 - least($1 / 2, interval '1 minute'))
    LIMIT 10000
    FOR UPDATE SKIP LOCKED
)
UPDATE river_job AS j
SET created_at   = least(j.created_at, now()),
    attempted_at = CASE WHEN j.attempted_at > now() THEN now() ELSE j.attempted_at END,
    scheduled_at = CASE j.state WHEN 'available' THEN least(j.scheduled_at, now()) ELSE j.scheduled_at - l.by END
FROM late AS l
WHERE j.id = l.id`
	return Change(ctx, db, "repair the schedule of jobs", sql, back)
}
