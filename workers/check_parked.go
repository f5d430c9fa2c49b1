package workers

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/verdict"
)

// CheckParked looks for what parked records wait for. The arrival of a record releases
// what waits for it; these looks find what is missing for good.
type CheckParked struct {
	river.WorkerDefaults[jobs.CheckParked]
	pool *pgxpool.Pool
}

// Work looks for all targets that are due. What was looked for often enough is asked
// for at the servers of its accounts.
func (w *CheckParked) Work(ctx context.Context, job *river.Job[jobs.CheckParked]) error {
	for more := true; more; {
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			looks, next, rest, err := verdict.LookForParked(ctx, tx, pageRecords)
			if err != nil {
				return err
			}
			more = rest
			var known, last []schema.Key
			for _, l := range looks {
				switch {
				case l.Known:
					known = append(known, l.Key)
				case l.Last:
					last = append(last, l.Key)
				}
			}
			if len(known) > 0 {
				err = enqueueDependents(ctx, tx, known)
			}
			if err == nil && next != nil {
				err = enqueueCheck(ctx, tx, *next)
			}
			if err != nil {
				return err
			}
			return w.ask(ctx, tx, last)
		})
		if err != nil {
			return err
		}
	}
	if job.Args.Due != 0 {
		return nil
	}
	// A process that ran with another configuration may have returned a job to a queue that is gone.
	if _, err := schema.MoveStranded(ctx, w.pool); err != nil {
		return err
	}
	// A job that somebody cancelled leaves nothing behind.
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		asked, err := verdict.Asked(ctx, tx, pageRecords)
		if err != nil {
			return err
		}
		return w.ask(ctx, tx, asked)
	})
}

// ask adds the jobs that ask for records.
func (w *CheckParked) ask(ctx context.Context, tx pgx.Tx, keys []schema.Key) error {
	if len(keys) == 0 {
		return nil
	}
	params := make([]river.InsertManyParams, len(keys))
	for i, key := range keys {
		params[i].Args = jobs.FetchRecord{Record: jobs.Record(key)}
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertManyTx(ctx, tx, params); err != nil {
		return fmt.Errorf("enqueue the fetching of records: %w", err)
	}
	return nil
}
