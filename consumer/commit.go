package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/schema"
)

// commitTimeout bounds one attempt at a transaction. After it, the server is
// treated as dead and the attempt is repeated.
const commitTimeout = 30 * time.Second

// carefulFor is how many batches check for stored records after one batch contained
// a stored record: redeliveries come in runs.
const carefulFor = 50

// committer commits batches in order, under one lease, or without a lease when it
// retries dead letters.
type committer struct {
	*Storage
	lease   schema.Lease
	log     *slog.Logger
	metrics *metrics

	// exclusive: another stream, or a recording that is read at the same time, may
	// bring the same accounts.
	exclusive bool

	// careful is how many more batches check for stored records instead of assuming
	// that all are new.
	careful int

	// position is the committed position. Only the committing goroutine uses these
	// fields until it ends.
	position  schema.Position
	moved     time.Time    // when the position last moved; zero: not under this lease
	uncounted *atomic.Bool // is set when the position moves; nil without a lease
	stored    int          // records stored by the last transaction
	written   int          // records stored by all transactions
}

// commit writes a batch, and waits for the database as long as necessary. If the
// database rejects the data, the batch is split until the rejected event is alone,
// and that event is dead-lettered. It returns schema.ErrFenced if the lease is
// lost, ctx's error, or an error that no retry can fix.
func (c *committer) commit(ctx context.Context, b *batch) error {
	err := c.traced(ctx, b)
	if err == nil || schema.Classify(err) != schema.Data {
		return err
	}
	switch len(b.events) {
	case 0:
		return fmt.Errorf("commit a batch without events: %w", err)
	case 1:
		c.log.Warn("event_dead_lettered", "did", b.events[0].Author, "collection", b.events[0].Collection, "rkey", b.events[0].Key, "error", err)
		c.metrics.deadLettered.WithLabelValues(schema.StageCommit, c.named(b.events[0].Collection)).Inc()
		return c.commit(ctx, b.deadLettered(unwrapAll(err)))
	}
	first, second := b.split()
	if err := c.commit(ctx, first); err != nil {
		return err
	}
	return c.commit(ctx, second)
}

// persist repeats the transaction until it succeeds or fails with an error that is
// not transient.
func (c *committer) persist(ctx context.Context, b *batch) error {
	write := *b.write()
	var retries *backoff.ExponentialBackOff // nil: no wait yet
	for try := 1; ; try++ {
		started := time.Now()
		err := c.try(ctx, b, write)
		if err == nil {
			c.careful = max(0, c.careful-1)
			c.metrics.committed(b, started)
			if b.gap != nil { // until it is stored, each connection finds it again
				c.metrics.gaps.Inc()
				c.log.Error("gap_opened", "from", b.gap.From, "to", b.gap.To, "reason", b.gap.Reason)
			}
			if retries != nil {
				c.log.Info("database_recovered", "tries", try)
			}
			return nil
		}
		if schema.Classify(err) != schema.Transient || ctx.Err() != nil {
			return err
		}
		if errors.Is(err, schema.ErrStored) {
			c.careful = carefulFor
			continue
		}
		if retries == nil {
			c.log.Warn("commit_waits_for_database", "error", err)
			retries = &backoff.ExponentialBackOff{
				InitialInterval: 50 * time.Millisecond, MaxInterval: 2 * time.Second, Multiplier: 2, RandomizationFactor: 0.2,
			}
		}
		c.metrics.commitRetries.Inc()
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retries.NextBackOff()):
		}
	}
}

// try is one transaction: the position, the records and their jobs.
func (c *committer) try(ctx context.Context, b *batch, write schema.Batch) error {
	ctx, cancel := context.WithTimeout(ctx, commitTimeout)
	defer cancel()
	write.Position = c.position
	write.Committer = schema.Committer{Projections: c.Projections, Hooks: c.Hooks, Exclusive: c.exclusive, Careful: c.careful > 0}
	if b.last != nil {
		write.Position = *b.last
		if b.last.Host == c.position.Host {
			write.Position.CaughtUp = later(c.position.CaughtUp, b.last.CaughtUp)
		}
	}
	stored := 0
	crashpoint.At(ctx, "commit: before it begins")
	err := pgx.BeginFunc(ctx, c.Pool, func(tx pgx.Tx) error {
		written, err := write.Apply(ctx, tx, c.lease)
		if err == nil && c.lease == (schema.Lease{}) && len(write.Deletions)+len(write.Erasures) > 0 {
			err = c.Projections.Lock(ctx, tx) // tables of projections that this program does not know would keep their rows
		}
		if err == nil && len(write.Resyncs) > 0 && c.Resync != nil {
			err = c.Resync(ctx, tx, write.Resyncs)
		}
		if err != nil {
			return err
		}
		stored = len(written)
		crashpoint.At(ctx, "commit: position and records written")
		if named := append(write.Stored(written), schema.NotFresh(c.Projections.Deleted(write.Deletions))...); len(named) > 0 {
			err = c.Enqueue(ctx, tx, named, b.oldest)
		}
		crashpoint.At(ctx, "commit: before its end")
		return err
	})
	crashpoint.At(ctx, "commit: after its end")
	if err == nil {
		c.metrics.stored.Add(float64(stored))
		c.position, c.stored, c.written = write.Position, stored, c.written+stored
		if b.last != nil {
			c.moved = time.Now()
			c.uncounted.Store(true)
		}
	}
	return err
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// unwrapAll returns the innermost error: the database's own message.
func unwrapAll(err error) error {
	for {
		inner := errors.Unwrap(err)
		if inner == nil {
			return err
		}
		err = inner
	}
}
