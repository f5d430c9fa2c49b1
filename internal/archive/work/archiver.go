package work

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

const (
	archiveInterval = 5 * time.Second
	archiveSweeps   = time.Hour
)

// archiver adds the jobs of the archive. It runs in every process that has an archive.
// It does not run in the leader, which may have none. The jobs are unique.
type archiver struct {
	pool    *pgxpool.Pool
	log     *slog.Logger
	client  *river.Client[pgx.Tx]
	archive Config
	swept   time.Time
	snapped time.Time // when the last snapshot_archive job was added
}

// run adds jobs until ctx ends.
func (a *archiver) run(ctx context.Context) {
	for {
		if err := a.enqueue(ctx); err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
			a.log.Error("archive_enqueue_failed", "error", err)
		}
		if retry.Sleep(ctx, archiveInterval) != nil {
			return
		}
	}
}

// enqueue adds the jobs that are due.
func (a *archiver) enqueue(ctx context.Context) error {
	var due []river.InsertManyParams
	if time.Since(a.swept) >= archiveSweeps {
		due = append(due, river.InsertManyParams{Args: SweepArchiveArgs{}})
	}
	if time.Since(a.snapped) >= a.archive.Age {
		due = append(due, river.InsertManyParams{Args: SnapshotArchiveArgs{}})
	}
	streams, err := catalog.DueStreams(ctx, a.pool, a.archive.Bytes, a.archive.Age)
	if err != nil {
		return err
	}
	for _, s := range streams {
		due = append(due, river.InsertManyParams{Args: SealSegmentArgs{Stream: s.Stream, Wire: s.Wire}})
	}
	segments, err := catalog.UnsyncedSegments(ctx, a.pool)
	if err != nil {
		return err
	}
	for _, number := range segments {
		due = append(due, river.InsertManyParams{Args: SyncSegmentArgs{Segment: number}})
	}
	if due, err = a.toForget(ctx, due); err != nil {
		return err
	}
	if len(due) == 0 {
		return nil
	}
	if _, err := a.client.InsertMany(ctx, due); err != nil {
		return err
	}
	if time.Since(a.swept) >= archiveSweeps {
		a.swept = time.Now()
	}
	if time.Since(a.snapped) >= a.archive.Age {
		a.snapped = time.Now()
	}
	return nil
}

// forgottenAtOnce limits how many jobs wait to compare segments with the data to forget.
const forgottenAtOnce = 50

// toForget adds the jobs that list forgotten accounts, and those that rewrite segments
// without them.
func (a *archiver) toForget(ctx context.Context, due []river.InsertManyParams) ([]river.InsertManyParams, error) {
	unlisted, err := catalog.UnlistedAccounts(ctx, a.pool, 1)
	if err != nil {
		return due, err
	}
	if len(unlisted) > 0 {
		due = append(due, river.InsertManyParams{Args: ListForgottenArgs{}})
	}
	if a.archive.Strip == nil {
		return due, nil
	}
	segments, err := catalog.SegmentsToForget(ctx, a.pool, a.archive.Forget, forgottenAtOnce)
	for _, number := range segments {
		due = append(due, river.InsertManyParams{Args: ForgetSegmentArgs{Segment: number}})
	}
	return due, err
}
