package workers

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// RunProjection adds a projection's jobs for all stored records, in the order of
// their keys. Projecting a record twice changes nothing.
type RunProjection struct {
	river.WorkerDefaults[jobs.RunProjection]
	pool        *pgxpool.Pool
	log         *slog.Logger
	projections *Projections
	records     int // per job
	patience    time.Duration
}

// Work reads all records of the projection's collections.
func (w *RunProjection) Work(ctx context.Context, job *river.Job[jobs.RunProjection]) error {
	p, err := w.projections.named(job.Args.Name)
	if err != nil {
		return err
	}
	pages := paging{pool: w.pool, queue: p.row.Queue, priority: pagePriority, patience: w.patience}
	end, err := enqueuePages(ctx, pages, job, func(ctx context.Context, tx pgx.Tx, at *pagePlace) (river.JobArgs, error) {
		keys, err := schema.RecordsAfter(ctx, tx, &p.row, schema.Key(at.After), w.records)
		if err != nil || len(keys) == 0 {
			return nil, err
		}
		*at = pagePlace{After: jobs.Record(keys[len(keys)-1]), Count: at.Count + len(keys)}
		return p.Job(jobs.Batch{Records: p.of(keys)}), nil
	})
	if err == nil {
		jobLog(ctx, w.log).Info("projection_enqueued", "projection", p.Name, "records", end.Count)
	}
	return err
}
