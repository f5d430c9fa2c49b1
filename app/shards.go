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
)

// shards are the consumers of this process: of WEIR_STREAM and of every shard with
// accounts. A consumer waits while another process holds its lease.
type shards struct {
	App
	start func(schema.Shard) (*shard, error)

	mu         sync.Mutex // held from reading the accounts until they are applied, so that the latest reading is applied last
	running    map[string]*shard
	heartbeats sync.Map // by stream: the consumer's LastHeartbeat, a func() time.Time
}

// shard is the consumer of one stream.
type shard struct {
	follows follows
	source  consumer.Source
	stop    func()
}

// Consume reads the streams until ctx ends.
func (p App) Consume(ctx context.Context) error {
	for _, step := range []func(context.Context) error{p.firstWatches, p.setSharding} {
		if err := p.retryTransient(ctx, step); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	all := &shards{App: p, running: map[string]*shard{}}
	all.start = func(now schema.Shard) (*shard, error) { return all.consumeOne(ctx, g, now) }
	p.liveness.add(RoleConsumer, checkHeartbeat(all.lastHeartbeat))
	g.Go(func() error {
		if err := p.retryTransient(ctx, all.refresh); err != nil { // an error that is not transient ends the start
			return err
		}
		return all.watchFollows(ctx)
	})
	return g.Wait()
}

// retryTransient repeats a step of the start while the database is away: a lost
// connection must not end the process.
func (p App) retryTransient(ctx context.Context, step func(context.Context) error) error {
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
	if sourceCapabilities().Accounts == 0 { // every shard would read everything
		mode = schema.ShardsNetwork
	}
	return schema.SetSharding(ctx, p.pool, p.cfg.Stream, sourceCapabilities().Wire.Name, schema.Sharding{Mode: mode, Accounts: p.cfg.ShardAccounts})
}

// watchFollows updates the accounts of the streams after every change, until ctx
// ends.
func (s *shards) watchFollows(ctx context.Context) error {
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

// refresh assigns accounts to streams, starts and stops consumers, and updates
// their filters.
func (s *shards) refresh(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	all, err := s.shareAccounts(ctx)
	if errors.Is(err, schema.ErrNoRows) { // the stream's row was deleted
		if err = s.setSharding(ctx); err == nil {
			all, err = s.shareAccounts(ctx)
		}
	}
	if err != nil {
		return err
	}
	gone := map[string]bool{}
	for name := range s.running {
		gone[name] = true
	}
	var updates errgroup.Group // a stalled server delays only its own stream
	for _, now := range all {
		delete(gone, now.Stream)
		one := s.running[now.Stream]
		if one == nil {
			if one, err = s.start(now); err != nil {
				return errors.Join(err, updates.Wait())
			}
			s.running[now.Stream] = one
			s.log.Info("stream_followed", "stream", now.Stream, "accounts", len(now.DIDs), "network", now.Network)
			continue
		}
		filter := one.follows.take(now, s.stored.Filter())
		if source, ok := one.source.(consumer.Filtered); ok {
			updates.Go(func() error { return source.SetFilter(ctx, filter) })
		}
	}
	for name := range gone {
		s.running[name].stop()
		delete(s.running, name)
		s.heartbeats.Delete(name)
		s.log.Info("stream_gone", "stream", name)
	}
	return updates.Wait()
}

// shareAccounts assigns the accounts to the stream and its shards.
func (s *shards) shareAccounts(ctx context.Context) (all []schema.Shard, err error) {
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		all, err = schema.AssignAccounts(ctx, tx, s.cfg.Stream, s.cfg.Start == "oldest")
		return err
	})
	return all, err
}

// consumeOne starts the consumer of one stream in g. It runs until it is stopped or
// ctx ends.
func (s *shards) consumeOne(ctx context.Context, g *errgroup.Group, now schema.Shard) (*shard, error) {
	one := &shard{}
	counts := prometheus.NewRegistry() // separate, so that a stopped stream's metrics disappear
	retention, err := s.retention()
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
		LeaseTTL: s.cfg.LeaseTTL, GapThreshold: s.cfg.GapThreshold, ResumeWithin: retention.Tombstones, Depth: s.depth, MaxDepth: s.cfg.QueueLimit, Registerer: counts,
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
	s.heartbeats.Store(now.Stream, c.LastHeartbeat)
	g.Go(func() error { return c.Run(ctx) })
	return one, nil
}

// lastHeartbeat returns the oldest heartbeat of the consumers.
func (s *shards) lastHeartbeat() time.Time {
	first := time.Time{}
	s.heartbeats.Range(func(_, heartbeat any) bool {
		if at := heartbeat.(func() time.Time)(); first.IsZero() || at.Before(first) {
			first = at
		}
		return true
	})
	return first
}
