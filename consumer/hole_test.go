package consumer_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// until waits until a query returns a count.
func (s *stream) until(want int, sql string, args ...any) {
	s.t.Helper()
	eventually.True(s.t, func() bool { return count(s.t, s.pool, sql, args...) == want }, 20*time.Millisecond, sql)
}

const (
	allPosts = `SELECT count(*) FROM posts`
	allGaps  = `SELECT count(*) FROM gaps`
)

// TestShortHoleIsAGap checks that any hole is recorded once, even if it is much shorter than the
// threshold or the process exits while the resume is open.
func TestShortHoleIsAGap(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		s := newStreamOf(t, w, history{events: 300})
		stop := s.run(nil)
		s.stores()
		stop()
		read := s.net.Happened()
		stood := count(t, s.pool, `SELECT cursor FROM streams`)
		stored := count(t, s.pool, allPosts)
		s.net.Play(30)
		forgotten := s.net.Happened()[len(read):]
		s.net.Forget()
		s.net.Play(20)

		stop = s.run(func(cfg *consumer.Config) { cfg.AnchorWithin = time.Hour })
		eventually.True(t, func() bool { return count(t, s.pool, allPosts) > stored }, 20*time.Millisecond)
		stop()
		require.Equal(t, stood, count(t, s.pool, `SELECT cursor FROM streams`), "the resume must still be open")
		require.Zero(t, count(t, s.pool, allGaps))

		tx, err := s.pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) // it has been rolled back already
		_, err = tx.Exec(t.Context(), `LOCK TABLE gaps IN EXCLUSIVE MODE`)
		require.NoError(t, err)
		stop = s.run(func(cfg *consumer.Config) { cfg.AnchorWithin = 200 * time.Millisecond })
		eventually.True(t, func() bool { return schematest.Blocks(t, s.pool, tx) }, 20*time.Millisecond)
		require.False(t, s.log.has("gap_opened"), "it is not stored yet, and the next connection finds it again")
		require.NoError(t, tx.Rollback(t.Context()))
		s.until(1, allGaps)
		s.reads()
		stop()
		require.Equal(t, 1, s.log.count("gap_opened"))
		s.net.Play(200)
		stop = s.run(nil)
		s.reads()
		stop()
		require.Equal(t, 1, count(t, s.pool, allGaps))
		require.Equal(t, 1, count(t, s.pool, `
			SELECT count(*) FROM gaps WHERE from_at <= to_timestamp($1::bigint / 1000000.0) AND to_at >= to_timestamp($2::bigint / 1000000.0)`,
			forgotten[0].at, forgotten[len(forgotten)-1].at))
		var reason string
		require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT reason FROM gaps`).Scan(&reason))
		eventTime, requested := strings.CutPrefix(reason, "requested events since ")
		if !requested {
			require.Contains(t, reason, "requested the oldest events")
			require.Contains(t, w.asksAnew, "cursor_kind=seq")
			return
		}
		eventTime, _, _ = strings.Cut(eventTime, ",")
		named, err := time.Parse(time.RFC3339, eventTime)
		require.NoError(t, err)
		require.WithinDuration(t, time.UnixMicro(read[len(read)-1].at).Add(-5*time.Minute), named, 3*time.Second,
			"the gap's reason must name the time that was actually requested")
	})
}

// server is a minimal Jetstream server. It calls sends for each connection, with
// its cursor, and keeps the connection open.
func server(t *testing.T, sends func(cursor int64, send func(line string)) (accepts bool)) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/subscribe" {
			http.NotFound(w, r)
			return
		}
		cursor, _ := strconv.ParseInt(r.URL.Query().Get("cursor"), 10, 64) // 0 if there is no cursor
		var lines []string
		if !sends(cursor, func(line string) { lines = append(lines, line) }) {
			http.Error(w, "not now", http.StatusServiceUnavailable)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		ctx := ws.CloseRead(r.Context())
		for _, line := range lines {
			if ws.Write(ctx, websocket.MessageText, []byte(line)) != nil {
				return
			}
		}
		<-ctx.Done()
	}))
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http") + "/subscribe"
}

// postOf returns a post as a v1 server sends it, with its writing time and the server's date given
// separately.
func postOf(account string, written, dated time.Time) string {
	rev := syntax.NewTID(written.UnixMicro(), 0).String()
	return fmt.Sprintf(`{"did":"did:plc:%s","time_us":%d,"kind":"commit","commit":{"rev":%q,"operation":"create",`+
		`"collection":"app.bsky.feed.post","rkey":%q,"record":%s,"cid":"bafyreiapzyf65cmq55jklpnrihiygze2jmmdqvvkwqeiomd72pbp2iazuu"}}`,
		strings.Repeat(account, 24), dated.UnixMicro(), rev, rev, plainRecord)
}

// TestFailoverFromLaggingHostLosesNothing fails over to a host that is on time, from one that
// receives events twenty minutes late and dates them on arrival.
func TestFailoverFromLaggingHostLosesNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const posts, lag = 50, 20 * time.Minute
	now := time.Now()
	written := func(n int) time.Time { return now.Add(time.Duration(n-posts) * time.Minute) } // one a minute
	host := func(lag, kept time.Duration, down *atomic.Bool) string {
		return server(t, func(cursor int64, send func(string)) bool {
			for n := range posts {
				if dated := written(n).Add(lag); dated.UnixMicro() >= cursor && !dated.After(now) && now.Sub(dated) <= kept {
					send(postOf("a", written(n), dated))
				}
			}
			return !down.Load()
		})
	}
	for _, kept := range []time.Duration{24 * time.Hour, 15 * time.Minute} {
		s := &stream{t: t, wire: wireOf(t, "jetstream v1"), pool: schematest.New(t)}
		var down, never atomic.Bool
		a, b := host(lag, 24*time.Hour, &down), host(0, kept, &never)
		oldest := func(cfg *consumer.Config) {
			cfg.Start, cfg.AnchorWithin = consumer.Cursor{Kind: consumer.CursorTime, Value: 1}, 200*time.Millisecond
		}
		stop := s.run(oldest, a, b)
		s.until(31, allPosts)
		stop()
		down.Store(true)
		stop = s.run(oldest, a, b)
		s.until(1, `SELECT count(*) FROM streams WHERE $1 LIKE '%' || host || '%' AND cursor = $2`, b, written(posts-1).UnixMicro())
		stop()
		if kept > lag {
			require.Equal(t, posts, count(t, s.pool, allPosts))
			require.Zero(t, count(t, s.pool, allGaps))
			continue
		}
		require.Less(t, count(t, s.pool, allPosts), posts, "the second host has forgotten some posts")
		require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM gaps WHERE from_at <= $1 AND to_at >= $2 AND to_at < $3`,
			written(31), written(34), now), "and dates the first one it has before the position")
	}
}

// TestScanningServerIsNotQuiet connects to a server that replies to pings while it scans six hours
// of other accounts' events.
func TestScanningServerIsNotQuiet(t *testing.T) {
	t.Parallel()
	s := &stream{t: t, wire: wireOf(t, "jetstream v1"), pool: schematest.New(t), ping: 20 * time.Millisecond}
	now := time.Now()
	var phase atomic.Int32
	url := server(t, func(_ int64, send func(string)) bool {
		switch phase.Load() {
		case 0, 2: // all events that it has left are that old
			at := now.Add(-6 * time.Hour).Add(time.Duration(phase.Load()) * 150 * time.Minute)
			send(postOf("ab"[phase.Load()/2:][:1], at, at))
		case 3:
			send(postOf("c", now, time.Now()))
		}
		return true
	})
	quick := func(cfg *consumer.Config) {
		cfg.AnchorWithin, cfg.QuietAfter, cfg.SilentFor, cfg.LeaseTTL = 200*time.Millisecond, 50*time.Millisecond, 100*time.Millisecond,
			time.Second
		cfg.Start = consumer.Cursor{Kind: consumer.CursorTime, Value: now.Add(-6 * time.Hour).UnixMicro()}
	}
	const scanning = `SELECT count(*) FROM streams WHERE state = 'catching up' AND state_detail = '` + schema.DetailScanning + `'`
	stop := s.run(quick, url)
	s.until(1, allPosts)
	s.until(1, scanning)
	stop()
	phase.Store(1)
	stop = s.run(quick, url)
	eventually.True(t, func() bool { return s.log.has("resume_mismatch") }, time.Millisecond)
	s.until(1, scanning+` AND lease_renewed_at > $1`, time.Now())
	stop()
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM streams WHERE caught_up_at IS NULL OR caught_up_at <= last_event_at`))
	phase.Store(2)
	stop = s.run(quick, url)
	s.until(1, `SELECT count(*) FROM gaps WHERE to_at - from_at = '5 hours'`)
	stop()
	phase.Store(3)
	stop = s.run(quick, url)
	s.until(1, `SELECT count(*) FROM streams WHERE state = 'quiet' AND state_detail = '' AND caught_up_at > last_event_at`)
	stop()
}

// TestServerMayBeSlowToBegin connects to a server that replies to pings and for a while sends none
// of the requested events. That proves nothing, whether the stored cursor or the oldest event was
// requested. Only a server that sends nothing for too long counts as empty.
func TestServerMayBeSlowToBegin(t *testing.T) {
	t.Parallel()
	toy := wireOf(t, "toy")
	for _, host := range []string{"host", "'elsewhere'"} {
		s := newStreamOf(t, toy, history{events: 50})
		n := s.net.(*toyNet)
		stop := s.run(nil)
		s.stores()
		stop()
		n.Play(20)
		n.Hold(true)
		s.ping = 10 * time.Millisecond
		impatient := func(cfg *consumer.Config) {
			cfg.AnchorWithin, cfg.QuietAfter, cfg.SilentFor, cfg.LeaseTTL = 50*time.Millisecond, 20*time.Millisecond, 50*time.Millisecond,
				time.Second
			cfg.BeginWithin = time.Hour
		}
		_, err := s.pool.Exec(t.Context(), `UPDATE streams SET host = `+host)
		require.NoError(t, err)
		stop = s.run(impatient)
		eventually.True(t, func() bool { return n.Pongs() > 30 }, time.Millisecond)
		s.until(1, `SELECT count(*) FROM streams WHERE state = 'catching up' AND (caught_up_at IS NULL OR caught_up_at <= last_event_at)`)
		n.Hold(false)
		s.stores()
		stop()
		require.Zero(t, count(t, s.pool, allGaps))
		require.False(t, s.log.has("resume_mismatch"))

		n.Hold(true)
		_, err = s.pool.Exec(t.Context(), `UPDATE streams SET caught_up_at = last_event_at`) // the stream was not known to be quiet
		require.NoError(t, err)
		stop = s.run(func(cfg *consumer.Config) {
			impatient(cfg)
			cfg.BeginWithin = 100 * time.Millisecond
		})
		s.until(1, `SELECT count(*) FROM gaps WHERE reason LIKE '%none arrived'`)
		stop()
	}
}

// TestTooOldPositionIsAGap checks that a position older than the stored tombstones is not resumed:
// deleted records could be restored.
func TestTooOldPositionIsAGap(t *testing.T) {
	onEveryWire(t, func(t *testing.T, w wire) {
		for _, start := range []consumer.Cursor{{}, {Kind: consumer.CursorSeq}} {
			s := newStreamOf(t, w, history{events: 300})
			stop := s.run(nil)
			s.stores()
			stop()
			deleted, err := s.pool.Exec(t.Context(), `DELETE FROM posts`)
			require.NoError(t, err)
			_, err = s.pool.Exec(t.Context(), `
				UPDATE streams SET last_event_at = now() - interval '8 days', caught_up_at = now() - interval '8 days'`)
			require.NoError(t, err)
			if start != (consumer.Cursor{}) {
				s.net.Forget()
			}
			s.net.Play(150)
			stop = s.run(func(cfg *consumer.Config) { cfg.Start = start })
			s.until(1, `SELECT count(*) FROM gaps WHERE from_at BETWEEN now() - interval '8 days 1 hour' AND now() - interval '8 days'
			AND to_at > now() - interval '1 hour' AND reason LIKE 'the position, of %'`)
			s.net.Play(20)
			s.reads()
			stop()
			require.Less(t, count(t, s.pool, allPosts), int(deleted.RowsAffected()), "deleted old posts were stored again")
			require.Equal(t, 1, count(t, s.pool, allGaps))
			require.True(t, s.log.has("position_too_old"))
		}
	})
}
