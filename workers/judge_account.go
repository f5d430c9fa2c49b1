package workers

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/verdict"
)

// JudgeAccount has the records judged again that depend on the records of an account,
// after the account was deleted or came back. Their rows may be purged meanwhile: what
// refers to them is found by its own rows.
type JudgeAccount struct {
	river.WorkerDefaults[jobs.JudgeAccount]
	pool     *pgxpool.Pool
	patience time.Duration
}

// Work adds a job for each page of the account's records that others depend on. A second
// run finds those that still do not know it.
func (w *JudgeAccount) Work(ctx context.Context, job *river.Job[jobs.JudgeAccount]) error {
	pages := paging{pool: w.pool, queue: jobs.QueueProcess, priority: dependentPriority, patience: w.patience}
	_, err := enqueuePages(ctx, pages, job, func(ctx context.Context, tx pgx.Tx, at *pagePlace) (river.JobArgs, error) {
		targets, err := verdict.TargetsOf(ctx, tx, job.Args.DID, schema.Key(at.After), pageRecords)
		if err != nil || len(targets) == 0 {
			return nil, err
		}
		return jobs.JudgeDependents{Targets: at.advance(targets)}, nil
	})
	return err
}
