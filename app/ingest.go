package app

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Ingest commits every event of a recording and, with work, processes the jobs that result.
// It returns when no job is ready to run any more, or when ctx ends.
func (p App) Ingest(ctx context.Context, name string, lines io.Reader, work bool) error {
	commit := func(ctx context.Context) error {
		source := &recording.Source{Name: "recording:" + name, Lines: lines, Wire: jetstream.Wire(p.stored.Stores)}
		return p.Commit(ctx, "ingest", consumer.Config{Source: source, Registerer: p.metrics})
	}
	if work {
		return p.Processing(ctx, commit)
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	return commit(ctx)
}

// Processing calls commit and processes the jobs that result, until none is ready to run
// any more.
func (p App) Processing(ctx context.Context, commit func(context.Context) error) error {
	if err := p.register(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	g.Go(func() error {
		err := p.workers(working, workers.Config{Processing: workers.Processing{ProcessOnly: true}})
		if errors.Is(err, context.Canceled) && working.Err() != nil {
			return nil // it must not replace the error for which they were stopped
		}
		return err
	})
	g.Go(func() error {
		defer stop()
		if err := commit(ctx); err != nil {
			return err
		}
		return p.drained(ctx)
	})
	return g.Wait()
}

// drained waits until no job is running or ready to run. Jobs that a killed process left
// running are made available again here, because that process may have been the last one
// with a leader.
func (p App) drained(ctx context.Context) error {
	const margin = 5 * time.Second // for a process to end a job that has run for too long
	tick, release := time.NewTicker(50*time.Millisecond), time.NewTicker(time.Second)
	defer tick.Stop()
	defer release.Stop()
	for {
		left, err := schema.UnfinishedJobs(ctx, p.pool, p.projections.Kinds()...)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && left.Ready == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-release.C:
			if err := schema.ReleaseJobs(ctx, p.pool, p.cfg.JobTimeout+margin, p.projections.Kinds()...); err != nil && ctx.Err() == nil {
				return err
			}
		}
	}
}

// Rebuilt waits until no job is ready to run, and has the features complete what their projections made. No
// periodic job runs during a rebuild.
func (p App) Rebuilt(ctx context.Context) error {
	if err := p.drained(ctx); err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	shared := workers.Shared{Pool: p.pool, Logger: p.log, Collections: p.stored, Projections: p.projections} // others have the metrics
	b := workers.NewBundle(workers.Config{Shared: shared})
	for _, rebuilt := range p.parts.rebuilt {
		if err := rebuilt(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// dropTimeout limits the removal of the stream when Commit ends.
const dropTimeout = 10 * time.Second

// Commit commits all that a source has which ends, and removes its stream afterwards.
// If it is killed, the next one of that name takes over its row.
func (p App) Commit(ctx context.Context, name string, cfg consumer.Config) error {
	cfg.Stream, cfg.Wire, cfg.IgnorePosition, cfg.BlockOnFullBuffer = p.cfg.Stream+"-"+name, schema.WireRecording, true, true
	cfg.BatchEvents, cfg.BatchInterval, cfg.LeaseTTL = p.cfg.BatchEvents, p.cfg.BatchInterval, p.cfg.LeaseTTL
	cfg.BufferBytes = 8 << 20
	c, err := p.consumer(cfg)
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	return errors.Join(err, schema.DropRecording(dropping, p.pool, cfg.Stream))
}
