package web

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// startInMemory runs a server on connections in memory until the test ends.
func startInMemory(t *testing.T, handler http.HandlerFunc) *webtest.Listener {
	t.Helper()
	return webtest.StartInMemory(t, NewServer(ServerConfig{
		Handler: handler, Connections: 100, Within: 20 * time.Second, Logger: slog.New(slog.DiscardHandler),
	}))
}

// readUntilClosed reads until the server closes the connection. It returns how long
// that takes and what it read.
func readUntilClosed(t *testing.T, c net.Conn) (after time.Duration, got string) {
	t.Helper()
	began := time.Now()
	raw, err := io.ReadAll(c)
	require.NoError(t, err)
	return time.Since(began), string(raw)
}

func TestSlowClientsAreDisconnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		large := strings.Repeat("x", 1<<20)
		l := startInMemory(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(large)) }) // nobody reads it
		silent := l.Dial()
		after, _ := readUntilClosed(t, silent)
		require.Equal(t, headerTimeout, after, "the client sent nothing")

		half := l.Dial()
		fmt.Fprint(half, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		after, _ = readUntilClosed(t, half)
		require.Equal(t, headerTimeout, after, "the client sent half a header")

		idle := l.Dial()
		fmt.Fprint(idle, "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		after, got := readUntilClosed(t, idle)
		require.Contains(t, got, "200 OK")
		require.Equal(t, idleTimeout, after)

		deaf := l.Dial()
		fmt.Fprint(deaf, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		time.Sleep(20*time.Second + time.Millisecond)
		_, got = readUntilClosed(t, deaf)
		require.Empty(t, got, "the server closed it before the client read anything")
	})
}

func TestRequestBodiesAreNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handled := 0
		l := startInMemory(t, func(w http.ResponseWriter, r *http.Request) {
			handled++
			require.Equal(t, http.MethodPost, r.Method)
			w.WriteHeader(http.StatusMethodNotAllowed)
		})
		for request, want := range map[string]string{
			"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n":                                "413 ",
			"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n": "413 ",
			"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n":                         "413 ",
			"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n":                               "405 ",
		} {
			c := l.Dial()
			fmt.Fprint(c, request)
			after, got := readUntilClosed(t, c)
			require.Contains(t, got, "HTTP/1.1 "+want)
			require.Contains(t, got, "Connection: close")
			require.Less(t, after, headerTimeout, request)
		}
		require.Equal(t, 1, handled, "only the POST request")
	})
}

// startServer runs a server on loopback until the test ends, and returns its address.
func startServer(t *testing.T, cfg ServerConfig) string {
	t.Helper()
	cfg.Within, cfg.Logger = time.Minute, slog.New(slog.DiscardHandler)
	return webtest.Start(t, NewServer(cfg))
}

// TestIdleConnectionsAreEvicted shows that idle connections do not block a client that sends a
// request. The server closes those that have waited longest, but none before minWait.
func TestIdleConnectionsAreEvicted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit, many = 100, 250
		l := startInMemory(t, func(http.ResponseWriter, *http.Request) {})
		lasted := make([]time.Duration, many)
		var all sync.WaitGroup
		for i := range many {
			c := l.Dial()
			began := time.Now()
			all.Go(func() {
				io.Copy(io.Discard, c) // until the server closes it
				lasted[i] = time.Since(began)
			})
		}
		c, began := l.Dial(), time.Now()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		_, got := readUntilClosed(t, c)
		require.Contains(t, got, "200 OK")
		require.Less(t, time.Since(began), time.Second)
		all.Wait()
		for i, lasted := range lasted {
			if i <= many-limit {
				require.GreaterOrEqual(t, lasted, minWait, i)
				require.Less(t, lasted, headerTimeout, i)
			} else {
				require.GreaterOrEqual(t, lasted, headerTimeout, i)
			}
		}
	})
}

// TestServedConnectionsStay shows that a connection that is being served is closed for a new one
// only if all connections are being served.
func TestServedConnectionsStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := startInMemory(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			w.Write([]byte("done")) // the client checks it
		})
		ask := func() net.Conn {
			c := l.Dial()
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			return c
		}
		first := ask()
		for range 150 {
			defer l.Dial().Close() // the test is over
		}
		_, got := readUntilClosed(t, first)
		require.Contains(t, got, "done")

		time.Sleep(headerTimeout)
		asked := make([]net.Conn, 101)
		for i := range asked {
			asked[i] = ask()
			if i == 0 {
				synctest.Wait() // the server serves this one before the others
			}
		}
		_, got = readUntilClosed(t, asked[0])
		require.Empty(t, got)
		for _, c := range asked[1:] {
			_, got = readUntilClosed(t, c)
			require.Contains(t, got, "done")
		}
	})
}

// TestConcurrentPagesAreLimited shows that if all render slots are taken for two seconds, a page is
// refused with a Retry-After header. A response that needs no database is not refused.
func TestConcurrentPagesAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler, err := Handler(Config{Parts: []Part{treePart()}, DB: webtest.Hung{}, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		r := &rig{&webtest.Rig{T: t, Handler: handler}}
		began := time.Now()
		var all sync.WaitGroup
		for i := range maxRendering {
			all.Go(func() { r.Do(http.MethodGet, fmt.Sprintf("/?%d", i)) })
		}
		synctest.Wait()
		for _, target := range []string{"/", "/api/v1/trees"} {
			began := time.Now()
			rec := r.Do(http.MethodGet, target)
			require.Equal(t, http.StatusServiceUnavailable, rec.Code, target)
			require.Equal(t, "2", rec.Header().Get("Retry-After"))
			require.Contains(t, rec.Body.String(), "Try again in a moment")
			if target == "/" {
				require.Equal(t, renderTimeout, time.Since(began))
				require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, "/nowhere").Code)
				require.Equal(t, renderTimeout, time.Since(began))
			}
		}
		all.Wait()
		require.GreaterOrEqual(t, time.Since(began), QueryTimeout)
	})
}
