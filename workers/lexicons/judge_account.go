package lexicons

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// JudgeAccount makes Weir judge again the records that depend on an account's records,
// after the account was deleted or came back. The account's rows may be purged
// meanwhile, so it finds the dependent records by their own rows.
type JudgeAccount struct {
	river.WorkerDefaults[JudgeAccountArgs]
	pool     *pgxpool.Pool
	patience time.Duration
}

// Work adds a job for each page of the account's records that others depend on. A second
// run finds the records that have not been judged again yet.
func (w *JudgeAccount) Work(ctx context.Context, job *river.Job[JudgeAccountArgs]) error {
	pages := workers.Paging{Pool: w.pool, Queue: jobs.QueueProcess, Priority: dependentPriority, Patience: w.patience}
	_, err := workers.EnqueuePages(ctx, pages, job, func(ctx context.Context, tx pgx.Tx, at *workers.PagePlace) (river.JobArgs, error) {
		targets, err := verdict.TargetsOf(ctx, tx, job.Args.DID, schema.Key(at.After), workers.PageRecords)
		if err != nil || len(targets) == 0 {
			return nil, err
		}
		return JudgeDependentsArgs{Targets: at.Advance(targets)}, nil
	})
	return err
}
