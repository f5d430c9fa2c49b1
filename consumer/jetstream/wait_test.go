package jetstream_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/loopback"
)

// patient is a client that waits for half an hour or more between attempts.
func patient(endpoints ...string) jetstream.Config {
	cfg := everyone(endpoints...)
	cfg.MinWait, cfg.MaxWait, cfg.ProbeEvery, cfg.StartingWait = time.Hour, time.Hour, 5*time.Millisecond, 5*time.Millisecond
	return cfg
}

// away is an address that refuses connections until serve is called.
func away(t *testing.T) (address string, serve func(http.HandlerFunc)) {
	t.Helper()
	port, err := loopback.Reserve("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Release()) })
	return port.Address(), func(h http.HandlerFunc) {
		l, err := port.Listen()
		require.NoError(t, err)
		s := &httptest.Server{Listener: l, Config: &http.Server{Handler: h}}
		s.Start()
		t.Cleanup(s.Close)
	}
}

func accept(w http.ResponseWriter, r *http.Request) {
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow() // the test is over
	held(r.Context(), ws)
}

// TestReturningServerEndsTheWait restarts a server, which refuses connections,
// responds with 503 for a while, and is then ready. The client would otherwise wait
// half an hour.
func TestReturningServerEndsTheWait(t *testing.T) {
	t.Parallel()
	address, serve := away(t)
	c := client(t, patient("ws://"+address))
	waiting := make(chan consumer.Attempt, 100)
	type result struct {
		conn consumer.Conn
		err  error
	}
	connected := make(chan result, 1)
	go func() {
		conn, err := c.Connect(t.Context(), tip, func(a consumer.Attempt) { waiting <- a })
		connected <- result{conn, err}
	}()
	require.Greater(t, (<-waiting).Wait, 29*time.Minute)

	refused := atomic.Int64{}
	serve(func(w http.ResponseWriter, r *http.Request) {
		if refused.Add(1) <= 5 {
			http.Error(w, "cursor replay warming up", http.StatusServiceUnavailable)
			return
		}
		accept(w, r)
	})
	eventually.True(t, func() bool { return len(connected) == 1 }, 10*time.Millisecond, "the client still waits although the server is back")
	got := <-connected
	require.NoError(t, got.err)
	require.NoError(t, got.conn.Close())
	require.Equal(t, int64(6), refused.Load())
}

// TestRefusingServerIsNotProbed checks that a server that responds with 429
// gets no request until the wait is over.
func TestRefusingServerIsNotProbed(t *testing.T) {
	t.Parallel()
	connections := atomic.Int64{}
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "too many connections", http.StatusTooManyRequests)
	}))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			connections.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	refused := func(consumer.Attempt) { time.AfterFunc(300*time.Millisecond, cancel) }
	_, err := client(t, patient("ws"+s.URL[len("http"):])).Connect(ctx, tip, refused)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, int64(1), connections.Load())
}

// TestRetryAfterIsRespected checks that another host is tried in the meantime,
// as often as the waits allow.
func TestRetryAfterIsRespected(t *testing.T) {
	t.Parallel()
	asked := atomic.Int64{}
	busy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.Header().Set("Retry-After", "60")
		http.Error(w, "not now", http.StatusServiceUnavailable)
	}))
	t.Cleanup(busy.Close)
	gone, _ := away(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := client(t, everyone("ws"+busy.URL[len("http"):], "ws://"+gone)).Connect(ctx, tip, func(a consumer.Attempt) {
		if a.Failed == 12 {
			cancel()
		}
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, int64(1), asked.Load())
}
