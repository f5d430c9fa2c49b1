// Package webtest requests pages from a handler that has a database of its own, and reads them as a browser does.
package webtest

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/schematest"
)

// busy is how long a page may wait for its turn before it is refused.
const busy = 2 * time.Second

// Rig is a page with a database of its own and a fixed time.
type Rig struct {
	T       *testing.T
	Pool    *pgxpool.Pool
	Now     time.Time
	Log     *Lines
	Handler http.Handler
}

// New returns a rig without a handler.
func New(t *testing.T) *Rig {
	t.Helper()
	r := &Rig{T: t, Pool: schematest.New(t), Now: time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC), Log: &Lines{}}
	r.Exec(`UPDATE weir_migration SET applied_at = $1`, r.Now.AddDate(-1, 0, 0))
	return r
}

// Lines collects a log.
type Lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Lines) Count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), "\n")
}

func (r *Rig) Exec(sql string, args ...any) {
	r.T.Helper()
	_, err := r.Pool.Exec(context.Background(), sql, args...)
	require.NoError(r.T, err)
}

// Stream stores a stream whose lease a consumer holds.
func (r *Rig) Stream(name, state, detail string) {
	r.T.Helper()
	r.Exec(`INSERT INTO streams (name, wire, host, state, state_detail, state_since, last_event_at,
			lease_owner, lease_renewed_at, lease_expires_at)
		VALUES ($1, 'jetstream', 'host.example', $2, $3, $4, $5, 'me', now(), now() + interval '1 hour')`, name, state, detail,
		r.Now.Add(-2*time.Minute), r.Now.Add(-30*time.Second))
}

func (r *Rig) Do(method, target string, header ...string) *httptest.ResponseRecorder {
	r.T.Helper()
	req := httptest.NewRequestWithContext(context.Background(), method, target, nil)
	req.RemoteAddr = "127.0.0.1:1000" // not subject to the rate limit
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	for {
		rec, began := httptest.NewRecorder(), time.Now()
		r.Handler.ServeHTTP(rec, req)
		if r.Pool == nil || rec.Code != http.StatusServiceUnavailable || time.Since(began) < busy {
			return rec
		}
		r.T.Logf("%s took too long, and is requested again", target) // the machine is busy
	}
}

// Get returns the body of a request that must succeed. It may be redirected to the only address of
// its view.
func (r *Rig) Get(target string) string {
	r.T.Helper()
	rec := r.Do(http.MethodGet, target)
	if rec.Code == http.StatusFound {
		rec = r.Do(http.MethodGet, rec.Header().Get("Location"))
	}
	require.Equal(r.T, http.StatusOK, rec.Code, rec.Body.String())
	return rec.Body.String()
}

// Parse reads a page as a browser does.
func (r *Rig) Parse(body string) *html.Node {
	r.T.Helper()
	doc, err := html.Parse(strings.NewReader(body))
	require.NoError(r.T, err)
	return doc
}

// Find returns the elements that match a predicate, in document order.
func Find(doc *html.Node, pick func(*html.Node) bool) (found []*html.Node) {
	for n := range doc.Descendants() {
		if n.Type == html.ElementNode && pick(n) {
			found = append(found, n)
		}
	}
	return found
}

func Class(name string) func(*html.Node) bool {
	return func(n *html.Node) bool {
		return strings.Contains(" "+Attr(n, "class")+" ", " "+name+" ")
	}
}

func Attr(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// Text returns the text of an element on one line.
func Text(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}

// Audit parses a page as a browser does, and checks that a stranger's text does
// not become an element, an attribute or a URL that runs code.
func (r *Rig) Audit(body string) {
	r.T.Helper()
	elements := map[string]bool{}
	for _, name := range strings.Fields("html head meta title link script noscript body header div h1 a img p nav main strong span time " +
		"details summary ul li ol h2 bdi footer code dl dt dd pre form input label select option button b h3 section svg path script") {
		elements[name] = true
	}
	for _, n := range Find(r.Parse(body), func(*html.Node) bool { return true }) {
		require.True(r.T, elements[n.Data], "element %s", n.Data)
		if n.Data == "script" {
			require.True(r.T, strings.HasPrefix(Attr(n, "src"), "/static/"), Attr(n, "src"))
		}
		for _, a := range n.Attr {
			require.False(r.T, strings.HasPrefix(a.Key, "on") || a.Key == "style" || a.Key == "srcdoc", a.Key)
			if a.Key != "href" && a.Key != "src" {
				continue
			}
			u, err := url.Parse(a.Val)
			require.NoError(r.T, err)
			ours := u.Scheme == "" && u.Host == "" && (strings.HasPrefix(a.Val, "/") || a.Val == "#gaps")
			require.True(r.T, ours || u.Scheme == "https" || u.Scheme == "http", a.Val)
		}
	}
}

func HostileTexts() []string {
	return []string{
		`<script>alert(1)</script>`, `</title><script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `<!--`,
		`]]>`,
		`{{.}}`, `javascript:alert(1)`, `&lt;script&gt;`, "\u202Etxt.exe\u2066", "a\nb\tc\x01\x1b[31m", "\u0000x",
		`</ol></main><a href="javascript:alert(1)">x</a>`,
		strings.Repeat("W", 20000), strings.Repeat("\u0301", 500) + "e" + strings.Repeat("\u0301", 500), "\u3164", "🏴󠁧󠁢󠁥󠁮󠁧󠁿 مرحبا שלום",
	}
}

func Element(name string) func(*html.Node) bool {
	return func(n *html.Node) bool { return n.Data == name }
}
