// Package work is the archive as a feature. Its workers seal what the commits have stored into segments, copy these
// to the store, and rewrite them without what must be forgotten.
package work

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Config configures where and when segments are written.
type Config struct {
	Store    archive.Store // nil: this process writes none
	Spool    string        // a directory for segments that are not in the store yet; it may be lost
	Bytes    int64         // a segment is sealed at so many raw bytes
	Age      time.Duration // or when a record has waited for so long
	Remember time.Duration // how long a server may send an event again
	Forget   time.Duration // how often a segment is compared with the data to forget, and rewritten if necessary
	// Strip returns the function that reads the records of a segment for that, for one
	// goroutine.
	Strip func(archive.Manifest) (archive.Strip, error)

	Snapshots []schema.SnapshotTable // tables of features that the archive has as snapshots

	timeout time.Duration // of a job, and how long a killed process's job stays "running"
}

// worker has what the jobs that use the store need.
type worker[T river.JobArgs] struct {
	river.WorkerDefaults[T]
	pool    *pgxpool.Pool
	log     *slog.Logger
	archive Config
}

// Timeout limits a run: a store may be slow.
func (w *worker[T]) Timeout(*river.Job[T]) time.Duration { return w.archive.timeout }

// workerOf returns a worker's part that is the same for all.
func workerOf[T river.JobArgs](pool *pgxpool.Pool, log *slog.Logger, cfg Config) worker[T] {
	return worker[T]{pool: pool, log: log, archive: cfg}
}

// Add adds the archive's workers, its queues, and what adds its jobs.
func Add(b workers.Bundle, cfg Config) error {
	cfg.timeout = b.RescueAfter
	workers.Add(b, &SealSegment{workerOf[SealSegmentArgs](b.Pool, b.Logger, cfg)})
	workers.Add(b, &SyncSegment{workerOf[SyncSegmentArgs](b.Pool, b.Logger, cfg)})
	workers.Add(b, &SnapshotArchive{pool: b.Pool, tables: cfg.Snapshots})
	workers.Add(b, &ForgetSegment{workerOf[ForgetSegmentArgs](b.Pool, b.Logger, cfg)})
	workers.Add(b, &ListForgotten{workerOf[ListForgottenArgs](b.Pool, b.Logger, cfg)})
	workers.Add(b, &SweepArchive{workerOf[SweepArchiveArgs](b.Pool, b.Logger, cfg), time.Now})
	if cfg.Store == nil {
		return nil
	}
	b.Queue(queueArchive, 2) // one job may seal while the other waits for the store
	b.Run(func(ctx context.Context, client *river.Client[pgx.Tx]) {
		(&archiver{pool: b.Pool, log: b.Logger, client: client, archive: cfg}).run(ctx)
	})
	return nil
}
