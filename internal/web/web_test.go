package web

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// rig is a page with a database of its own and a fixed time.
type rig struct {
	t       *testing.T
	pool    *pgxpool.Pool
	now     time.Time
	log     *lines
	handler http.Handler
}

// lines collects a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}

const testImages = "https://images.example/{did}/{cid}"

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, pool: schematest.New(t), now: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC), log: &lines{}}
	r.exec(`UPDATE weir_migration SET applied_at = $1`, r.now.AddDate(-1, 0, 0))
	var err error
	r.handler, err = Handler(Config{
		DB: r.pool, Now: func() time.Time { return r.now }, ImageBase: testImages, Title: "Weir",
		Logger: slog.New(slog.NewJSONHandler(r.log, nil)),
	})
	require.NoError(t, err)
	return r
}

// asOps makes the rig use the handler for operators.
func (r *rig) asOps(token string) *rig {
	r.t.Helper()
	var err error
	r.handler, err = OpsHandler(OpsConfig{
		DB: r.pool, Check: func(context.Context) error { return nil }, Metrics: prometheus.NewRegistry(), Token: token,
		Now: func() time.Time { return r.now }, Logger: slog.New(slog.NewJSONHandler(r.log, nil)),
	})
	require.NoError(r.t, err)
	return r
}

func (r *rig) exec(sql string, args ...any) {
	r.t.Helper()
	_, err := r.pool.Exec(context.Background(), sql, args...)
	require.NoError(r.t, err)
}

// share stores a share of url by did, ago before now.
func (r *rig) share(url, did string, ago time.Duration) {
	r.t.Helper()
	// The link has no votes: a kept link keeps its card.
	r.exec(`INSERT INTO links (identity, url, site, title, first_seen, kept_sharers, kept_at) VALUES ($1, $1, 'site.example', 'Title of ' || $1, $2, 1, $2) ON CONFLICT (identity) DO NOTHING`,
		url, r.now)
	r.exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT $1, 'app.bsky.feed.post', gen_random_uuid()::text, id, id, 'post', $3 FROM links WHERE url = $2`, did, url, r.now.Add(-ago))
}

// stream stores a stream whose lease a consumer holds.
func (r *rig) stream(name, state, detail string) {
	r.t.Helper()
	r.exec(`INSERT INTO streams (name, wire, host, state, state_detail, state_since, last_event_at, lease_owner, lease_renewed_at, lease_expires_at)
		VALUES ($1, 'jetstream', 'host.example', $2, $3, $4, $5, 'me', now(), now() + interval '1 hour')`, name, state, detail, r.now.Add(-2*time.Minute), r.now.Add(-30*time.Second))
}

func (r *rig) do(method, target string, header ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	req := httptest.NewRequestWithContext(context.Background(), method, target, nil)
	req.RemoteAddr = "127.0.0.1:1000" // not subject to the rate limit
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	for {
		rec, began := httptest.NewRecorder(), time.Now()
		r.handler.ServeHTTP(rec, req)
		if r.pool == nil || rec.Code != http.StatusServiceUnavailable || time.Since(began) < renderTimeout {
			return rec
		}
		r.t.Logf("%s took too long, and is requested again", target) // the machine is busy
	}
}

// get returns the body of a request that must succeed. It may be redirected to the only address of
// its view.
func (r *rig) get(target string) string {
	r.t.Helper()
	rec := r.do(http.MethodGet, target)
	if rec.Code == http.StatusFound {
		rec = r.do(http.MethodGet, rec.Header().Get("Location"))
	}
	require.Equal(r.t, http.StatusOK, rec.Code, rec.Body.String())
	return rec.Body.String()
}

// parse reads a page as a browser does.
func (r *rig) parse(body string) *html.Node {
	r.t.Helper()
	doc, err := html.Parse(strings.NewReader(body))
	require.NoError(r.t, err)
	return doc
}

// find returns the elements that match a predicate, in document order.
func find(doc *html.Node, pick func(*html.Node) bool) (found []*html.Node) {
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && pick(n) {
			found = append(found, n)
		}
	}
	return found
}

func class(name string) func(*html.Node) bool {
	return func(n *html.Node) bool {
		return strings.Contains(" "+attr(n, "class")+" ", " "+name+" ")
	}
}

func attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// text returns the text of an element on one line.
func text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

func TestOnlyGETAndHEADAreAllowed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, "BREW"} {
		for _, target := range []string{"/", "/api/v1/trending", "/nowhere"} {
			rec := r.do(method, target)
			require.Equal(t, http.StatusMethodNotAllowed, rec.Code, "%s %s", method, target)
			require.Equal(t, "GET, HEAD", rec.Header().Get("Allow"))
		}
	}
	for _, target := range []string{"/", "/api/v1/trending"} {
		require.Equal(t, http.StatusOK, r.do(http.MethodHead, target).Code, target)
	}
}

func TestUnknownPathsAreNotFound(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{"/nowhere", "/index.html", "/static/page.css", "/static/0/page.css", "/fragment", "/api/v1/trending/x", "/templates/page.html"} {
		require.Equal(t, http.StatusNotFound, r.do(http.MethodGet, target).Code, target)
	}
	require.JSONEq(t, `{"error":"There is nothing at this address: the ranking is at /, and as JSON at /api/v1/trending."}`,
		r.do(http.MethodGet, "/api/v2/trending").Body.String())
}

func TestEveryResponseHasThePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, target := range []string{"/", "/api/v1/trending", "/nowhere", "/?window=2h"} {
		h := r.do(http.MethodGet, target).Header()
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
	doc := r.parse(r.get("/"))
	types := map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
	loaded := 0
	for _, n := range find(doc, func(n *html.Node) bool {
		return n.Data == "link" && attr(n, "rel") != "alternate" || n.Data == "script" || n.Data == "img"
	}) {
		address := attr(n, "href") + attr(n, "src")
		rec := r.do(http.MethodGet, address)
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
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	r.exec(`UPDATE links SET image = 'blob:did:plc:abc/bafkreiabcdefgh', description = 'words'`)
	for n := range r.parse(r.get("/")).Descendants() {
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
	good := Config{DB: r.pool, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
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
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	var mu sync.Mutex
	counts := 0
	handler, err := Handler(Config{DB: r.pool, Logger: slog.New(slog.DiscardHandler), Now: func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		counts++
		return r.now
	}})
	require.NoError(t, err)

	held, err := r.pool.Begin(context.Background())
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

	r.share("https://b.example/", "did:plc:aaa", time.Minute)
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
