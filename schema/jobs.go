package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Unfinished counts jobs that are not done.
type Unfinished struct {
	Ready   int // at work, or could be at once
	Waiting int // for another try
}

// UnfinishedJobs counts the jobs of a kind that are not done.
func UnfinishedJobs(ctx context.Context, db DB, kind string) (Unfinished, error) {
	const sql = `
SELECT count(*) FILTER (WHERE state IN ('available', 'pending', 'running')) AS ready,
       count(*) FILTER (WHERE state IN ('retryable', 'scheduled'))          AS waiting
FROM river_job
WHERE kind = $1 AND state IN ('available', 'pending', 'running', 'retryable', 'scheduled')`
	rows, err := db.Query(ctx, sql, kind)
	if err != nil {
		return Unfinished{}, fmt.Errorf("count unfinished jobs: %w", err)
	}
	jobs, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[Unfinished])
	if err != nil {
		return Unfinished{}, fmt.Errorf("count unfinished jobs: %w", err)
	}
	return jobs, nil
}
