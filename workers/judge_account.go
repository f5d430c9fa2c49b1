package workers

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// JudgeAccount makes Weir judge again the records that depend on an account's records,
// after the account was deleted or came back. The account's rows may be purged
// meanwhile, so it finds the dependent records by their own rows.
type JudgeAccount struct {
	river.WorkerDefaults[jobs.JudgeAccount]
	pool     *pgxpool.Pool
	patience time.Duration
}

// Work adds a job for each page of the account's records that others depend on. A second
// run finds the records that have not been judged again yet.
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
