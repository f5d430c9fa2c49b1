package web

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/web/webtest"
)

// rig is a page with a database of its own.
type rig struct{ *webtest.Rig }

const testImages = "https://images.example/{did}/{cid}"

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{webtest.New(t)}
	var err error
	r.Handler, err = Handler(Config{
		DB: r.Pool, Now: func() time.Time { return r.Now }, ImageBase: testImages, Title: "Weir",
		Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	require.NoError(t, err)
	return r
}

// asOps makes the rig use the handler for operators.
func (r *rig) asOps(token string) *rig {
	r.T.Helper()
	var err error
	r.Handler, err = OpsHandler(OpsConfig{
		DB: r.Pool, Check: func(context.Context) error { return nil }, Metrics: prometheus.NewRegistry(), Token: token,
		Now: func() time.Time { return r.Now }, Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	require.NoError(r.T, err)
	return r
}

func TestOnlyGETAndHEADAreAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
		for _, target := range []string{"/", "/api/v1/trending", "/nowhere"} {
			rec := r.Do(method, target)
			require.Equal(t, http.StatusMethodNotAllowed, rec.Code, "%s %s", method, target)
			require.Equal(t, "GET, HEAD", rec.Header().Get("Allow"))
		}
	}
	for _, target := range []string{"/", "/api/v1/trending"} {
		require.Equal(t, http.StatusOK, r.Do(http.MethodHead, target).Code, target)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{"/nowhere", "/index.html", "/static/page.css", "/static/0/page.css", "/fragment", "/api/v1/trending/x", "/templates/page.html"} {
		require.Equal(t, http.StatusNotFound, r.Do(http.MethodGet, target).Code, target)
	}
	require.JSONEq(t, `{"error":"There is nothing at this address: the ranking is at /, and as JSON at /api/v1/trending."}`,
		r.Do(http.MethodGet, "/api/v2/trending").Body.String())
}

func TestEveryResponseHasThePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{"/", "/api/v1/trending", "/nowhere", "/?window=2h"} {
		h := r.Do(http.MethodGet, target).Header()
		require.Equal(t, "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' https://images.example; "+
			"base-uri 'none'; form-action 'self'; frame-ancestors 'none'", h.Get("Content-Security-Policy"), target)
		require.Equal(t, "nosniff", h.Get("X-Content-Type-Options"), target)
		require.Equal(t, "no-referrer", h.Get("Referrer-Policy"), target)
	}
}

// TestAssetsOfThePageAreServed shows that the files that a page loads exist, have the right type,
// and can be cached by browsers.
func TestAssetsOfThePageAreServed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	doc := r.Parse(r.Get("/"))
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	loaded := 0
	for _, n := range webtest.Find(doc, func(n *html.Node) bool {
		return n.Data == "link" && webtest.Attr(n, "rel") != "alternate" || n.Data == "script" || n.Data == "img"
	}) {
		address := webtest.Attr(n, "href") + webtest.Attr(n, "src")
		rec := r.Do(http.MethodGet, address)
		require.Equal(t, http.StatusOK, rec.Code, address)
		require.Equal(t, types[address[strings.LastIndex(address, "."):]], rec.Header().Get("Content-Type"), address)
		require.Contains(t, rec.Header().Get("Cache-Control"), "immutable")
		loaded++
	}
	require.Equal(t, 4, loaded, "style, script, and the icon twice")
}

// TestPageHasNoInlineScriptsOrStyles covers the policy 'self', which forbids them.
func TestPageHasNoInlineScriptsOrStyles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	r.Exec(`UPDATE links SET image = 'blob:did:plc:abc/bafkreiabcdefgh', description = 'words'`)
	for n := range r.Parse(r.Get("/")).Descendants() {
		require.NotEqual(t, "style", n.Data)
		require.False(t, n.Data == "script" && n.FirstChild != nil, "an inline script")
		for _, a := range n.Attr {
			require.NotEqual(t, "style", a.Key)
			require.False(t, strings.HasPrefix(a.Key, "on"), a.Key)
		}
	}
}

func TestInvalidConfigurationIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	good := Config{DB: r.Pool, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
	_, err := Handler(good)
	require.NoError(t, err)
	for name, spoil := range map[string]func(*Config){
		"no database": func(c *Config) { c.DB = nil },
		"no clock":    func(c *Config) { c.Now = nil },
		"no logger":   func(c *Config) { c.Logger = nil },
		"image base":  func(c *Config) { c.ImageBase = "ftp://images.example/{did}/{cid}" },
	} {
		cfg := good
		spoil(&cfg)
		_, err := Handler(cfg)
		require.Error(t, err, name)
	}
}

// watchedContext reports when a goroutine begins to wait for its end.
type watchedContext struct {
	context.Context
	once    sync.Once
	waiting chan struct{}
}

func (c *watchedContext) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waiting) })
	return c.Context.Done()
}

// TestConcurrentRequestsShareOneCount shows that concurrent requests share one count, even if the
// first client disconnects. The next request gets a new count.
func TestConcurrentRequestsShareOneCount(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	var mu sync.Mutex
	counts := 0
	handler, err := Handler(Config{DB: r.Pool, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		counts++
		return r.Now
	}})
	require.NoError(t, err)

	held, err := r.Pool.Begin(context.Background())
	require.NoError(t, err)
	_, err = held.Exec(context.Background(), `LOCK TABLE shares IN ACCESS EXCLUSIVE MODE`)
	require.NoError(t, err)

	const viewers = 8
	recorders := make([]*httptest.ResponseRecorder, viewers)
	first, leave := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i := range recorders {
		base := context.Background()
		if i == 0 {
			base = first
		}
		ctx := &watchedContext{Context: base, waiting: make(chan struct{})}
		recorders[i] = httptest.NewRecorder()
		req := httptest.NewRequestWithContext(ctx, http.MethodGet, "/?window=1h", nil)
		all.Go(func() { handler.ServeHTTP(recorders[i], req) })
		<-ctx.waiting
	}
	leave()
	require.NoError(t, held.Rollback(context.Background()))
	all.Wait()
	require.Equal(t, 1, counts)
	for _, rec := range recorders[1:] {
		require.Equal(t, http.StatusOK, rec.Code)
		require.Contains(t, rec.Body.String(), "https://a.example/")
	}

	r.Share("https://b.example/", "did:plc:aaa", time.Minute)
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/?window=1h", nil))
	require.Contains(t, rec.Body.String(), "https://b.example/")
	require.Equal(t, 2, counts)
}

func ExampleHandler() {
	_, err := Handler(Config{})
	fmt.Println(err)
	// Output: the page needs DB, Now and Logger: set all three
}
