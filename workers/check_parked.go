package workers

import (
	"context"
	"fmt"
	"time"

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

	// looked, if not nil, is called after the last look. A test parks a record in it.
	looked func()
}

// Work looks for all targets that are due. What was looked for often enough is asked
// for at the servers of its accounts. At its end the job for the next look is added.
func (w *CheckParked) Work(ctx context.Context, job *river.Job[jobs.CheckParked]) error {
	for more := true; more; {
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			looks, rest, err := verdict.LookForParked(ctx, tx, pageRecords)
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
				if err := enqueueDependents(ctx, tx, known); err != nil {
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
		// A process that ran with another configuration may have returned a job to a queue that is gone.
		if _, err := schema.MoveStranded(ctx, w.pool); err != nil {
			return err
		}
		// A job that somebody cancelled leaves nothing behind.
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			asked, err := verdict.Asked(ctx, tx, pageRecords)
			if err != nil {
				return err
			}
			return w.ask(ctx, tx, asked)
		})
		if err != nil {
			return err
		}
	}
	if w.looked != nil {
		w.looked()
	}
	_, err := completeIdle(ctx, w.pool, job, func(ctx context.Context, tx pgx.Tx) (bool, error) {
		return true, w.lookAgain(ctx, tx, job.Args.Due)
	})
	return err
}

// lookAgain adds the job for the next look, if anything waits, of a later second than this
// job is of: another of its own second would not be added. What became due since this job
// looked, or was locked then, is looked for in a second.
func (w *CheckParked) lookAgain(ctx context.Context, tx pgx.Tx, due int64) error {
	next, err := verdict.NextLook(ctx, tx)
	if err != nil || next == nil {
		return err
	}
	return insertCheck(ctx, tx, max(next.Unix(), time.Now().Unix(), due)+1)
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
