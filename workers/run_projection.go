package workers

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// RunProjection adds a projection's jobs for all stored records, in key order, and
// deletes rows that should not exist. Projecting a record twice changes nothing.
type RunProjection struct {
	river.WorkerDefaults[jobs.RunProjection]
	Shared
	records int // per job
}

// Work reads all records of the projection's collections.
func (w *RunProjection) Work(ctx context.Context, job *river.Job[jobs.RunProjection]) error {
	p, err := projectionNamed(w.Projections, job.Args.Name)
	if err != nil {
		return err
	}
	pages := Paging{Pool: w.Pool, Queue: p.Queue, Priority: PagePriority, Patience: w.patience()}
	end, err := EnqueuePages(ctx, pages, job, func(ctx context.Context, tx pgx.Tx, at *PagePlace) (river.JobArgs, error) {
		keys, err := schema.RecordsAfter(ctx, tx, p, schema.Key(at.After), w.records)
		if err != nil || len(keys) == 0 {
			return nil, err
		}
		*at = PagePlace{After: jobs.Record(keys[len(keys)-1]), Count: at.Count + len(keys)}
		records, _ := p.Of(schema.NotFresh(keys))
		return p.Job(jobs.Batch{Records: records}), nil
	})
	if err != nil {
		return err
	}
	removed, err := w.removeStale(ctx, p)
	if err == nil && p.Rebuilt != nil {
		if _, err = river.ClientFromContext[pgx.Tx](ctx).Insert(ctx, p.Rebuilt, nil); err != nil {
			err = fmt.Errorf("enqueue %s: %w", p.Rebuilt.Kind(), err)
		}
	}
	if err == nil {
		JobLog(ctx, w.Logger).Info("projection_enqueued", "projection", p.Name, "records", end.Count, "stale", removed)
	}
	return err
}

// removeStale deletes the rows of records that no longer exist, or of collections that
// are no longer read. It is short, and a killed worker starts it again.
func (w *RunProjection) removeStale(ctx context.Context, p *schema.Projection) (removed int, err error) {
	for started := time.Now(); ; {
		if time.Since(started) > w.patience() {
			return removed, Snooze(0)
		}
		n, err := p.RemoveStale(ctx, w.Pool, w.records)
		if removed += n; err != nil || n < w.records {
			return removed, err
		}
	}
}
