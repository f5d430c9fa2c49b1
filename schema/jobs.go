package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// unfinished are the states of a job that is still to do something, as River
// spells them.
const unfinished = `('available', 'pending', 'retryable', 'running', 'scheduled')`

// Unfinished counts jobs that are not done.
type Unfinished struct {
	Ready   int // at work, or could be at once
	Waiting int // for another try
}

// UnfinishedJobs counts the jobs of some kinds that are not done.
func UnfinishedJobs(ctx context.Context, db DB, kinds ...string) (Unfinished, error) {
	const sql = `
SELECT count(*) FILTER (WHERE state IN ('available', 'pending', 'running')) AS ready,
       count(*) FILTER (WHERE state IN ('retryable', 'scheduled'))          AS waiting
FROM river_job
WHERE kind = ANY ($1) AND state IN ` + unfinished
	return one(ctx, db, "count unfinished jobs", pgx.RowToStructByName[Unfinished], sql, kinds)
}
