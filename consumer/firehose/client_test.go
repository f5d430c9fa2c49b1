package firehose

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// servedFrames is a relay that sends these frames to every client. If the last one is nil it then
// keeps the connection open; otherwise it closes it. It records the cursors.
func servedFrames(t *testing.T, cursors *[]string, frames ...[]byte) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*cursors = append(*cursors, r.URL.RequestURI())
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow() // the test is over
		for _, frame := range frames {
			if frame == nil {
				ws.Read(t.Context()) // waits until the client has disconnected
				return
			}
			if ws.Write(t.Context(), websocket.MessageBinary, frame) != nil {
				return
			}
		}
	}))
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

func testClient(t *testing.T, cfg Config, endpoints ...string) *Client {
	t.Helper()
	cfg.Endpoints, cfg.MinWait, cfg.MaxWait = endpoints, time.Millisecond, 5*time.Millisecond
	c, err := New(cfg)
	require.NoError(t, err)
	return c
}

func fromSeq(seq int64) func(string) consumer.Cursor {
	return func(string) consumer.Cursor { return consumer.Cursor{Kind: consumer.CursorSeq, Value: seq} }
}

func errorFrame(t *testing.T, name string) []byte {
	t.Helper()
	return append(encoded(t, map[string]any{"op": -1}), encoded(t, map[string]any{"error": name, "message": "sent by the test"})...)
}

func identityFrame(t *testing.T, seq int64) []byte {
	t.Helper()
	return frameOf(t, typeIdentity, &comatproto.SyncSubscribeRepos_Identity{Did: testDID, Seq: seq, Time: "2026-08-01T12:00:00.123Z"})
}

// nextEvent reads and decodes a frame.
func nextEvent(t *testing.T, conn consumer.Conn) *consumer.Message {
	t.Helper()
	f, err := conn.Next(t.Context())
	require.NoError(t, err)
	require.False(t, f.Compressed)
	var m consumer.Message
	require.NoError(t, conn.Decode(f, &m))
	return &m
}

func TestClientReadsARelay(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 4, Accounts: 50, History: 1000})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	down := httptest.NewServer(http.NotFoundHandler())
	down.Close()
	c := testClient(t, Config{}, "ws"+strings.TrimPrefix(down.URL, "http"), n.RelayURL())
	conn, err := c.Connect(t.Context(), fromSeq(0), nil)
	require.NoError(t, err)
	defer conn.Close() // never fails
	require.Equal(t, n.Address(), conn.Host())
	entries := n.Log().Entries()
	for len(entries) > 0 {
		m := nextEvent(t, conn)
		require.Empty(t, m.Malformed)
		for _, ev := range m.Events {
			e := entries[0]
			entries = entries[1:]
			require.Equal(t, []string{e.DID, e.Collection, e.Rkey, e.Rev, e.CID, e.Handle, e.Status},
				[]string{ev.Author, ev.Collection, ev.Key, ev.Revision, ev.CID, ev.Handle, ev.Status})
			require.LessOrEqual(t, m.Seq-e.RelaySeq, int64(200), "a frame has the number of its last event")
			if e.Record != nil {
				require.JSONEq(t, string(e.Record), string(ev.Record))
			}
		}
	}
}

func TestErrorFrameEndsTheConnection(t *testing.T) {
	t.Parallel()
	metrics := prometheus.NewRegistry()
	var cursors []string
	address := servedFrames(t, &cursors, identityFrame(t, 7), errorFrame(t, ConsumerTooSlow), nil)
	c := testClient(t, Config{Config: socket.Config{Registerer: metrics}}, address)
	conn, err := c.Connect(t.Context(), fromSeq(6), nil)
	require.NoError(t, err)
	require.Equal(t, int64(7), nextEvent(t, conn).Seq)
	_, err = conn.Next(t.Context())
	require.ErrorContains(t, err, "the server ended the connection: ConsumerTooSlow: sent by the test")
	require.NotErrorIs(t, err, consumer.ErrCursorRefused)
	require.Equal(t, []string{"/xrpc/com.atproto.sync.subscribeRepos?cursor=6"}, cursors)
	families, err := metrics.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "weir_firehose_notices_total" {
			for _, m := range f.GetMetric() {
				counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{ConsumerTooSlow: 1}, counted)
}

// TestRefusedCursorIsAFailure checks that an error frame is no event: a server that sends nothing
// else is tried less and less often.
func TestRefusedCursorIsAFailure(t *testing.T) {
	t.Parallel()
	var cursors []string
	c := testClient(t, Config{}, servedFrames(t, &cursors, errorFrame(t, FutureCursor)))
	var failed []int
	for range 4 {
		conn, err := c.Connect(t.Context(), fromSeq(6), func(a consumer.Attempt) { failed = append(failed, a.Failed) })
		require.NoError(t, err)
		_, err = conn.Next(t.Context())
		require.ErrorIs(t, err, consumer.ErrCursorRefused)
	}
	require.Equal(t, []int{1, 2, 3}, failed)
}

func TestOutdatedCursorIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var cursors []string
	info := append(encoded(t, map[string]any{"op": 1, "t": typeInfo}), encoded(t, map[string]any{"name": OutdatedCursor})...)
	c := testClient(t, Config{Config: socket.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}},
		servedFrames(t, &cursors, info, identityFrame(t, 900), nil))
	conn, err := c.Connect(t.Context(), fromSeq(6), nil)
	require.NoError(t, err)
	defer conn.Close() // never fails
	m := nextEvent(t, conn)
	require.Empty(t, m.Events)
	require.Empty(t, m.Malformed)
	require.Zero(t, m.TimeUS)
	require.Contains(t, log.String(), "msg=relay_notice host="+conn.Host()+" name=OutdatedCursor")
	require.Equal(t, int64(900), nextEvent(t, conn).Seq)
}

// TestFrameBeyondTheLimitKeepsItsPlace checks that a frame that is too long becomes one dead
// letter, whatever its length, and that the frame after it is read.
func TestFrameBeyondTheLimitKeepsItsPlace(t *testing.T) {
	t.Parallel()
	long := append(encoded(t, map[string]any{"op": 1, "t": typeIdentity}), encoded(t, map[string]any{
		"did": testDID, "seq": 8, "time": "2026-08-01T12:00:00.123Z", "handle": "a.example",
		"something": bytes.Repeat([]byte("x"), readLimit)})...)
	var cursors []string
	conn, err := testClient(t, Config{}, servedFrames(t, &cursors, long, identityFrame(t, 9), nil)).Connect(t.Context(), fromSeq(6), nil)
	require.NoError(t, err)
	defer conn.Close() // never fails
	m := nextEvent(t, conn)
	require.Equal(t, int64(8), m.Seq)
	require.Len(t, m.Malformed, 1)
	require.Equal(t, "the frame is too long", m.Malformed[0].Cause)
	require.Equal(t, testDID, m.Malformed[0].Author)
	require.Less(t, len(m.Malformed[0].Raw), 64<<10)
	require.Equal(t, int64(9), nextEvent(t, conn).Seq)
}

func TestClientIsConfigured(t *testing.T) {
	t.Parallel()
	for want, endpoints := range map[string][]string{"no relay endpoint": nil, `"relay" is not a relay endpoint`: {"relay"}} {
		_, err := New(Config{Config: socket.Config{Endpoints: endpoints}})
		require.ErrorContains(t, err, want)
	}
}
