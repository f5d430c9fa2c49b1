package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
	"github.com/weir-social/weir/simnet"
)

// TestFollowsAreReadWithEachLease checks that Leased is called before anything is
// read: a change to a stream's accounts ends its lease and moves its position back
// in one transaction, and the events that arrive again must be read for the new
// accounts too.
//
// The test fails if Leased is called only once, or after the connection.
func TestFollowsAreReadWithEachLease(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 500})
	var given, taken atomic.Bool // to this stream; as its consumer knows
	calls := 0
	stop := s.run(func(cfg *consumer.Config) {
		cfg.LeasePoll = time.Millisecond
		cfg.Follows = func(string) bool { return taken.Load() }
		cfg.Leased = func(context.Context) error {
			if calls++; calls%2 == 1 {
				return errors.New("the database is away")
			}
			taken.Store(given.Load())
			return nil
		}
	})
	last := s.last()
	require.Eventually(t, func() bool {
		return count(t, s.pool, `SELECT count(*) FROM streams WHERE last_event_at >= to_timestamp($1::bigint / 1000000.0)`, last) == 1
	}, time.Minute, 5*time.Millisecond)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts`), "nobody was followed")
	given.Store(true)
	_, err := s.pool.Exec(t.Context(), `UPDATE streams SET epoch = epoch + 1, cursor_kind = '', cursor = 0, anchor = NULL, last_event_at = NULL, caught_up_at = NULL`)
	require.NoError(t, err)
	s.stores()
	stop()
	require.Equal(t, 4, calls)
}

// TestRemovedShardIsNotRecreated checks that the consumer waits until the row
// exists again: a row without a reader would be shown as a stalled stream.
func TestRemovedShardIsNotRecreated(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 500})
	stop := s.run(func(cfg *consumer.Config) { cfg.Shard, cfg.LeasePoll = true, time.Millisecond })
	require.Eventually(t, func() bool { return s.log.has("waiting_for_lease") }, time.Minute, time.Millisecond)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM streams`))
	_, err := s.pool.Exec(t.Context(), `INSERT INTO streams (name, wire) VALUES ('s', 'jetstream')`)
	require.NoError(t, err)
	s.stores()
	_, err = s.pool.Exec(t.Context(), `DELETE FROM streams`)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return s.log.has("lease_lost") }, time.Minute, time.Millisecond)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM streams`))
	stop()
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM streams`))
}

// TestOutdatedProgramReleasesLease checks that the program also ends, because
// another one has projections that it lacks.
func TestOutdatedProgramReleasesLease(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	outdated := &schema.OutdatedError{Name: "words", Missing: true}
	c, err := consumer.New(consumer.Config{
		Stream: "s", Wire: "jetstream", Pool: pool, Owner: "me", Source: &recording.Source{Lines: strings.NewReader(""), Wire: jetstream.Wire(nil)},
		Enqueue: func(context.Context, pgx.Tx, []schema.Key, time.Time) error { return nil },
		Wanted:  func(string) bool { return true },
		Leased:  func(context.Context) error { return outdated },
		Logger:  slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	require.ErrorIs(t, c.Run(t.Context()), outdated)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM streams WHERE lease_owner IS NULL AND epoch = 1`))
}
