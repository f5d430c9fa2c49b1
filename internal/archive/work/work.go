// Package work is the archive as a feature. Its workers seal what the commits have stored into segments, copy these
// to the store, and rewrite them without what must be forgotten.
package work

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/workers"
)

// Add adds the archive's workers, its queues, and what adds its jobs.
func Add(b workers.Bundle, cfg Config) error {
	if cfg.Store != nil {
		cfg = cfg.withDefaults()
	}
	cfg.timeout = b.RescueAfter()
	workers.Add(b, &SealSegment{pool: b.Pool(), archive: cfg})
	workers.Add(b, &SyncSegment{pool: b.Pool(), archive: cfg})
	workers.Add(b, &SnapshotArchive{pool: b.Pool(), tables: cfg.Snapshots})
	workers.Add(b, &ForgetSegment{pool: b.Pool(), log: b.Log(), archive: cfg})
	workers.Add(b, &ListForgotten{pool: b.Pool(), archive: cfg})
	workers.Add(b, &SweepArchive{pool: b.Pool(), log: b.Log(), archive: cfg, now: time.Now})
	if cfg.Store == nil {
		return nil
	}
	b.Queue(queueArchive, 2) // one job may seal while the other waits for the store
	b.Run(func(ctx context.Context, client *river.Client[pgx.Tx]) {
		(&archiver{pool: b.Pool(), log: b.Log(), client: client, archive: cfg}).run(ctx)
	})
	return nil
}
