package links

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
)

// TestPageIsSentOnlyWhenItLooksDifferent shows that a page is sent again only
// if it looks different, including its ages.
func TestPageIsSentOnlyWhenItLooksDifferent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", "quiet", "")
	r.Exec(`UPDATE streams SET last_event_at = $1`, r.Now.Add(-2*time.Hour))
	r.Share("https://a.example/", "did:plc:aaa", 10*time.Minute)
	r.Exec(`UPDATE links SET first_seen = $1`, r.Now.Add(-10*time.Minute))
	rec := r.Do(http.MethodGet, "/")
	etag := rec.Header().Get("ETag")
	require.Equal(t, "no-cache", rec.Header().Get("Cache-Control"))
	require.NotEmpty(t, etag)
	r.Now = r.Now.Add(30 * time.Second)
	rec = r.Do(http.MethodGet, "/", "If-None-Match", etag)
	require.Equal(t, http.StatusNotModified, rec.Code)
	require.Empty(t, rec.Body.String())
	r.Now = r.Now.Add(30 * time.Second)
	rec = r.Do(http.MethodGet, "/", "If-None-Match", etag)
	require.Equal(t, http.StatusOK, rec.Code, "11 min ago now")
	require.Contains(t, rec.Body.String(), "11 min ago")
	require.NotEqual(t, etag, r.Do(http.MethodGet, "/?window=24h").Header().Get("ETag"))
}

func TestLargeResponsesAreCompressed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 30 {
		r.Share(fmt.Sprintf("https://a.example/%d", i), "did:plc:aaa", time.Minute)
	}
	doc := r.Parse(r.Get("/"))
	targets := []string{"/", "/api/v1/trending"}
	r.Exec(`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
		SELECT 'did:plc:' || n, 'app.bsky.feed.post', n::text, id, id, 'post', $1 FROM links, generate_series(1, 2) AS n`, r.Now)
	for _, n := range webtest.Find(doc, func(n *html.Node) bool { return n.Data == "link" || n.Data == "script" }) {
		targets = append(targets, webtest.Attr(n, "href")+webtest.Attr(n, "src"))
	}
	for _, target := range targets {
		plain := r.Do(http.MethodGet, target)
		require.Empty(t, plain.Header().Get("Content-Encoding"))
		for accepted, want := range map[string]string{"gzip, br": "gzip", "deflate, GZIP;q=0.5": "gzip", "gzip;q=0": "",
			"br": "", "gzipped": ""} {
			rec := r.Do(http.MethodGet, target, "Accept-Encoding", accepted)
			require.Equal(t, want, rec.Header().Get("Content-Encoding"), "%s with %q", target, accepted)
			require.Contains(t, strings.Join(rec.Header().Values("Vary"), ", "), "Accept-Encoding")
			require.Equal(t, fmt.Sprint(rec.Body.Len()), rec.Header().Get("Content-Length"), target)
			if want != "" {
				require.Less(t, rec.Body.Len(), plain.Body.Len()*3/4, target)
			}
		}
	}
}

// TestReadersSeeNoNetworkAddresses shows that readers get a description of an
// error. Its addresses are only for operators.
func TestReadersSeeNoNetworkAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const detail = "dial tcp: lookup stream.example on 192.0.2.53:53: no such host"
	for _, state := range []string{"not connected", "paused by backpressure", "connecting", "live", "something later"} {
		r.Exec(`DELETE FROM streams`)
		r.Stream("jetstream", state, detail)
		for _, target := range []string{"/", "/api/v1/trending"} {
			body := r.Get(target)
			require.NotContains(t, body, "192.0.2.53", "%s while %s", target, state)
			require.NotContains(t, body, "dial", "%s while %s", target, state)
		}
	}
	r.Exec(`UPDATE streams SET state = 'not connected'`)
	require.Contains(t, r.Get("/api/v1/trending"), `"detail":"trying again; nothing new is counted meanwhile"`)
	var err error
	r.Handler, err = web.OpsHandler(web.OpsConfig{DB: r.Pool, Metrics: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	require.Contains(t, r.Do(http.MethodGet, "/health").Body.String(), detail)
}

func TestLargestLimitIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../../docs/api.md")
	require.NoError(t, err)
	require.Contains(t, string(page), fmt.Sprintf("`limit` defaults to %d and is %d at most", DefaultLimit, maxLimit))
	r := newRig(t)
	rec := r.Do(http.MethodGet, fmt.Sprintf("/api/v1/trending?limit=%d", maxLimit+1))
	require.Equal(t, http.StatusBadRequest, rec.Code)
	require.Contains(t, rec.Body.String(), fmt.Sprintf("from 1 to %d", maxLimit))
}
