package links

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links/linkstest"
)

func TestMain(m *testing.M) { schematest.Main(m) }

// rig is a page with a database of its own.
type rig struct{ linkstest.Rig }

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{linkstest.New(t)}
	_, r.Handler = newServer(t, web.Config{
		DB: r.Pool, Now: func() time.Time { return r.Now }, Logger: slog.New(slog.NewJSONHandler(r.Log, nil)),
	})
	return r
}

// newServer returns a page with links, and its server of links.
func newServer(t *testing.T, cfg web.Config) (s *Server, page http.Handler) {
	t.Helper()
	part := Part("https://images.example/{did}/{cid}")
	part.Routes = func(core *web.Server) []web.Route {
		s = New(core)
		return s.routes()
	}
	cfg.Parts = []web.Part{part, nostrPart()}
	page, err := web.Handler(cfg)
	require.NoError(t, err)
	return s, page
}

// TestLinksNeedNoOtherPart shows that the ranking needs no other part, and announces no feed of one.
func TestLinksNeedNoOtherPart(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	var err error
	r.Handler, err = web.Handler(web.Config{
		Parts: []web.Part{Part("")}, DB: r.Pool, Now: func() time.Time { return r.Now }, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	for _, target := range []string{"/", "/links/1", "/api/v1/trending", "/api/v1/links/1/shares"} {
		require.Equal(t, http.StatusOK, r.Do(http.MethodGet, target).Code, target)
	}
	require.NotContains(t, r.Get("/"), "feed", "the page announces no feed")
	require.JSONEq(t, `{"error":"There is nothing at this address: the ranking is at /, and as JSON at /api/v1/trending."}`,
		r.Do(http.MethodGet, "/api/v2/trending").Body.String())
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
	handler, err := web.Handler(web.Config{Parts: []web.Part{Part("")}, DB: r.Pool, Logger: slog.New(slog.DiscardHandler),
		Now: func() time.Time {
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
