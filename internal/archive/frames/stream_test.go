package frames_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/firehose"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

func TestMain(m *testing.M) { schematest.Main(m) }

func enqueuesNothing(context.Context, pgx.Tx, []schema.Stored, time.Time) error { return nil }

func wantsPosts(collection string) bool { return collection == schema.PostCollection }

// stream is a consumer of a simulated network.
type stream struct {
	t     *testing.T
	net   *simnet.Net
	relay bool // it is read from its relay, and from Jetstream otherwise
	wire  consumer.Wire
	pool  *pgxpool.Pool
}

func newStream(t *testing.T, relay bool, events int) *stream {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 3, Accounts: 100, History: events, Serving: simnet.Serving{Events: true}})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	s := &stream{t: t, net: n, relay: relay, wire: jetstream.Wire(nil), pool: schematest.New(t)}
	if relay {
		s.wire = firehose.Wire(nil, nil)
	}
	return s
}

// source returns the source of the network.
func (s *stream) source() (consumer.Source, error) {
	waits := socket.Config{MinWait: time.Millisecond, MaxWait: 10 * time.Millisecond}
	if s.relay {
		waits.Endpoints = []string{s.net.RelayURL()}
		return firehose.New(firehose.Config{Config: waits})
	}
	waits.Endpoints = []string{s.net.URL()}
	return jetstream.New(jetstream.Config{Filter: consumer.Filter{Everyone: true}, Config: waits})
}

// start consumes until it fails, or until cancel is called.
func (s *stream) start(change func(*consumer.Config)) (ended <-chan error, cancel func()) {
	s.t.Helper()
	source, err := s.source()
	require.NoError(s.t, err)
	cfg := consumer.Config{
		Storage: consumer.Storage{Pool: s.pool, Logger: slog.New(slog.DiscardHandler), Enqueue: enqueuesNothing, Wanted: wantsPosts},
		Stream:  "s", Leasing: consumer.Leasing{Owner: s.t.Name()}, Source: source,
		Resuming: consumer.Resuming{Start: consumer.Cursor{Kind: consumer.CursorSeq}},
		Batching: consumer.Batching{BatchInterval: 10 * time.Millisecond},
	}
	change(&cfg)
	c, err := consumer.New(cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return done, cancel
}

// reads consumes until every event is committed.
func (s *stream) reads(change func(*consumer.Config)) {
	s.t.Helper()
	ended, cancel := s.start(change)
	eventually.True(s.t, s.read, 20*time.Millisecond, "the last event is not committed")
	cancel()
	require.NoError(s.t, <-ended)
}

// read reports whether every event is committed. It compares positions, because events may share
// their time. A renumbered server lowers every number by four.
func (s *stream) read() bool {
	s.t.Helper()
	last := s.net.Log().Last()
	cursor := last.Seq
	if s.relay {
		cursor = last.RelaySeq
	}
	return s.count(`SELECT count(*) FROM streams WHERE cursor = $1`, cursor-4*int64(s.net.Fired()[simnet.Renumber])) == 1
}

func (s *stream) count(sql string, args ...any) (n int) {
	s.t.Helper()
	require.NoError(s.t, s.pool.QueryRow(s.t.Context(), sql, args...).Scan(&n))
	return n
}

// retries retries every open dead letter.
func (s *stream) retries(hook consumer.FrameHook) {
	s.t.Helper()
	_, err := schema.RetryDeadLetters(s.t.Context(), s.pool, schema.DeadLetterFilter{})
	require.NoError(s.t, err)
	deadLetters, err := schema.DeadLettersToRetry(s.t.Context(), s.pool, 1000, 1<<30)
	require.NoError(s.t, err)
	r := consumer.Retry{Wires: map[string]consumer.Wire{s.wire.Name: s.wire},
		Storage: consumer.Storage{
			Frames: hook, Pool: s.pool, Logger: slog.New(slog.DiscardHandler), Wanted: wantsPosts, Enqueue: enqueuesNothing,
		}}
	require.NoError(s.t, r.Run(s.t.Context(), deadLetters))
	require.Zero(s.t, s.count(`SELECT count(*) FROM dead_letters WHERE state = 'retrying'`), "every dead letter must be settled")
}

// posts returns the first writes of posts that exist at the end.
func (s *stream) posts() (created []*simnet.Entry) {
	there, deleted := map[[2]string]bool{}, map[string]bool{}
	for _, e := range s.net.Log().Entries() {
		switch {
		case e.Kind == "commit" && e.Collection == schema.PostCollection:
			there[[2]string{e.DID, e.Rkey}] = e.Record != nil
		case e.Kind == "account":
			deleted[e.DID] = !e.Active && e.Status == "deleted"
		}
	}
	for _, e := range s.net.Log().Entries() {
		if e.Kind == "commit" && e.Operation == "create" && e.Collection == schema.PostCollection && there[[2]string{e.DID, e.Rkey}] &&
			!deleted[e.DID] {
			created = append(created, e)
		}
	}
	return created
}
