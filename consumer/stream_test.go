package consumer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// stream is a consumer of a simulated network.
type stream struct {
	t    *testing.T
	wire wire
	net  network
	pool *pgxpool.Pool
	log  lines
	ping time.Duration // the length of silence before a ping; the default if zero
}

// newStream returns a stream of a Jetstream server.
func newStream(t *testing.T, cfg simnet.Config) *stream {
	t.Helper()
	return &stream{t: t, wire: wireOf(t, "jetstream v2"), net: startJetstream(t, cfg), pool: schematest.New(t)}
}

func newStreamOf(t *testing.T, w wire, h history) *stream {
	t.Helper()
	return &stream{t: t, wire: w, net: w.network(t, h), pool: schematest.New(t)}
}

// run consumes until the returned function is called.
func (s *stream) run(change func(*consumer.Config), endpoints ...string) (stop func()) {
	s.t.Helper()
	ended, cancel := s.start(change, endpoints...)
	return func() {
		cancel()
		require.NoError(s.t, <-ended)
	}
}

// start consumes until it fails, or until cancel is called.
func (s *stream) start(change func(*consumer.Config), endpoints ...string) (ended <-chan error, cancel func()) {
	s.t.Helper()
	c := s.consumer(change, endpoints...)
	ctx, cancel := context.WithCancel(s.t.Context())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	return done, cancel
}

func (s *stream) consumer(change func(*consumer.Config), endpoints ...string) *consumer.Consumer {
	s.t.Helper()
	logger := slog.New(slog.NewTextHandler(&s.log, nil))
	if len(endpoints) == 0 {
		endpoints = []string{s.net.Endpoint()}
	}
	cfg := consumer.Config{
		Storage: consumer.Storage{Pool: s.pool, Logger: logger, Enqueue: addsNoJobs,
			Wanted: func(collection string) bool { return collection == schema.PostCollection }},
		Stream: "s", Leasing: consumer.Leasing{Owner: s.t.Name()}, Source: s.wire.source(s.t, endpoints, s.ping, logger),
		Resuming: consumer.Resuming{Start: consumer.Cursor{Kind: consumer.CursorSeq}},
		Batching: consumer.Batching{BatchInterval: 10 * time.Millisecond},
	}
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(cfg)
	require.NoError(s.t, err)
	return c
}

// read reports whether every event is committed. It compares positions, because events may share
// their time.
func (s *stream) read() bool {
	s.t.Helper()
	return count(s.t, s.pool, `SELECT count(*) FROM streams WHERE cursor = $1`, s.net.Cursor()) == 1
}

// reads waits until every event is committed.
func (s *stream) reads() {
	s.t.Helper()
	eventually.True(s.t, s.read, 20*time.Millisecond, "the last event is not committed")
}

type post struct{ did, rkey string }

// posts returns the existing posts. If an account is deleted at the end, some of
// its posts may still be stored until the purge.
func (s *stream) posts() []post {
	there, deleted := map[post]bool{}, map[string]bool{}
	for _, e := range s.net.Happened() {
		switch {
		case e.post:
			there[post{e.did, e.rkey}] = e.there
		case e.status != "":
			deleted[e.did] = e.status == "deleted"
		}
	}
	var all []post
	for p, is := range there {
		if is && !deleted[p.did] {
			all = append(all, p)
		}
	}
	return all
}

// stores waits until every event is committed, and checks that exactly the existing
// posts are stored.
func (s *stream) stores() {
	s.t.Helper()
	s.reads()
	s.holds(s.posts())
}

// holds checks that exactly these posts are stored.
func (s *stream) holds(want []post) {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `
		SELECT p.did, p.rkey FROM posts AS p WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = p.did AND a.status = 'deleted')`)
	require.NoError(s.t, err)
	got, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (p post, err error) {
		err = row.Scan(&p.did, &p.rkey)
		return p, err
	})
	require.NoError(s.t, err)
	require.ElementsMatch(s.t, want, got)
}

type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.b.String(), s)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

// TestEventsOfOneTimeAreAllRead stops the consumer between the last two events, which have the same
// time.
func TestEventsOfOneTimeAreAllRead(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 200})
	all := s.net.Happened()
	last := all[len(all)-1]
	require.Equal(t, all[len(all)-2].at, last.at)
	between, proceed := make(chan struct{}), make(chan struct{})
	arrive := sync.OnceFunc(func() { close(between) })
	stop := s.run(func(cfg *consumer.Config) {
		cfg.BatchEvents = 1
		cfg.Enqueue = func(_ context.Context, _ pgx.Tx, written []schema.Stored, _ time.Time) error {
			if written[0].Rkey == last.rkey {
				arrive()
				<-proceed
			}
			return nil
		}
	})
	<-between
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM streams WHERE last_event_at = to_timestamp($1::bigint / 1000000.0)`, last.at))
	require.False(t, s.read())
	close(proceed)
	s.stores()
	stop()
}

// TestFullBufferDropsTheConnectionNotEvents stops the database until the buffer is full.
func TestFullBufferDropsTheConnectionNotEvents(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 3000})
	metrics := prometheus.NewRegistry()
	overflows := func() float64 {
		families, err := metrics.Gather()
		require.NoError(t, err)
		for _, f := range families {
			if f.GetName() == "weir_consumer_buffer_overflows_total" {
				return f.GetMetric()[0].GetCounter().GetValue()
			}
		}
		return 0
	}
	stop := s.run(func(cfg *consumer.Config) {
		cfg.BufferBytes, cfg.FullWait, cfg.Registerer = 128<<10, time.Millisecond, metrics
		cfg.BatchEvents = 50 // most of the history stays in the buffer after the first commit, however late that begins
		cfg.Enqueue = func(context.Context, pgx.Tx, []schema.Stored, time.Time) error {
			eventually.True(t, func() bool { return overflows() > 0 }, 10*time.Millisecond)
			return nil
		}
	})
	s.stores()
	require.True(t, s.log.has("the database is slower than the stream"))
	stop()
}

// TestQuietStreamCountsNoJobs checks that the waiting jobs are counted after commits only.
func TestQuietStreamCountsNoJobs(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 10})
	var counts atomic.Int64
	stop := s.run(func(cfg *consumer.Config) {
		cfg.LeaseTTL = time.Second // a heartbeat each fifth of it
		cfg.Depth = func(context.Context, int) (int, error) {
			counts.Add(1)
			return 0, nil
		}
	})
	renewed := func() (at time.Time) {
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT lease_renewed_at FROM streams`).Scan(&at))
		return at
	}
	heartbeats := func() {
		for range 3 {
			last := renewed()
			eventually.True(t, func() bool { return renewed().After(last) }, 20*time.Millisecond)
		}
	}
	s.reads()
	heartbeats()
	counted := counts.Load()
	require.Positive(t, counted)
	heartbeats()
	require.Equal(t, counted, counts.Load(), "nothing was committed")
	s.net.Play(1)
	eventually.True(t, func() bool { return counts.Load() > counted }, 20*time.Millisecond)
	stop()
}

// TestResumeContinuesAtPosition checks that nothing is read twice and nothing is
// lost.
func TestResumeContinuesAtPosition(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 300})
		stop := s.run(nil)
		s.stores()
		stop()
		s.net.Play(300)
		stop = s.run(nil)
		s.stores()
		stop()
		require.False(t, s.log.has("resume_mismatch"))
		require.Zero(t, count(t, s.pool, allGaps))
	})
}

// TestRenumberedServerIsDetected connects to a server that has another event at the stored number.
// Without detection, the events that it moved below that number would be lost.
func TestRenumberedServerIsDetected(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 300})
		stop := s.run(nil)
		s.stores()
		stop()
		s.net.Play(3)
		s.net.Renumber()
		s.net.Play(200)
		stop = s.run(nil)
		s.stores()
		stop()
		require.Equal(t, w.numbers, s.log.has("resume_mismatch"))
		require.Zero(t, count(t, s.pool, allGaps), "the server still had all events")
	})
}

// TestFutureCursorIsDetected connects to a server that has lost its last numbers and silently
// treats the cursor as the live tip. The events in between still arrive.
func TestFutureCursorIsDetected(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 300})
		stop := s.run(nil)
		s.stores()
		stop()
		s.net.Play(2)
		s.net.Renumber() // by four: the position is two beyond the last event
		stop = s.run(func(cfg *consumer.Config) {
			cfg.AnchorWithin, cfg.BeginWithin = 300*time.Millisecond, 300*time.Millisecond
		})
		s.stores()
		s.net.Play(50)
		s.stores()
		stop()
		require.Equal(t, w.numbers, s.log.has("resume_mismatch"))
		require.Zero(t, count(t, s.pool, allGaps), "the server still had all events")
	})
}

// TestLostEventsAreAGap connects to a server that has deleted the events since the
// position.
func TestLostEventsAreAGap(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 300, end: time.Now().Add(-time.Hour)})
		stop := s.run(nil)
		s.stores()
		stop()
		s.net.Play(10)
		s.net.Forget()
		s.net.Play(10)
		stop = s.run(func(cfg *consumer.Config) { cfg.AnchorWithin = 300 * time.Millisecond })
		defer stop()
		s.reads()
		require.Equal(t, 1, count(t, s.pool, `
			SELECT count(*) FROM gaps WHERE stream = 's' AND to_at - from_at BETWEEN '55 minutes' AND '65 minutes' AND closed_at IS NULL`))
	})
}

// TestOtherHostIsReadFromEarlier fails over to a host with other sequence numbers
// and the same history.
func TestOtherHostIsReadFromEarlier(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		at := time.Now()
		s := newStreamOf(t, w, history{events: 300, end: at})
		other := newStreamOf(t, w, history{events: 500, end: at.Add(time.Second)})
		stop := s.run(nil)
		s.stores()
		stop()
		s.net.Refuse()
		stop = s.run(func(cfg *consumer.Config) { cfg.AnchorWithin = 200 * time.Millisecond }, s.net.Endpoint(), other.net.Endpoint())
		s.until(1, `SELECT count(*) FROM streams WHERE host = $1`, other.net.Host())
		stop()
		require.True(t, s.log.has(w.asksAnew))
	})
}

// TestQuietStartIsAPosition checks that a stream that starts at the live tip resumes there, even if
// its first process dies before the first event.
func TestQuietStartIsAPosition(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 300})
		tip := func(cfg *consumer.Config) { cfg.Start = consumer.Cursor{} }
		stop := s.run(tip)
		s.until(1, `SELECT count(*) FROM streams WHERE cursor > 0`)
		stop()
		before := len(s.net.Happened())
		s.net.Play(200) // while no process reads
		stop = s.run(tip)
		s.reads()
		stop()
		posts := map[post]bool{}
		for _, e := range s.net.Happened()[before:] {
			if e.post {
				posts[post{e.did, e.rkey}] = e.there
			}
		}
		for p, there := range posts {
			if there {
				require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, p.did, p.rkey))
			}
		}
		require.Zero(t, count(t, s.pool, allGaps))
	})
}

// TestStreamStartsAtATime stores all events since that time, and few from before it. A source
// without time cursors, such as the toy, does not connect.
func TestStreamStartsAtATime(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 3000}) // events of one day
		source := w.source(t, []string{s.net.Endpoint()}, 0, slog.New(slog.DiscardHandler))
		if !source.Capabilities().TimeCursor {
			refusesTimes(t, source)
			return
		}
		alive, ok := s.net.(interface {
			Live(context.Context, float64)
		})
		require.True(t, ok)
		conn, err := source.Connect(t.Context(), func(string) consumer.Cursor { return consumer.Cursor{Kind: consumer.CursorSeq} }, nil)
		require.NoError(t, err)
		_, err = conn.Next(t.Context()) // the simulated relay signs its history for its first client
		require.NoError(t, err)
		require.NoError(t, conn.Close())
		ctx, cancel := context.WithCancel(t.Context())
		lived := make(chan struct{})
		go func() { // the source requests the relay's newest event
			defer close(lived)
			alive.Live(ctx, 50)
		}()
		since := time.Now().Add(-3 * time.Hour)
		stop := s.run(func(cfg *consumer.Config) {
			cfg.Start = consumer.Cursor{Kind: consumer.CursorTime, Value: since.UnixMicro()}
		})
		s.until(1, `SELECT count(*) FROM streams WHERE cursor > 0`)
		cancel()
		<-lived
		s.reads()
		stop()
		require.Zero(t, count(t, s.pool, allGaps))
		written := map[post]int64{} // the last revision time of each post
		for _, e := range s.net.Happened() {
			if e.post {
				written[post{e.did, e.rkey}] = e.at
			}
		}
		expected := 0
		for _, p := range s.posts() {
			if written[p] >= since.UnixMicro() {
				expected++
				require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, p.did, p.rkey))
			}
		}
		require.Greater(t, expected, 100)
		require.Less(t, count(t, s.pool, `SELECT count(*) FROM posts`), expected+100)
	})
}

// refusesTimes requests some connections since a time from a source, and requires that it refuses
// them.
func refusesTimes(t *testing.T, source consumer.Source) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	attempts := 0
	_, err := source.Connect(ctx, func(string) consumer.Cursor {
		if attempts++; attempts == 4 {
			cancel()
		}
		return consumer.Cursor{Kind: consumer.CursorTime, Value: time.Now().Add(-3 * time.Hour).UnixMicro()}
	}, nil)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 4, attempts)
}

// TestPositionUnderAChangedFilterIsOfNone changes the filter of a connection, and then back, for which it will end: until
// then an account is missing, so no later connection may resume exactly where this one ends.
func TestPositionUnderAChangedFilterIsOfNone(t *testing.T) {
	t.Parallel()
	s := newStreamOf(t, wireOf(t, "jetstream v1"), history{events: 300})
	var everybody []string
	for _, h := range s.net.Happened() {
		if !slices.Contains(everybody, h.did) {
			everybody = append(everybody, h.did)
		}
	}
	for n := range 101 { // more than fit into a URL: the first filter is a message, too
		everybody = append(everybody, fmt.Sprintf("did:plc:%024d", n))
	}
	source, err := jetstream.New(jetstream.Config{
		Filter: consumer.Filter{Accounts: everybody}, RenewEvery: time.Hour,
		Config: shortWaits([]string{s.net.Endpoint()}, time.Second, slog.New(slog.DiscardHandler)),
	})
	require.NoError(t, err)
	stop := s.run(func(cfg *consumer.Config) { cfg.Source = source })
	s.reads()
	s.until(1, `SELECT count(*) FROM streams WHERE filter_hash = $1`, source.FilterHash())
	for _, accounts := range [][]string{everybody[1:], everybody} {
		require.NoError(t, source.SetFilter(t.Context(), consumer.Filter{Accounts: accounts}))
	}
	s.net.Play(50)
	s.until(1, `SELECT count(*) FROM streams WHERE filter_hash = ''`)
	stop()
}
