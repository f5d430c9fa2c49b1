package lexicons

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// CheckParked looks for the records that parked records wait for. When such a record arrives, it
// releases the parked ones. CheckParked finds those that never arrive.
type CheckParked struct {
	river.WorkerDefaults[CheckParkedArgs]
	pool *pgxpool.Pool
}

// Work looks up all targets that are due. A target that was looked up often enough is requested
// from its account's server. At its end it adds the job for the next targets.
func (w *CheckParked) Work(ctx context.Context, job *river.Job[CheckParkedArgs]) error {
	for more := true; more; {
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			targets, rest, err := verdict.DueParked(ctx, tx, workers.PageRecords)
			if err != nil {
				return err
			}
			more = rest
			var found, last []schema.Key
			for _, l := range targets {
				switch {
				case l.Found:
					found = append(found, l.Key)
				case l.Last:
					last = append(last, l.Key)
				}
			}
			if len(found) > 0 {
				if err := enqueueDependents(ctx, tx, found); err != nil {
					return err
				}
			}
			return w.ask(ctx, tx, last)
		})
		if err != nil {
			return err
		}
	}
	if job.Args.Due == 0 {
		// A process with another configuration may have put a job into a queue that no longer
		// exists.
		if _, err := schema.MoveStranded(ctx, w.pool); err != nil {
			return err
		}
		// If somebody cancels the job, nothing is left behind.
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			asked, err := verdict.Asked(ctx, tx, workers.PageRecords)
			if err != nil {
				return err
			}
			return w.ask(ctx, tx, asked)
		})
		if err != nil {
			return err
		}
	}
	crashpoint.At(ctx, "release: no target is due")
	_, err := workers.CompleteIdle(ctx, w.pool, job, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return true, w.enqueueNext(ctx, tx, job.Args.Due)
	})
	return err
}

// enqueueNext adds the next job if records wait. Its second is later than this job's,
// because a job for the same second would not be added. Targets that became due since this job
// read them, or that were locked then, are looked up in a second.
func (w *CheckParked) enqueueNext(ctx context.Context, tx pgx.Tx, due int64) error {
	next, err := verdict.NextDue(ctx, tx)
	if err != nil || next == nil {
		return err
	}
	return insertCheck(ctx, tx, max(next.Unix(), time.Now().Unix(), due)+1)
}

// ask adds the jobs that request records from servers.
func (w *CheckParked) ask(ctx context.Context, tx pgx.Tx, keys []schema.Key) error {
	if len(keys) == 0 {
		return nil
	}
	params := make([]river.InsertManyParams, len(keys))
	for i, key := range keys {
		params[i].Args = FetchRecordArgs{Record: jobs.Record(key)}
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertManyTx(ctx, tx, params); err != nil {
		return fmt.Errorf("enqueue the fetching of records: %w", err)
	}
	return nil
}
