package workers

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// RunProjection adds a projection's jobs for all stored records, in the order of
// their keys. Each job and the new position are committed in one transaction, so
// a killed worker continues where it stopped. Projecting a record twice changes
// nothing.
type RunProjection struct {
	river.WorkerDefaults[jobs.RunProjection]
	pool        *pgxpool.Pool
	log         *slog.Logger
	projections *Projections
	records     int           // per job
	patience    time.Duration // how long to run before the job yields to others; shorter than the job's timeout
}

const (
	runRecords  = 500
	runPriority = 4   // behind the jobs of the stream
	runAhead    = 100 // jobs that may wait in the queue; more would slow down the stream
)

// runPlace is the position in the records.
type runPlace struct {
	After jobs.Record `json:"after"`
	Count int         `json:"count"`
}

// Work reads all records of the projection's collections.
func (w *RunProjection) Work(ctx context.Context, job *river.Job[jobs.RunProjection]) error {
	p, err := w.projections.named(job.Args.Name)
	if err != nil {
		return err
	}
	return resumable(ctx, "records", func(ctx context.Context, at runPlace) error {
		for started := time.Now(); ; {
			if time.Since(started) > w.patience {
				return snooze(0)
			}
			depth, err := schema.DeepestQueue(ctx, w.pool, []string{p.row.Queue}, runAhead+1)
			if err != nil {
				return err
			}
			if depth > runAhead {
				return snooze(time.Second)
			}
			more, err := w.page(ctx, job, p, &at)
			if err != nil {
				return err
			}
			if !more {
				jobLog(ctx, w.log).Info("projection_enqueued", "projection", p.Name, "records", at.Count)
				return nil
			}
		}
	})
}

// page adds one job for the next records, and advances the position.
func (w *RunProjection) page(ctx context.Context, job *river.Job[jobs.RunProjection], p *projection, at *runPlace) (more bool, err error) {
	next := *at
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		keys, err := schema.RecordsAfter(ctx, tx, &p.row, schema.Key(at.After), w.records)
		if err != nil || len(keys) == 0 {
			return err
		}
		more = true
		next = runPlace{After: jobs.Record(keys[len(keys)-1]), Count: at.Count + len(keys)}
		args := p.Job(jobs.Batch{Records: p.of(keys)})
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, args, &river.InsertOpts{Queue: p.row.Queue, Priority: runPriority}); err != nil {
			return fmt.Errorf("enqueue %s: %w", args.Kind(), err)
		}
		_, err = river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, next)
		return err
	})
	if err == nil {
		*at = next
	}
	return more, err
}
