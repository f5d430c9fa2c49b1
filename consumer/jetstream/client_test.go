package jetstream_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/jetstream/dictionary"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func tip(string) consumer.Cursor { return consumer.Cursor{} }
func oldest(string) consumer.Cursor {
	return consumer.Cursor{Kind: consumer.CursorSeq, Value: 0}
}

// everyone requests every event of every account, at intervals that suit a
// test.
func everyone(endpoints ...string) jetstream.Config {
	return jetstream.Config{
		Config: socket.Config{Endpoints: endpoints, MinWait: time.Millisecond, MaxWait: 5 * time.Millisecond},
		Filter: consumer.Filter{Everyone: true},
	}
}

func client(t *testing.T, cfg jetstream.Config) *jetstream.Client {
	t.Helper()
	c, err := jetstream.New(cfg)
	require.NoError(t, err)
	return c
}

func network(t *testing.T, cfg simnet.Config) *simnet.Net {
	t.Helper()
	cfg.Seed, cfg.Accounts = 7, 200
	n, err := simnet.New(cfg)
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	return n
}

func connect(t *testing.T, c *jetstream.Client, at func(string) consumer.Cursor) consumer.Conn {
	t.Helper()
	conn, err := c.Connect(t.Context(), at, nil)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() }) // never fails
	return conn
}

// decoded returns the event of a frame, with the fields that the consumer
// copies from its message.
func decoded(conn consumer.Conn, f consumer.Frame) (consumer.Event, error) {
	var m consumer.Message
	if err := conn.Decode(f, &m); err != nil {
		return consumer.Event{}, err
	}
	if len(m.Malformed) > 0 {
		return consumer.Event{}, m.Malformed[0]
	}
	ev := m.Events[0]
	ev.Seq, ev.TimeUS, ev.Arrived, ev.Raw = m.Seq, m.TimeUS, m.Arrived, m.Raw
	return ev, nil
}

// events reads n frames and decodes them.
func events(t *testing.T, conn consumer.Conn, n int) []consumer.Event {
	t.Helper()
	read := make([]consumer.Event, 0, n)
	for range n {
		f, err := conn.Next(t.Context())
		require.NoError(t, err)
		ev, err := decoded(conn, f)
		require.NoError(t, err, string(f.Data))
		read = append(read, ev)
	}
	return read
}

// server is a Jetstream that runs the test's function. It stops at the end of
// the test.
func server(t *testing.T, serve func(ctx context.Context, ws *websocket.Conn, r *http.Request)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/subscribe" {
			http.NotFound(w, r)
			return
		}
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow() // the end
		ws.SetReadLimit(10_000_000)
		serve(t.Context(), ws, r)
	}))
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

const anEvent = `{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783177200000000,"kind":"identity",` +
	`"identity":{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","seq":1,"time":"2026-07-04T15:00:00Z"}}`

// held waits until the other side disconnects.
func held(ctx context.Context, ws *websocket.Conn) {
	_, _, _ = ws.Read(ctx) // the read only ends with the connection
}

func TestReadsFrames(t *testing.T) {
	t.Parallel()
	for _, generation := range []simnet.Generation{simnet.V1, simnet.V2} {
		for _, compress := range []bool{false, true} {
			t.Run(fmt.Sprintf("generation %d, zstd %t", generation, compress), func(t *testing.T) {
				t.Parallel()
				n := network(t, simnet.Config{History: 3000, Generation: generation, Mix: simnet.MixNetwork})
				cfg := everyone(n.URL())
				cfg.Compress = compress
				read := events(t, connect(t, client(t, cfg), oldest), 3000)
				for i, want := range n.Log().Entries() {
					got := read[i]
					require.Equal(t, want.DID, got.Author)
					require.Equal(t, want.Collection, got.Collection)
					require.Equal(t, want.Rkey, got.Key)
					require.Equal(t, want.Rev, got.Revision)
					require.Equal(t, want.CID, got.CID)
					require.Equal(t, string(want.Record), string(got.Record))
					require.Equal(t, want.Handle, got.Handle)
					require.Equal(t, want.Active, got.Active)
					require.Equal(t, want.Status, got.Status)
					require.Equal(t, map[string]consumer.Kind{
						"commit": consumer.KindCommit, "identity": consumer.KindIdentity, "account": consumer.KindAccount,
					}[want.Kind], got.Kind)
					if generation == simnet.V2 {
						require.Equal(t, want.Seq, got.Seq)
						require.Equal(t, want.TimeUS, got.TimeUS)
					} else {
						require.Zero(t, got.Seq)
						require.Equal(t, want.UniqueUS, got.TimeUS)
					}
				}
			})
		}
	}
}

// TestOtherDictionaryDeadLettersNothing checks that the client requests plain frames if the server
// compresses with another dictionary. No frame is dead-lettered.
func TestOtherDictionaryDeadLettersNothing(t *testing.T) {
	t.Parallel()
	other := bytes.Clone(dictionary.V1)
	other[4] ^= 0xff // its ID
	n := network(t, simnet.Config{History: 10, Serving: simnet.Serving{Dictionary: other}})
	cfg := everyone(n.URL())
	cfg.Compress = true
	c := client(t, cfg)
	conn := connect(t, c, oldest)
	f, err := conn.Next(t.Context())
	require.NoError(t, err)
	_, err = decoded(conn, f)
	var malformed *consumer.Malformed
	require.False(t, errors.As(err, &malformed))
	require.ErrorContains(t, err, "another dictionary")
	conn.Close() // never fails
	events(t, connect(t, c, oldest), 10)
}

func TestFailsOverToTheNextEndpoint(t *testing.T) {
	t.Parallel()
	down, up := network(t, simnet.Config{History: 5}), network(t, simnet.Config{History: 5})
	require.NoError(t, down.Do(simnet.Refuse))
	c := client(t, everyone(down.URL(), up.URL()))
	var tried []consumer.Attempt
	conn, err := c.Connect(t.Context(), oldest, func(a consumer.Attempt) { tried = append(tried, a) })
	require.NoError(t, err)
	defer conn.Close() // never fails
	require.Equal(t, host(t, up.URL()), conn.Host())
	require.Len(t, tried, 1)
	require.Equal(t, 1, tried[0].Failed)
	require.ErrorContains(t, tried[0].Err, host(t, down.URL())+": the server responded with status 503: service not ready")
}

// TestComesBackToTheSameEndpoint checks that a reconnect prefers the endpoint for
// which the cursor is exact.
func TestComesBackToTheSameEndpoint(t *testing.T) {
	t.Parallel()
	first, second := network(t, simnet.Config{History: 5}), network(t, simnet.Config{History: 5})
	c := client(t, everyone(first.URL(), second.URL()))
	conn := connect(t, c, oldest)
	events(t, conn, 5)
	require.NoError(t, first.Do(simnet.Cut))
	_, err := conn.Next(t.Context())
	require.Error(t, err)
	require.Equal(t, host(t, first.URL()), connect(t, c, oldest).Host())
}

// TestBackoffIsResetByAnEventNotByADial counts the failures of a server that
// accepts every connection and sends nothing.
func TestBackoffIsResetByAnEventNotByADial(t *testing.T) {
	t.Parallel()
	dials := atomic.Int64{}
	address := server(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		if dials.Add(1) == 4 {
			require.NoError(t, ws.Write(ctx, websocket.MessageText, []byte(anEvent)))
		}
	})
	c := client(t, everyone(address))
	var failed []int
	for range 6 {
		conn, err := c.Connect(t.Context(), tip, func(a consumer.Attempt) { failed = append(failed, a.Failed) })
		require.NoError(t, err)
		_, err = conn.Next(t.Context())
		if err == nil {
			_, err = conn.Next(t.Context())
		}
		require.Error(t, err)
	}
	require.Equal(t, []int{1, 2, 3, 1}, failed, "the fourth connection sent an event, and the fifth did not")
}

func TestManyFailuresAreAnError(t *testing.T) {
	t.Parallel()
	var log lockedBuffer
	cfg := everyone("ws://127.0.0.1:1")
	cfg.Logger = slog.New(slog.NewTextHandler(&log, nil))
	c := client(t, cfg)
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	_, err := c.Connect(ctx, tip, func(consumer.Attempt) {
		if tries++; tries == 13 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 9, strings.Count(log.String(), "level=WARN msg=connect_failed"))
	require.Equal(t, 4, strings.Count(log.String(), "level=ERROR msg=connect_failed"))
	require.Contains(t, log.String(), "connection refused")
}

// TestSilentServerIsDead checks that a silent server that replies to pings is
// quiet, and that one that does not is disconnected.
func TestSilentServerIsDead(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{History: 5})
	cfg := everyone(n.URL())
	cfg.QuietAfter, cfg.PongWithin = 20*time.Millisecond, time.Hour
	conn := connect(t, client(t, cfg), oldest)
	events(t, conn, 5)
	last := time.Now()
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Next(t.Context())
		ended <- err
	}()
	eventually.True(t, func() bool { return conn.Proven().After(last) }, time.Millisecond, "it answers")
	select {
	case err := <-ended:
		require.NoError(t, err, "a quiet connection must not be treated as dead")
	default:
	}
	cfg.PongWithin = 50 * time.Millisecond
	conn = connect(t, client(t, cfg), oldest)
	require.NoError(t, n.Do(simnet.Stall))
	var err error
	for err == nil {
		_, err = conn.Next(t.Context())
	}
	require.ErrorContains(t, err, "does not reply to a ping")
}

func TestTooLongFrameIsDeadLettered(t *testing.T) {
	t.Parallel()
	address := server(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		require.NoError(t, ws.Write(ctx, websocket.MessageText, append([]byte(`{"did":"`), bytes.Repeat([]byte("x"), 17<<20)...)))
		require.NoError(t, ws.Write(ctx, websocket.MessageText, []byte(anEvent)))
		held(ctx, ws)
	})
	cfg := everyone(address)
	cfg.QuietAfter = time.Hour // however long the frame takes, the server is not pinged
	conn := connect(t, client(t, cfg), tip)
	f, err := conn.Next(t.Context())
	require.NoError(t, err)
	require.True(t, f.Truncated)
	_, err = decoded(conn, f)
	var malformed *consumer.Malformed
	require.ErrorAs(t, err, &malformed)
	require.Equal(t, "the frame is too long", malformed.Cause)
	require.LessOrEqual(t, len(malformed.Raw), 64<<10)
	require.Equal(t, "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa", events(t, conn, 1)[0].Author)
}

func TestBrokenZstdIsDeadLettered(t *testing.T) {
	t.Parallel()
	address := server(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		require.NoError(t, ws.Write(ctx, websocket.MessageBinary, []byte("no zstd")))
		require.NoError(t, ws.Write(ctx, websocket.MessageText, []byte(anEvent)))
		held(ctx, ws)
	})
	cfg := everyone(address)
	cfg.Compress = true
	conn := connect(t, client(t, cfg), tip)
	f, err := conn.Next(t.Context())
	require.NoError(t, err)
	_, err = decoded(conn, f)
	var malformed *consumer.Malformed
	require.ErrorAs(t, err, &malformed)
	require.Contains(t, malformed.Cause, "cannot be decompressed")
	events(t, conn, 1)
}

func TestCloseCodeIsReported(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{History: 1})
	conn := connect(t, client(t, everyone(n.URL())), oldest)
	events(t, conn, 1)
	stopped := make(chan error, 1)
	go func() { stopped <- n.Restart() }()
	_, err := conn.Next(t.Context())
	require.ErrorContains(t, err, "the server closed the connection: 1001 server shutting down")
	require.NoError(t, <-stopped)
}

func TestStopEndsEveryWait(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{})
	conn := connect(t, client(t, everyone(n.URL())), tip)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Next(ctx)
		ended <- err
	}()
	cancel()
	require.ErrorIs(t, <-ended, context.Canceled)
}

func TestConfigurationIsChecked(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]jetstream.Config{
		"name at least one":  {},
		"is not a Jetstream": {Config: socket.Config{Endpoints: []string{"jetstream"}}},
		"received ftp":       {Config: socket.Config{Endpoints: []string{"ftp://example.com"}}},
		`"post" is not a coll`: {
			Config: socket.Config{Endpoints: []string{"ws://a.example"}}, Filter: consumer.Filter{Collections: []string{"post"}},
		},
		`"x" is not a DID`: {Config: socket.Config{Endpoints: []string{"ws://a.example"}}, Filter: consumer.Filter{Accounts: []string{"x"}}},
		"100 collections at mo": {Config: socket.Config{Endpoints: []string{"ws://a.example"}}, Filter: consumer.Filter{
			Collections: make([]string, 101),
		}},
	} {
		_, err := jetstream.New(cfg)
		require.ErrorContains(t, err, want)
	}
}

func host(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	return u.Host
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// TestLargestRecordIsRead reads a record of 1 MiB, which may be six times as
// long in JSON.
func TestLargestRecordIsRead(t *testing.T) {
	t.Parallel()
	record := `{"text":"` + strings.Repeat(`\u0001`, 1<<20) + `"}`
	event := `{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783177200000000,"kind":"commit","commit":{"rev":"3mptbyqh22222",` +
		`"operation":"create",` +
		`"collection":"app.bsky.feed.post","rkey":"r1","cid":"bafyreiapzyf65cmq55jklpnrihiygze2jmmdqvvkwqeiomd72pbp2iazuu","record":` +
		record + `}}`
	address := server(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		require.NoError(t, ws.Write(ctx, websocket.MessageText, []byte(event)))
		held(ctx, ws)
	})
	require.Equal(t, record, string(events(t, connect(t, client(t, everyone(address)), tip), 1)[0].Record))
}

// TestFrameWithoutEndEndsTheConnection reads a frame that goes on for ever, whose parts show that the server is alive.
func TestFrameWithoutEndEndsTheConnection(t *testing.T) {
	t.Parallel()
	address := server(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		frame, err := ws.Writer(ctx, websocket.MessageText)
		for err == nil {
			_, err = frame.Write(make([]byte, 10_000))
		}
	})
	cfg := everyone(address)
	cfg.ReadLimit = 1000
	_, err := connect(t, client(t, cfg), tip).Next(t.Context())
	require.ErrorContains(t, err, "a frame is longer than 64000 bytes")
}
