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
)

// pipes is a listener of connections in memory, for tests in which time is not
// the real one.
type pipes struct {
	come chan net.Conn
	done chan struct{}
	once sync.Once
}

func newPipes() *pipes { return &pipes{come: make(chan net.Conn), done: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.come:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.come <- theirs
	return ours
}

// served runs a server on memory until the test ends.
func served(t *testing.T, handler http.HandlerFunc) *pipes {
	t.Helper()
	l := newPipes()
	server := NewServer(ServerConfig{Handler: handler, Connections: 100, Within: 20 * time.Second, Logger: slog.New(slog.DiscardHandler)})
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) }) //nolint:errcheck // it was closed
	t.Cleanup(func() {
		server.Close() //nolint:errcheck // it is in memory
		serving.Wait()
	})
	return l
}

// ends is how long a connection stays open while its client does nothing more.
func ends(t *testing.T, c net.Conn) (after time.Duration, got string) {
	t.Helper()
	began := time.Now()
	raw, err := io.ReadAll(c)
	require.NoError(t, err)
	return time.Since(began), string(raw)
}

func TestSlowClientsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		large := strings.Repeat("x", 1<<20)
		l := served(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte(large)) }) //nolint:errcheck // nobody reads it
		silent := l.dial()
		after, _ := ends(t, silent)
		require.Equal(t, headerTimeout, after, "nothing came")

		half := l.dial()
		fmt.Fprint(half, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
		after, _ = ends(t, half)
		require.Equal(t, headerTimeout, after, "half a header came")

		idle := l.dial()
		fmt.Fprint(idle, "HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		after, got := ends(t, idle)
		require.Contains(t, got, "200 OK")
		require.Equal(t, idleTimeout, after)

		deaf := l.dial()
		fmt.Fprint(deaf, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
		time.Sleep(20*time.Second + time.Millisecond)
		_, got = ends(t, deaf)
		require.Empty(t, got, "it was cut off before anything was read")
	})
}

func TestBodiesAreNotReadNorWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		l := served(t, func(w http.ResponseWriter, r *http.Request) {
			asked++
			require.Equal(t, http.MethodPost, r.Method)
			w.WriteHeader(http.StatusMethodNotAllowed)
		})
		for request, want := range map[string]string{
			"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n":                                "413 ",
			"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000\r\nExpect: 100-continue\r\n\r\n": "413 ",
			"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n":                         "413 ",
			"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n":                               "405 ",
		} {
			c := l.dial()
			fmt.Fprint(c, request)
			after, got := ends(t, c)
			require.Contains(t, got, "HTTP/1.1 "+want)
			require.Contains(t, got, "Connection: close")
			require.Less(t, after, headerTimeout, request)
		}
		require.Equal(t, 1, asked, "the refused method alone")
	})
}

// listening runs a server on loopback until the test ends.
func listening(t *testing.T, cfg ServerConfig) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cfg.Within, cfg.Logger = time.Minute, slog.New(slog.DiscardHandler)
	server := NewServer(cfg)
	go server.Serve(l)                   //nolint:errcheck // it was closed
	t.Cleanup(func() { server.Close() }) //nolint:errcheck // the test is over
	return l.Addr().String()
}

// However many connections dawdle, there is room for one that asks. Those that
// have waited longest make it, and each had its moment.
func TestDawdlersMakeRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const most, many = 100, 250
		l := served(t, func(http.ResponseWriter, *http.Request) {})
		lasted := make([]time.Duration, many)
		var all sync.WaitGroup
		for i := range many {
			c := l.dial()
			began := time.Now()
			all.Go(func() {
				io.Copy(io.Discard, c) //nolint:errcheck // until it ends
				lasted[i] = time.Since(began)
			})
		}
		c, began := l.dial(), time.Now()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
		_, got := ends(t, c)
		require.Contains(t, got, "200 OK")
		require.Less(t, time.Since(began), time.Second)
		all.Wait()
		for i, lasted := range lasted {
			if i <= many-most {
				require.GreaterOrEqual(t, lasted, leastWait, i)
				require.Less(t, lasted, headerTimeout, i)
			} else {
				require.GreaterOrEqual(t, lasted, headerTimeout, i)
			}
		}
	})
}

// A connection that is being answered gives way to a new one only where all
// others are being answered too.
func TestConnectionsThatAreAnsweredStay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := served(t, func(w http.ResponseWriter, _ *http.Request) {
			time.Sleep(10 * time.Second)
			w.Write([]byte("done")) //nolint:errcheck // see the client
		})
		ask := func() net.Conn {
			c := l.dial()
			fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			return c
		}
		first := ask()
		for range 150 {
			defer l.dial().Close() //nolint:errcheck // the test is over
		}
		_, got := ends(t, first)
		require.Contains(t, got, "done")

		time.Sleep(headerTimeout)
		asked := make([]net.Conn, 101)
		for i := range asked {
			asked[i] = ask()
			if i == 0 {
				synctest.Wait() // it is being answered before the others
			}
		}
		_, got = ends(t, asked[0])
		require.Empty(t, got)
		for _, c := range asked[1:] {
			_, got = ends(t, c)
			require.Contains(t, got, "done")
		}
	})
}

// What cannot be made within two seconds, since too much is being made, is
// refused, and told when to ask again; what needs no database is not.
func TestPagesMadeAtOnceAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler, err := Handler(Config{DB: hung{}, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		r := &rig{t: t, handler: handler}
		began := time.Now()
		var all sync.WaitGroup
		for i := range pagesAtOnce {
			all.Go(func() { r.do(http.MethodGet, fmt.Sprintf("/api/v1/trending?limit=%d", 1+i)) })
		}
		synctest.Wait()
		for _, target := range []string{"/", "/api/v1/trending"} {
			began := time.Now()
			rec := r.do(http.MethodGet, target)
			require.Equal(t, http.StatusServiceUnavailable, rec.Code, target)
			require.Equal(t, "2", rec.Header().Get("Retry-After"))
			require.Contains(t, rec.Body.String(), "Try again in a moment")
			if target == "/" {
				require.Equal(t, pagePatience, time.Since(began))
				require.Equal(t, http.StatusNotFound, r.do(http.MethodGet, "/nowhere").Code)
				require.Equal(t, pagePatience, time.Since(began))
			}
		}
		all.Wait()
		require.GreaterOrEqual(t, time.Since(began), queryTimeout)
	})
}
