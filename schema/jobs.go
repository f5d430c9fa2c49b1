package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// UnfinishedStates lists the states of River's jobs that have not ended.
const UnfinishedStates = `('available', 'pending', 'retryable', 'running', 'scheduled')`

// Unfinished counts unfinished jobs.
type Unfinished struct {
	Ready   int // running, or ready to run
	Waiting int // waiting for a retry, or scheduled
}

// UnfinishedJobs counts the unfinished jobs of some kinds.
func UnfinishedJobs(ctx context.Context, db DB, kinds ...string) (Unfinished, error) {
	const sql = `
SELECT count(*) FILTER (WHERE state IN ('available', 'pending', 'running')) AS ready,
       count(*) FILTER (WHERE state IN ('retryable', 'scheduled'))          AS waiting
FROM river_job
WHERE kind = ANY ($1) AND state IN ` + UnfinishedStates
	return One(ctx, db, "count unfinished jobs", pgx.RowToStructByName[Unfinished], sql, kinds)
}

// ReleaseJobs makes jobs of some kinds available again that have been running for longer
// than a duration, on the assumption that the process that ran them was killed. If a job
// is still running, it runs twice, which changes nothing.
func ReleaseJobs(ctx context.Context, db DB, longer time.Duration, kinds ...string) error {
	const sql = `
UPDATE river_job SET state = 'available', scheduled_at = now()
WHERE kind = ANY ($1) AND state = 'running' AND attempted_at <= clock_timestamp() - $2::interval`
	return Exec(ctx, db, "release the jobs of a killed process", sql, kinds, longer)
}
