package work

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/clickhouse"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Index is the destination to which the events of the archive's segments are copied.
type Index struct {
	ClickHouse *clickhouse.Index
	// Rows returns the events of a segment.
	Rows func(archive.Manifest, *archive.Segment) ([]clickhouse.Row, error)
}

// indexedAtOnce limits how many jobs wait for ClickHouse.
const indexedAtOnce = 50

// IndexSegment copies the events of a segment into ClickHouse.
type IndexSegment struct {
	river.WorkerDefaults[jobs.IndexSegment]
	pool    *pgxpool.Pool
	archive Config
}

// Timeout limits a run.
func (w *IndexSegment) Timeout(*river.Job[jobs.IndexSegment]) time.Duration { return w.archive.timeout }

// Work stores the events, unless ClickHouse has them. However the job ends, and however
// many processes run it, each event is stored once: see clickhouse.Index.Put.
func (w *IndexSegment) Work(ctx context.Context, job *river.Job[jobs.IndexSegment]) error {
	m, generation, err := catalog.UnindexedSegment(ctx, w.pool, job.Args.Segment)
	if errors.Is(err, schema.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	err = w.store(ctx, m, generation)
	if unsettled, ok := errors.AsType[*clickhouse.Unsettled](err); ok {
		return workers.Snooze(unsettled.Wait)
	}
	// The row has the error already. For a server that is away for a day, another error per
	// attempt and a new job after the last attempt would add thousands of each.
	if errors.Is(err, clickhouse.ErrAway) && len(job.Errors) > 0 {
		return workers.Snooze(awayWait)
	}
	return err
}

// awayWait is how long a job waits after its server was away twice.
const awayWait = 30 * time.Second

// store stores the events of a segment.
func (w *IndexSegment) store(ctx context.Context, m archive.Manifest, generation int) error {
	index := w.archive.Index
	if err := index.ClickHouse.Create(ctx); err != nil { // first, because a server that is away then costs nothing else
		return err
	}
	segment, err := archive.FetchSegment(ctx, w.archive.Store, m) // this version: another one has other rows
	if err != nil {
		return err
	}
	rows, err := index.Rows(m, segment)
	if err != nil {
		return err
	}
	return index.ClickHouse.Put(ctx, clickhouse.Segment{Number: m.Number, Version: m.Rewritten, SHA256: m.SHA256, Generation: generation, Rows: rows}, catalog.IndexMarks{DB: w.pool})
}
