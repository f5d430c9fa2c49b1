package workers

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Paging adds jobs for a very large number of records, page by page, while few jobs
// wait in their queue. Each job and the new position are committed in one transaction,
// so a killed worker continues where it stopped.
type Paging struct {
	Pool     *pgxpool.Pool
	Queue    string
	Priority int
	Patience time.Duration // how long to run before the job yields to others; shorter than the job's timeout
}

const (
	PageRecords  = 500
	PagePriority = 4   // lower than that of the stream's jobs
	pagesAhead   = 100 // jobs that may wait in the queue; more would slow down the stream
)

// PagePlace is the position in the records.
type PagePlace struct {
	Part  int         `json:"part,omitempty"` // the current part, if the records have several
	After jobs.Record `json:"after"`
	Count int         `json:"count"`
}

// Advance moves the position past records, and returns them.
func (at *PagePlace) Advance(keys []schema.Key) []jobs.Record {
	at.After, at.Count = jobs.Record(keys[len(keys)-1]), at.Count+len(keys)
	records := make([]jobs.Record, len(keys))
	for i, key := range keys {
		records[i] = jobs.Record(key)
	}
	return records
}

// NextPage returns the job for the next records and advances the position. It returns
// nil at the end.
type NextPage func(ctx context.Context, tx pgx.Tx, at *PagePlace) (river.JobArgs, error)

// EnqueuePages adds the jobs of all pages, and returns the last position. If the job
// itself is in the queue that it fills, it adds a page before it waits: otherwise more
// than pagesAhead such jobs would wait for each other for ever.
func EnqueuePages[T river.JobArgs](ctx context.Context, p Paging, job *river.Job[T], next NextPage) (end PagePlace, err error) {
	err = Resumable(ctx, "records", func(ctx context.Context, at PagePlace) error {
		end = at
		for started := time.Now(); ; {
			if time.Since(started) > p.Patience {
				return Snooze(0)
			}
			depth, err := schema.DeepestQueue(ctx, p.Pool, []string{p.Queue}, pagesAhead+1)
			if err != nil {
				return err
			}
			if depth > pagesAhead && (job.Queue != p.Queue || end.Count > at.Count) {
				return Snooze(time.Second)
			}
			more := false
			to := end
			if err := pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
				args, err := next(ctx, tx, &to)
				if more = args != nil; err != nil || !more {
					return err
				}
				if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, args,
					&river.InsertOpts{Queue: p.Queue, Priority: p.Priority}); err != nil {
					return fmt.Errorf("enqueue %s: %w", args.Kind(), err)
				}
				crashpoint.At(ctx, "rebuild: before a page's end")
				_, err = river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, to)
				return err
			}); err != nil {
				return err
			}
			if !more {
				return nil
			}
			end = to
		}
	})
	return end, err
}
