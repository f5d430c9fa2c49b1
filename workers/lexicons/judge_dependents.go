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

// JudgeDependents makes Weir judge again the records that depend on others, however many
// there are.
type JudgeDependents struct {
	river.WorkerDefaults[JudgeDependentsArgs]
	pool     *pgxpool.Pool
	patience time.Duration
}

// dependentPriority is lower than that of the stream's jobs, and higher than that of a
// revalidation.
const dependentPriority = 2

// Work processes the dependents of one target after the other. A page may contain
// dependents of several targets.
func (w *JudgeDependents) Work(ctx context.Context, job *river.Job[JudgeDependentsArgs]) error {
	pages := workers.Paging{Pool: w.pool, Queue: jobs.QueueProcess, Priority: dependentPriority, Patience: w.patience}
	_, err := workers.EnqueuePages(ctx, pages, job, func(ctx context.Context, tx pgx.Tx, at *workers.PagePlace) (river.JobArgs, error) {
		if err := verdict.UseIndexes(ctx, tx); err != nil {
			return nil, err
		}
		var keys []schema.Key
		for ; at.Part < len(job.Args.Targets); at.Part, at.After = at.Part+1, (jobs.Record{}) {
			found, err := verdict.Dependents(ctx, tx, schema.Key(job.Args.Targets[at.Part]), schema.Key(at.After), workers.PageRecords-len(keys))
			if err != nil {
				return nil, err
			}
			if keys = append(keys, found...); len(keys) == workers.PageRecords {
				break
			}
		}
		if len(keys) == 0 {
			return nil, nil
		}
		return JudgeRecordsArgs{Batch: jobs.Batch{Records: at.Advance(keys)}}, nil
	})
	return err
}
