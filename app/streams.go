package app

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

// streams are the streams that this process reads, one per source.
type streams struct {
	App
	all []*stream

	mu sync.Mutex // held while the accounts are read and applied, so that the latest reading is applied last
}

// stream is a source, the accounts to follow, and the consumer. The consumer waits
// while another process holds the lease of the stream.
type stream struct {
	configuredStream
	source   consumer.Source
	follows  follows
	consumer *consumer.Consumer
}

// Consume reads the streams until ctx ends.
func (p App) Consume(ctx context.Context) error {
	s := &streams{App: p}
	for _, one := range p.streams() {
		if err := s.add(&stream{configuredStream: one}); err != nil {
			return err
		}
	}
	for _, step := range []func(context.Context) error{p.firstWatches, s.refresh} {
		if err := p.retryTransient(ctx, step); err != nil {
			return err
		}
	}
	p.liveness.add(RoleConsumer, checkHeartbeat(s.lastHeartbeat))
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range s.all {
		g.Go(func() error { return one.consumer.Run(ctx) })
	}
	g.Go(func() error { return s.watchFollows(ctx) })
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
		if retry.Sleep(ctx, time.Second) != nil {
			return nil
		}
	}
}

// add opens the source of a stream, and makes its consumer.
func (s *streams) add(added *stream) error {
	retention, err := s.retention()
	if err != nil {
		return err
	}
	from, err := s.cfg.start()
	if err != nil {
		return err
	}
	metrics := prometheus.WrapRegistererWith(prometheus.Labels{"stream": added.Name}, s.metrics)
	if added.source, err = s.open(added.configuredStream, s.log.With("stream", added.Name), metrics); err != nil {
		return err
	}
	added.follows.limit = added.source.Capabilities().Accounts
	added.consumer, err = s.consumer(consumer.Config{
		Storage: consumer.Storage{Follows: added.follows.includes},
		Stream:  added.Name, Source: added.source, Depth: s.depth, MaxDepth: s.cfg.QueueLimit, Registerer: metrics,
		Leasing:    consumer.Leasing{Leased: s.leased, LeaseTTL: s.cfg.LeaseTTL},
		Batching:   consumer.Batching{BatchEvents: s.cfg.BatchEvents, BatchInterval: s.cfg.BatchInterval},
		Resuming:   consumer.Resuming{Start: from, GapThreshold: s.cfg.GapThreshold, ResumeWithin: retention.Tombstones},
		QuietAfter: s.cfg.QuietAfter, SilentFor: 3 * s.cfg.QuietAfter,
	})
	if err != nil {
		return err
	}
	s.all = append(s.all, added)
	return nil
}

// leased prepares the process for a stream that it is about to read.
func (s *streams) leased(ctx context.Context) error {
	if err := s.storeCollections(ctx); err != nil {
		return err
	}
	return s.refresh(ctx)
}

// watchFollows updates the accounts of the streams after every change, until ctx
// ends.
func (s *streams) watchFollows(ctx context.Context) error {
	for ctx.Err() == nil {
		err := s.listen(ctx, s.refresh)
		if ctx.Err() != nil {
			return nil
		}
		s.log.Warn("follow_refresh_failed", "error", err, "effect", "a change is seen after the database is back")
		retry.Sleep(ctx, time.Second) // the next turn checks the context
	}
	return nil
}

// refresh reads the followed accounts and applies them to the streams.
func (s *streams) refresh(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	followed, err := schema.FollowedAccounts(ctx, s.pool)
	if err != nil {
		return err
	}
	var updates errgroup.Group // a stalled server delays only its own stream
	for _, one := range s.all {
		one.follows.take(followed)
		before := one.follows.above
		filter := s.parts.widen(one.follows.filter(one.accounts(s.sources(), followed), s.stored.Repositories().Filter()))
		if one.follows.above != before {
			s.log.Info("stream_request_changed", "stream", one.Name, "accounts", len(followed.DIDs), "everyone", filter.Everyone)
		}
		if source, ok := one.source.(consumer.Filtered); ok {
			updates.Go(func() error { return source.SetFilter(ctx, filter) })
		}
	}
	return updates.Wait()
}

// accounts returns those of the followed accounts that are of the network of the stream.
func (s *stream) accounts(all []feature.Source, followed schema.Followed) schema.Followed {
	followed.DIDs = slices.DeleteFunc(slices.Clone(followed.DIDs), func(did string) bool { return networkOf(all, did) != s.from.Network })
	return followed
}

// lastHeartbeat returns the oldest of the consumers' last heartbeats.
func (s *streams) lastHeartbeat() time.Time {
	first := s.all[0].consumer.LastHeartbeat()
	for _, one := range s.all[1:] {
		if at := one.consumer.LastHeartbeat(); at.Before(first) {
			first = at
		}
	}
	return first
}
