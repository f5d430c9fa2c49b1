package consumer

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

const (
	firstPartitions       = time.Second     // how long the first connection waits for the first attempt
	partitionsWithin      = 5 * time.Minute // timeout of an attempt, which may have to read all of posts_default
	partitionsRetry       = time.Second     // the first wait after a failed attempt; it doubles, up to a minute
	partitionsMaxFailures = 10              // failures in a row that are an error: about four minutes
	busyMaxFailures       = 3               // failures in a row that are logged if posts are only locked by others
	partitionsLate        = 12 * time.Hour  // time before the end of the last partition at which failures are an error
)

// startPartitions creates partitions of posts ahead of the stream until ctx ends.
// The channel closes when it has stopped. It has its own connection and goroutine,
// so it delays neither commits nor the lease. It returns after the first attempt,
// or after a second, so that a new database has partitions before its first posts.
func (c *Consumer) startPartitions(ctx context.Context) (stopped <-chan struct{}) {
	first, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		p := partitions{
			Consumer: c, retries: backoff.ExponentialBackOff{InitialInterval: partitionsRetry, MaxInterval: time.Minute, Multiplier: 2},
		}
		wait := p.attempt(ctx)
		close(first)
		for ctx.Err() == nil {
			retry.Sleep(ctx, wait) // the next turn checks the context
			wait = p.attempt(ctx)
		}
	}()
	timer := time.NewTimer(firstPartitions)
	defer timer.Stop()
	select {
	case <-first:
	case <-timer.C:
	}
	return done
}

// partitions tracks what has been logged: each state is logged once, when it
// begins.
type partitions struct {
	*Consumer
	failed  int  // failed attempts in a row
	logged  bool // the failures are logged
	late    bool
	retries backoff.ExponentialBackOff
}

// attempt creates the missing partitions and returns the wait before the next
// attempt.
func (p *partitions) attempt(ctx context.Context) time.Duration {
	if ctx.Err() != nil {
		return 0
	}
	attempt, cancel := context.WithTimeout(ctx, partitionsWithin)
	defer cancel()
	now := p.cfg.Now()
	if earliest := p.clock.earliest(time.Now()); earliest.Before(now) {
		now = earliest // a clock that is ahead would create one partition up to its time, and delay expiry
	}
	err := schema.EnsurePostPartitions(attempt, p.cfg.Pool, now, p.cfg.Keep)
	switch {
	case ctx.Err() != nil:
		return 0
	case err == nil:
		if p.logged {
			p.log.Info("partitions_made")
		}
		p.failed, p.logged, p.late = 0, false, false
		p.retries.Reset()
		return p.cfg.PartitionInterval
	}
	p.failed++
	busy := errors.Is(err, schema.ErrBusy) && p.failed < busyMaxFailures // another consumer may be making them
	if !p.logged && !busy {
		p.log.Warn("partition_creation_failed", "error", err)
		p.logged = true
	}
	if p.failed >= partitionsMaxFailures && !p.late {
		until, untilErr := schema.PartitionsUntil(attempt, p.cfg.Pool, "posts")
		if p.late = untilErr == nil && until.Before(now.Add(partitionsLate)); p.late {
			p.log.Error("partitions_run_out", "until", until, "error", err)
		}
	}
	return min(p.retries.NextBackOff(), p.cfg.PartitionInterval)
}
