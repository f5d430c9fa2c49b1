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
	if err := p.register(ctx); err != nil {
		return err
	}
	if !work {
		return p.commitAll(ctx, name, lines)
	}
	return p.processing(ctx, func(ctx context.Context) error { return p.commitAll(ctx, name, lines) })
}

// processing calls commit and processes the jobs that result, until none is ready to run
// any more.
func (p App) processing(ctx context.Context, commit func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	g.Go(func() error {
		err := p.workers(working, workers.Config{ProcessOnly: true})
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

// dropTimeout limits the removal of the stream when an ingest ends.
const dropTimeout = 10 * time.Second

// commitAll commits every event of a recording and removes its stream afterwards.
// If it is killed, the next ingest takes over its row.
func (p App) commitAll(ctx context.Context, name string, lines io.Reader) error {
	stream := p.cfg.Stream + "-ingest"
	source := &recording.Source{Name: "recording:" + name, Lines: lines, Wire: jetstream.Wire(p.stored.Stores)}
	c, err := p.consumer(consumer.Config{
		Stream: stream, Wire: schema.WireRecording, Source: source, IgnorePosition: true, BlockOnFullBuffer: true,
		BatchEvents: p.cfg.BatchEvents, BatchInterval: p.cfg.BatchInterval, BufferBytes: min(p.cfg.BufferBytes, 8<<20), LeaseTTL: p.cfg.LeaseTTL,
		Registerer: p.metrics,
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	return errors.Join(err, schema.DropRecording(dropping, p.pool, stream))
}
