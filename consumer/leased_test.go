package consumer_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// TestFollowsAreReadWithEachLease checks that Leased is called before anything
// is read, and again until it succeeds. The events after the position must be
// read for the accounts that are followed at that time.
//
// The test fails if Leased is called only once, or after the connection is
// made.
func TestFollowsAreReadWithEachLease(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 500})
	var followed, known atomic.Bool // in the database, and in this process
	calls := 0
	stop := s.run(func(cfg *consumer.Config) {
		cfg.LeasePoll = time.Millisecond
		cfg.Follows = func(string) bool { return known.Load() }
		cfg.Leased = func(context.Context) error {
			if calls++; calls%2 == 1 {
				return errors.New("the database is away")
			}
			known.Store(followed.Load())
			return nil
		}
	})
	s.reads()
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts`), "no post may be stored before an account is followed")
	followed.Store(true)
	_, err := s.pool.Exec(t.Context(),
		`UPDATE streams SET epoch = epoch + 1, cursor_kind = '', cursor = 0, anchor = NULL, last_event_at = NULL, caught_up_at = NULL`)
	require.NoError(t, err)
	s.stores()
	stop()
	require.Equal(t, 4, calls)
}

// TestOutdatedProgramReleasesLease checks that a program also exits if another
// one has registered projections that it lacks.
func TestOutdatedProgramReleasesLease(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	outdated := &schema.OutdatedError{Name: "words", Missing: true}
	c, err := consumer.New(consumer.Config{
		Storage: consumer.Storage{Pool: pool, Enqueue: addsNoJobs,
			Wanted: func(string) bool { return true }, Logger: slog.New(slog.DiscardHandler)},
		Stream: "s", Wire: "jetstream", Leasing: consumer.Leasing{Owner: "me", Leased: func(context.Context) error { return outdated }},
		Source: &recording.Source{Lines: strings.NewReader(""), Wire: jetstream.Wire(nil)},
	})
	require.NoError(t, err)
	require.ErrorIs(t, c.Run(t.Context()), outdated)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM streams WHERE lease_owner IS NULL AND epoch = 1`))
}
