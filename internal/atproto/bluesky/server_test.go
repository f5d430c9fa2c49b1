package bluesky_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

const (
	alice = "did:plc:wq4aajammjtxdomz3e23667t"
	bob   = "did:plc:z72i7hdynmk6r22z27h6tvur"
	cid   = "bafyreib2rxk3rybk3aobmv5cjuql3bm2twh4jo5uxgf5kpqcsgz7soitae"
)

// requested is a request as a server received it.
type requested struct {
	call  string // path without /xrpc/
	query url.Values
	auth  string
	body  string
	at    time.Time
}

// journal records the requests to a server. It may be read while it grows.
type journal struct {
	mu   sync.Mutex
	list []requested
}

func (j *journal) note(r *http.Request) int {
	body, _ := io.ReadAll(r.Body)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.list = append(j.list, requested{call: strings.TrimPrefix(r.URL.Path, "/xrpc/"), query: r.URL.Query(),
		auth: r.Header.Get("Authorization"), body: string(body), at: time.Now()})
	return len(j.list)
}

func (j *journal) all() []requested {
	j.mu.Lock()
	defer j.mu.Unlock()
	return append([]requested(nil), j.list...)
}

func (j *journal) calls() []string {
	var out []string
	for _, a := range j.all() {
		out = append(out, a.call)
	}
	return out
}

// answerer is the script of a server; n is the number of the request, from 1.
type answerer func(w http.ResponseWriter, r *http.Request, n int)

func (j *journal) handler(answer answerer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer(w, r, j.note(r)) })
}

// serve starts a server on loopback.
func serve(t testing.TB, answer answerer) (string, *journal) {
	t.Helper()
	j := new(journal)
	s := httptest.NewServer(j.handler(answer))
	t.Cleanup(s.Close)
	return s.URL, j
}

// pipes is a network in memory, which works in a synctest bubble. Every host
// name leads to the same server.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.done) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	select {
	case p.conns <- theirs:
		return ours, nil
	case <-p.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// serveInside starts a server inside a bubble, and returns an HTTP client that
// reaches it.
func serveInside(t *testing.T, answer answerer) (*http.Client, *journal) {
	t.Helper()
	j, p := new(journal), &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
	s := &http.Server{Handler: j.handler(answer)}
	gone := make(chan struct{})
	go func() { defer close(gone); _ = s.Serve(p) }()
	transport := &http.Transport{DialContext: p.dial}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = s.Shutdown(context.Background()) // waits for the handlers
		<-gone
	})
	return &http.Client{Transport: transport}, j
}

// newClient creates a client of the AppView at base. The waits within a call
// are short unless the test sets others.
func newClient(t testing.TB, base string, change func(*bluesky.Config)) *bluesky.Client {
	t.Helper()
	cfg := bluesky.Config{
		AppView: base, Directory: base, Retries: []time.Duration{time.Millisecond, time.Millisecond}, Registerer: prometheus.NewRegistry(),
	}
	if change != nil {
		change(&cfg)
	}
	c, err := bluesky.New(cfg)
	require.NoError(t, err)
	return c
}

func noRetries(cfg *bluesky.Config) { cfg.Retries = []time.Duration{} }

func reply(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// resolved responds like resolveHandle, with the shortest possible body.
func resolved(w http.ResponseWriter) { reply(w, http.StatusOK, `{"did":"`+alice+`"}`) }

func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// failure returns the typed error in err.
func failure(t *testing.T, err error) *bluesky.Error {
	t.Helper()
	var e *bluesky.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, e.Class, bluesky.Classify(err))
	require.Equal(t, e.RetryAfter, bluesky.RetryAfter(err))
	require.NotEmpty(t, e.Call)
	return e
}
