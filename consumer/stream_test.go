package consumer_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
	"github.com/weir-social/weir/simnet"
)

// stream is a consumer of a simulated network, over the wire.
type stream struct {
	t    *testing.T
	net  *simnet.Net
	pool *pgxpool.Pool
	log  lines
	ping time.Duration // after so much silence; the default when zero
}

func newStream(t *testing.T, cfg simnet.Config) *stream {
	t.Helper()
	cfg.Seed, cfg.Accounts = 3, 100
	n, err := simnet.New(cfg)
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	return &stream{t: t, net: n, pool: schematest.New(t)}
}

// run consumes until the returned function is called.
func (s *stream) run(change func(*consumer.Config), endpoints ...string) (stop func()) {
	s.t.Helper()
	logger := slog.New(slog.NewTextHandler(&s.log, nil))
	if len(endpoints) == 0 {
		endpoints = []string{s.net.URL()}
	}
	source, err := jetstream.New(jetstream.Config{Endpoints: endpoints, Filter: consumer.Filter{Everyone: true},
		MinWait: time.Millisecond, MaxWait: 10 * time.Millisecond, QuietAfter: s.ping, Logger: logger})
	require.NoError(s.t, err)
	cfg := consumer.Config{
		Stream: "s", Wire: "jetstream", Pool: s.pool, Owner: s.t.Name(), Source: source,
		Start: consumer.Cursor{Kind: consumer.CursorSeq}, BatchEvery: 10 * time.Millisecond, Logger: logger,
		Enqueue: func(context.Context, pgx.Tx, []schema.Key, time.Time) error { return nil },
		Wanted:  func(collection string) bool { return collection == schema.PostCollection },
	}
	if change != nil {
		change(&cfg)
	}
	c, err := consumer.New(cfg)
	require.NoError(s.t, err)
	ctx, cancel := context.WithCancel(s.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	return func() {
		cancel()
		require.NoError(s.t, <-ended)
	}
}

// stores waits until the posts of everything that happened are stored. Of an
// account that is deleted at the end, some posts may be stored: the purge takes
// them.
func (s *stream) stores() {
	s.t.Helper()
	type post struct{ did, rkey string }
	want, deleted := map[post]bool{}, map[string]bool{}
	for _, e := range s.net.Log().Entries() {
		switch {
		case e.Kind == "commit" && e.Collection == schema.PostCollection:
			want[post{e.DID, e.Rkey}] = e.Record != nil
		case e.Kind == "account":
			deleted[e.DID] = e.Status == "deleted"
		}
	}
	posts := 0
	for p, there := range want {
		if there && !deleted[p.did] {
			posts++
		}
	}
	last := s.net.Log().Last().TimeUS
	require.Eventually(s.t, func() bool {
		return count(s.t, s.pool, `SELECT count(*) FROM streams WHERE last_event_at >= to_timestamp($1::bigint / 1000000.0)`, last) == 1
	}, time.Minute, 5*time.Millisecond, "the last event is not committed")
	require.Equal(s.t, posts, count(s.t, s.pool, `
		SELECT count(*) FROM posts AS p WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = p.did AND a.status = 'deleted')`))
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

// TestFullBufferDropsTheConnectionNotEvents has the database stand still until
// the buffer has run full.
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
		cfg.Enqueue = func(context.Context, pgx.Tx, []schema.Key, time.Time) error {
			require.Eventually(t, func() bool { return overflows() > 0 }, time.Minute, time.Millisecond)
			return nil
		}
	})
	s.stores()
	require.True(t, s.log.has("the database is slower than the stream"))
	stop()
}

// TestResumeGoesOnWhereItStopped reads nothing twice and loses nothing.
func TestResumeGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	for _, generation := range []simnet.Generation{simnet.V1, simnet.V2} {
		s := newStream(t, simnet.Config{History: 500, Generation: generation})
		stop := s.run(nil)
		s.stores()
		stop()
		s.net.Play(500)
		stop = s.run(nil)
		s.stores()
		stop()
		require.False(t, s.log.has("resume_mismatch"))
		require.Zero(t, count(t, s.pool, `SELECT count(*) FROM gaps`))
	}
}

// TestRenumberedServerIsNoticed: at the stored number stands another event, and
// the events the server has moved below it would be lost.
func TestRenumberedServerIsNoticed(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 500})
	stop := s.run(nil)
	s.stores()
	stop()
	s.net.Play(3)
	require.NoError(t, s.net.Do(simnet.Renumber))
	s.net.Play(200)
	stop = s.run(nil)
	s.stores()
	stop()
	require.True(t, s.log.has("resume_mismatch"))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM gaps`), "everything was still there")
}

// TestLostEventsAreAGap: the server has forgotten what happened meanwhile.
func TestLostEventsAreAGap(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 500, Start: time.Now().Add(-time.Hour)})
	stop := s.run(nil)
	require.Eventually(t, func() bool { return count(t, s.pool, `SELECT count(*) FROM posts`) > 300 }, time.Minute, 5*time.Millisecond)
	stop()
	s.net.Play(10)
	require.NoError(t, s.net.Do(simnet.TooOld))
	s.net.Play(10)
	stop = s.run(func(cfg *consumer.Config) { cfg.AnchorWithin = time.Second })
	defer stop()
	require.Eventually(t, func() bool { return count(t, s.pool, `SELECT count(*) FROM gaps`) == 1 }, time.Minute, 5*time.Millisecond)
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM gaps WHERE stream = 's' AND to_at - from_at BETWEEN '55 minutes' AND '65 minutes' AND closed_at IS NULL`))
}

// TestAnotherHostIsAskedByTime: its numbers are others, its history is the same.
func TestAnotherHostIsAskedByTime(t *testing.T) {
	t.Parallel()
	at := time.Now()
	s := newStream(t, simnet.Config{History: 500, Start: at})
	other := newStream(t, simnet.Config{History: 800, Start: at.Add(time.Second)})
	stop := s.run(nil)
	s.stores()
	stop()
	require.NoError(t, s.net.Do(simnet.Refuse))
	stop = s.run(func(cfg *consumer.Config) { cfg.AnchorWithin = 200 * time.Millisecond }, s.net.URL(), other.net.URL())
	require.Eventually(t, func() bool {
		return count(t, s.pool, `SELECT count(*) FROM streams WHERE host = $1`, other.net.Address()) == 1
	}, time.Minute, 5*time.Millisecond)
	stop()
	require.True(t, s.log.has("cursor_kind=time"))
}

// TestQuietStartIsAPosition: a stream that begins at the live tip goes on from
// there, even when its first process dies before the first event.
func TestQuietStartIsAPosition(t *testing.T) {
	t.Parallel()
	s := newStream(t, simnet.Config{History: 500})
	tip := func(cfg *consumer.Config) { cfg.Start = consumer.Cursor{} }
	stop := s.run(tip)
	require.Eventually(t, func() bool { return count(t, s.pool, `SELECT count(*) FROM streams WHERE cursor > 0`) == 1 }, time.Minute, 5*time.Millisecond)
	stop()
	s.net.Play(300) // while nobody reads
	stop = s.run(tip)
	last := s.net.Log().Last().TimeUS
	require.Eventually(t, func() bool {
		return count(t, s.pool, `SELECT count(*) FROM streams WHERE last_event_at >= to_timestamp($1::bigint / 1000000.0)`, last) == 1
	}, time.Minute, 5*time.Millisecond)
	stop()
	posts := map[string]bool{}
	for _, e := range s.net.Log().Entries()[500:] {
		if e.Kind == "commit" && e.Collection == schema.PostCollection {
			posts[e.DID+"/"+e.Rkey] = e.Record != nil
		}
	}
	for post, there := range posts {
		if there {
			did, rkey, _ := strings.Cut(post, "/")
			require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, did, rkey))
		}
	}
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM gaps`))
}
