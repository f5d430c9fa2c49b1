package clickhouse

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// queueIndex is processed only by processes with WEIR_CLICKHOUSE.
const queueIndex = "index"

// IndexSegmentArgs copies the events of a segment into ClickHouse. There is one unfinished
// job per segment. It has few attempts: another job is added while the segment is not
// indexed.
type IndexSegmentArgs struct {
	Segment int64 `json:"segment" river:"unique"`
}

// Kind names the job.
func (IndexSegmentArgs) Kind() string { return "index_segment" }

// InsertOpts are the defaults of its inserts.
func (IndexSegmentArgs) InsertOpts() river.InsertOpts {
	opts := jobs.Periodic(queueIndex, 1, 3)
	opts.UniqueOpts.ByArgs = true
	return opts
}

const (
	indexInterval = 5 * time.Second
	indexedAtOnce = 50 // jobs at most that wait for ClickHouse
)

// add adds the worker and, with a server, its queue and what adds its jobs.
func (w *IndexSegment) add(b workers.Bundle) error {
	w.pool, w.timeout = b.Pool, b.RescueAfter
	workers.Add(b, w)
	if w.index == nil {
		return nil
	}
	b.Queue(queueIndex, 1) // a segment is in memory twice, as rows and as a block
	b.Run(func(ctx context.Context, client *river.Client[pgx.Tx]) {
		for {
			if err := w.enqueue(ctx, client); err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
				b.Logger.Error("index_enqueue_failed", "error", err)
			}
			if retry.Sleep(ctx, indexInterval) != nil {
				return
			}
		}
	})
	return nil
}

// enqueue adds the jobs of the first segments that ClickHouse lacks. They are unique.
func (w *IndexSegment) enqueue(ctx context.Context, client *river.Client[pgx.Tx]) error {
	segments, err := unindexedSegments(ctx, w.pool, indexedAtOnce)
	if err != nil || len(segments) == 0 {
		return err
	}
	var due []river.InsertManyParams
	for _, number := range segments {
		due = append(due, river.InsertManyParams{Args: IndexSegmentArgs{Segment: number}})
	}
	_, err = client.InsertMany(ctx, due)
	return err
}

// IndexSegment copies the events of a segment into ClickHouse.
type IndexSegment struct {
	river.WorkerDefaults[IndexSegmentArgs]
	pool    *pgxpool.Pool
	store   archive.Store
	index   *Index // nil: there is none
	rows    func(archive.Manifest, *archive.Segment) ([]Row, error)
	timeout time.Duration // of a job, and how long a killed process's job stays "running"
}

// Timeout limits a run.
func (w *IndexSegment) Timeout(*river.Job[IndexSegmentArgs]) time.Duration { return w.timeout }

// Work stores the events, unless ClickHouse has them. However the job ends, and however
// many processes run it, each event is stored once: see Index.Put.
func (w *IndexSegment) Work(ctx context.Context, job *river.Job[IndexSegmentArgs]) error {
	m, generation, err := unindexedSegment(ctx, w.pool, job.Args.Segment)
	if errors.Is(err, schema.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	err = w.copy(ctx, m, generation)
	if unsettled, ok := errors.AsType[*Unsettled](err); ok {
		return workers.Snooze(unsettled.Wait)
	}
	// The row has the error already. For a server that is away for a day, another error per
	// attempt and a new job after the last attempt would add thousands of each.
	if errors.Is(err, ErrAway) && len(job.Errors) > 0 {
		return workers.Snooze(awayWait)
	}
	return err
}

// awayWait is how long a job waits after its server was away twice.
const awayWait = 30 * time.Second

// copy stores the events of a segment.
func (w *IndexSegment) copy(ctx context.Context, m archive.Manifest, generation int) error {
	if err := w.index.Create(ctx); err != nil { // first, because a server that is away then costs nothing else
		return err
	}
	segment, err := archive.FetchSegment(ctx, w.store, m) // this version: another one has other rows
	if err != nil {
		return err
	}
	rows, err := w.rows(m, segment)
	if err != nil {
		return err
	}
	return w.index.Put(ctx, Segment{
		Number: m.Number, Version: m.Rewritten, SHA256: m.SHA256, Generation: generation, Rows: rows,
	}, marks{DB: w.pool})
}
