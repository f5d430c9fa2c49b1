package app

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// shards are the consumers of this process: of WEIR_STREAM, and of every shard
// that has accounts. Whether another process holds their lease, they find out.
type shards struct {
	App
	start func(schema.Shard) (*shard, error)

	mu      sync.Mutex // held from a reading of the accounts to its effect: the later reading is the last to have one
	running map[string]*shard
	beats   sync.Map // of func() time.Time, by stream: when each consumer was last seen at work
}

// shard is one of them.
type shard struct {
	follows follows
	source  consumer.Source
	stop    func()
}

// Consume reads the streams until ctx ends.
func (p App) Consume(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.firstWatches, p.setSharding} {
		if err := p.outlast(ctx, step); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	all := &shards{App: p, running: map[string]*shard{}}
	all.start = func(now schema.Shard) (*shard, error) { return all.consumeOne(ctx, g, now) }
	p.life.tell(PartConsumer, beaten(all.lastBeat))
	g.Go(func() error {
		if err := p.outlast(ctx, all.refresh); err != nil { // what a person has to correct ends the start
			return err
		}
		return all.keep(ctx)
	})
	return g.Wait()
}

// outlast repeats a step of the start while the database is away: a connection
// that breaks then is no reason to end the process.
func (p App) outlast(ctx context.Context, step func(context.Context) error) error {
	for {
		err := step(ctx)
		if err == nil || schema.Classify(err) != schema.Transient {
			return err
		}
		p.log.Warn("start_waits_for_database", "error", err)
		if !pause(ctx, time.Second) {
			return nil
		}
	}
}

func (p App) setSharding(ctx context.Context) error {
	mode := p.cfg.Sharding
	if sourceCapabilities.Accounts == 0 { // every stream would bring everything
		mode = schema.ShardsNetwork
	}
	return schema.SetSharding(ctx, p.pool, p.cfg.Stream, sourceCapabilities.Wire.Name, schema.Sharding{Mode: mode, Accounts: p.cfg.ShardAccounts})
}

// keep has the streams follow whom the database says, from every change on,
// until ctx ends.
func (s *shards) keep(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.listen(ctx, s.refresh)
		if ctx.Err() != nil {
			return nil
		}
		s.log.Warn("follow_refresh_failed", "error", err, "effect", "a change is seen after the database is back")
		pause(ctx, time.Second)
	}
	return nil
}

// refresh shares out the accounts, starts and stops consumers, and has each
// follow its accounts.
func (s *shards) refresh(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.shared(ctx)
	if errors.Is(err, schema.ErrNoRows) { // somebody deleted the stream's row
		if err = s.setSharding(ctx); err == nil {
			all, err = s.shared(ctx)
		}
	}
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for name := range s.running {
		gone[name] = true
	}
	var asking errgroup.Group // a server that stalls keeps only its own stream waiting
	for _, now := range all {
		delete(gone, now.Stream)
		one := s.running[now.Stream]
		if one == nil {
			if one, err = s.start(now); err != nil {
				return errors.Join(err, asking.Wait())
			}
			s.running[now.Stream] = one
			s.log.Info("stream_followed", "stream", now.Stream, "accounts", len(now.DIDs), "network", now.Network)
			continue
		}
		filter := one.follows.take(now, s.stored.Filter())
		if source, ok := one.source.(consumer.Filtered); ok {
			asking.Go(func() error { return source.SetFilter(ctx, filter) })
		}
	}
	for name := range gone {
		s.running[name].stop()
		delete(s.running, name)
		s.beats.Delete(name)
		s.log.Info("stream_gone", "stream", name)
	}
	return asking.Wait()
}

// shared shares out the accounts of the stream.
func (s *shards) shared(ctx context.Context) (all []schema.Shard, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		all, err = schema.AssignAccounts(ctx, tx, s.cfg.Stream, s.cfg.Start == "oldest")
		return err
	})
	return all, err
}

// consumeOne has one stream consumed in g, until it is stopped or ctx ends.
func (s *shards) consumeOne(ctx context.Context, g *errgroup.Group, now schema.Shard) (*shard, error) {
	one := &shard{}
	counts := prometheus.NewRegistry() // its own, so that its numbers end with it
	keep, err := workers.Retention{}.WithDefaults()
	if err != nil {
		return nil, err
	}
	one.source, err = s.App.source(one.follows.take(now, s.stored.Filter()), s.log.With("stream", now.Stream), counts)
	if err != nil {
		return nil, err
	}
	c, err := s.consumer(consumer.Config{
		Stream: now.Stream, Shard: now.Stream != s.cfg.Stream, Leased: s.refresh,
		Source: one.source, Follows: one.follows.includes,
		Start: s.cfg.start(), BatchEvents: s.cfg.BatchEvents, BatchInterval: s.cfg.BatchInterval, BufferBytes: s.cfg.BufferBytes,
		LeaseTTL: s.cfg.LeaseTTL, GapThreshold: s.cfg.GapThreshold, ResumeWithin: keep.Tombstones, Depth: s.depth, MaxDepth: s.cfg.QueueLimit, Registerer: counts,
	})
	if err != nil {
		return nil, err
	}
	named := prometheus.WrapRegistererWith(prometheus.Labels{"stream": now.Stream}, s.metrics)
	if err := named.Register(counts); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	one.stop = func() {
		cancel()
		named.Unregister(counts)
	}
	s.beats.Store(now.Stream, c.LastBeat)
	g.Go(func() error { return c.Run(ctx) })
	return one, nil
}

// lastBeat is when the consumer that has been silent for longest was last seen at
// work.
func (s *shards) lastBeat() time.Time {
	first := time.Time{}
	s.beats.Range(func(_, beat any) bool {
		if at := beat.(func() time.Time)(); first.IsZero() || at.Before(first) {
			first = at
		}
		return true
	})
	return first
}
