package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// unfinished lists the states of River's jobs that have not ended.
const unfinished = `('available', 'pending', 'retryable', 'running', 'scheduled')`

// Unfinished counts unfinished jobs.
type Unfinished struct {
	Ready   int // running, or ready to run
	Waiting int // for a retry, or scheduled
}

// UnfinishedJobs counts the unfinished jobs of some kinds.
func UnfinishedJobs(ctx context.Context, db DB, kinds ...string) (Unfinished, error) {
	const sql = `
SELECT count(*) FILTER (WHERE state IN ('available', 'pending', 'running')) AS ready,
       count(*) FILTER (WHERE state IN ('retryable', 'scheduled'))          AS waiting
FROM river_job
WHERE kind = ANY ($1) AND state IN ` + unfinished
	return One(ctx, db, "count unfinished jobs", pgx.RowToStructByName[Unfinished], sql, kinds)
}
