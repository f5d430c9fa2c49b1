package app

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/recovery"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Rebuild configures how an archive is read into a database.
type Rebuild struct {
	PerSecond int                                     // records at most; 0: as fast as possible
	Progress  func(done, all int, m archive.Manifest) // called after each segment
}

// RebuildDatabase reads the archive into an empty database, and processes the jobs that result.
func (p App) RebuildDatabase(ctx context.Context, how Rebuild) error {
	r, err := p.rebuilds(how)
	if err != nil {
		return err
	}
	queue, err := workers.Queue(p.pool, p.log)
	if err == nil {
		r.Enqueue = p.projections.Enqueue(queue, "")
		err = r.Prepare(ctx)
	}
	if err == nil {
		err = p.register(ctx)
	}
	if err != nil {
		return err
	}
	// There is no leader during a rebuild, so only this releases jobs that a killed
	// rebuild left running.
	if err := schema.ReleaseJobs(ctx, p.pool, 0, p.projections.Kinds()...); err != nil {
		return err
	}
	return p.processing(ctx, r.Database)
}

// RebuildSeen records the events of the archive as known, if a server may still send them again.
func (p App) RebuildSeen(ctx context.Context, how Rebuild) error {
	r, err := p.rebuilds(how)
	if err != nil {
		return err
	}
	return r.Seen(ctx)
}

// rebuilds returns how the archive is read into the database.
func (p App) rebuilds(how Rebuild) (r recovery.Rebuild, err error) {
	store, err := p.cfg.OpenArchive()
	if err != nil {
		return r, err
	}
	keep, err := p.retention()
	if err != nil {
		return r, err
	}
	scope, _ := p.cfg.archiveScope() // ReadConfig has checked it
	return recovery.Rebuild{
		Source: p.archived(store), Pool: p.pool, Scope: scope, Remember: keep.Tombstones, Projections: p.projections, Stores: p.stored.Stores,
		Consume: p.consumeArchived, Finish: p.finishRebuild, PerSecond: how.PerSecond, Progress: how.Progress,
	}, nil
}

// consumeArchived commits the records of a segment.
func (p App) consumeArchived(ctx context.Context, cfg consumer.Config) error {
	cfg.Stream, cfg.Wire, cfg.IgnorePosition, cfg.BlockOnFullBuffer = p.cfg.Stream+"-rebuild", schema.WireRecording, true, true
	cfg.BatchEvents, cfg.BatchInterval, cfg.BufferBytes, cfg.LeaseTTL = p.cfg.BatchEvents, p.cfg.BatchInterval, min(p.cfg.BufferBytes, 8<<20), p.cfg.LeaseTTL
	c, err := p.consumer(cfg)
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	return errors.Join(err, schema.DropRecording(dropping, p.pool, cfg.Stream))
}

// finishRebuild waits for the workers, and restores the tables of features. Links can be merged once the
// workers have stored them.
func (p App) finishRebuild(ctx context.Context, rows func(table string) []json.RawMessage) error {
	if err := p.drained(ctx); err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	// No periodic job runs during a rebuild.
	b := workers.NewBundle(workers.Config{Pool: p.pool, Projections: p.projections, Collections: p.stored, Logger: p.log})
	for _, rebuilt := range p.parts.rebuilt {
		if err := rebuilt(ctx, b); err != nil {
			return err
		}
	}
	for _, table := range p.parts.Snapshots {
		if err := table.Restore(ctx, p.pool, rows(table.Name)); err != nil {
			return err
		}
	}
	return nil
}
