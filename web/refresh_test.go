package web

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

// versions returns the versions of the links on a page, in order.
func (r *rig) versions(body string) (all []string) {
	r.t.Helper()
	for _, li := range find(r.parse(body), class("link")) {
		all = append(all, attr(li, "data-v"))
	}
	return all
}

// An open page refreshes every few seconds, and unchanged lines are not sent again.
func TestRefreshSendsOnlyChangedLines(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stream("jetstream", "live", "")
	for i := range 50 {
		r.share(fmt.Sprintf("https://a.example/%d", i), "did:plc:aaa", time.Duration(i+1)*time.Minute)
	}
	r.exec(`UPDATE links SET description = repeat('words ', 40)`)
	first := r.do(http.MethodGet, "/fragment", "Accept-Encoding", "gzip")
	have := r.versions(r.get("/"))
	require.Len(t, have, 50)

	r.share("https://a.example/30", "did:plc:bbb", 0) // now the first
	r.share("https://new.example/", "did:plc:ccc", 0) // the second; the last one drops out
	r.exec(`UPDATE streams SET last_event_at = last_event_at + interval '1 second'`)
	rec := r.do(http.MethodGet, "/fragment", "Accept-Encoding", "gzip", "Weir-Have", strings.Join(have, ","), "If-None-Match", first.Header().Get("ETag"))
	require.Equal(t, http.StatusOK, rec.Code)
	require.Contains(t, rec.Header().Values("Vary"), "Weir-Have")
	require.Less(t, rec.Body.Len(), 1500)

	now := r.versions(r.get("/"))
	rec = r.do(http.MethodGet, "/fragment", "Weir-Have", strings.Join(have, ","))
	lines := find(r.parse(rec.Body.String()), class("link"))
	require.Len(t, lines, 50, "all lines, in order")
	sent := 0
	for i, li := range lines {
		if same := attr(li, "data-same"); same != "" {
			require.Nil(t, li.FirstChild)
			at := 0
			_, err := fmt.Sscan(same, &at)
			require.NoError(t, err)
			require.Equal(t, now[i], have[at])
			continue
		}
		sent++
		require.Equal(t, now[i], attr(li, "data-v"))
		require.NotEmpty(t, text(li))
	}
	require.Equal(t, 2, sent)

	for _, nonsense := range []string{",", "x", strings.Repeat("x,", 5000), "-1", strings.Repeat(now[0]+",", 300)} {
		rec := r.do(http.MethodGet, "/fragment", "Weir-Have", nonsense)
		require.Equal(t, http.StatusOK, rec.Code)
		require.Len(t, find(r.parse(rec.Body.String()), class("link")), 50)
	}
}

// Without a script, the browser reloads the page. The page is sent only if it looks
// different, including its ages.
func TestPageIsSentOnlyWhenItLooksDifferent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stream("jetstream", "quiet", "")
	r.exec(`UPDATE streams SET last_event_at = $1`, r.now.Add(-2*time.Hour))
	r.share("https://a.example/", "did:plc:aaa", 10*time.Minute)
	rec := r.do(http.MethodGet, "/")
	etag := rec.Header().Get("ETag")
	require.Equal(t, "no-cache", rec.Header().Get("Cache-Control"))
	require.NotEmpty(t, etag)
	r.now = r.now.Add(30 * time.Second)
	rec = r.do(http.MethodGet, "/", "If-None-Match", etag)
	require.Equal(t, http.StatusNotModified, rec.Code)
	require.Empty(t, rec.Body.String())
	r.now = r.now.Add(30 * time.Second)
	rec = r.do(http.MethodGet, "/", "If-None-Match", etag)
	require.Equal(t, http.StatusOK, rec.Code, "11 min ago now")
	require.Contains(t, rec.Body.String(), "11 min ago")
	require.NotEqual(t, etag, r.do(http.MethodGet, "/?window=24h").Header().Get("ETag"))
}

func TestLargeResponsesAreCompressed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 30 {
		r.share(fmt.Sprintf("https://a.example/%d", i), "did:plc:aaa", time.Minute)
	}
	doc := r.parse(r.get("/"))
	targets := []string{"/", "/fragment", "/api/v1/trending"}
	for _, n := range find(doc, func(n *html.Node) bool { return n.Data == "link" || n.Data == "script" }) {
		targets = append(targets, attr(n, "href")+attr(n, "src"))
	}
	for _, target := range targets {
		plain := r.do(http.MethodGet, target)
		require.Empty(t, plain.Header().Get("Content-Encoding"))
		for accepted, want := range map[string]string{"gzip, br": "gzip", "deflate, GZIP;q=0.5": "gzip", "gzip;q=0": "", "br": "", "gzipped": ""} {
			rec := r.do(http.MethodGet, target, "Accept-Encoding", accepted)
			require.Equal(t, want, rec.Header().Get("Content-Encoding"), "%s with %q", target, accepted)
			require.Contains(t, strings.Join(rec.Header().Values("Vary"), ", "), "Accept-Encoding")
			require.Equal(t, fmt.Sprint(rec.Body.Len()), rec.Header().Get("Content-Length"), target)
			if want != "" {
				require.Less(t, rec.Body.Len(), plain.Body.Len()*3/4, target)
			}
		}
	}
}

// Errors with their addresses are for operators; readers get a description.
func TestReadersSeeNoNetworkAddresses(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const detail = "dial tcp: lookup stream.example on 192.0.2.53:53: no such host"
	for _, state := range []string{"not connected", "paused by backpressure", "connecting", "live", "something later"} {
		r.exec(`DELETE FROM streams`)
		r.stream("jetstream", state, detail)
		for _, target := range []string{"/", "/fragment", "/api/v1/trending"} {
			body := r.get(target)
			require.NotContains(t, body, "192.0.2.53", "%s while %s", target, state)
			require.NotContains(t, body, "dial", "%s while %s", target, state)
		}
	}
	r.exec(`UPDATE streams SET state = 'not connected'`)
	require.Contains(t, r.get("/api/v1/trending"), `"detail":"trying again; nothing new is counted meanwhile"`)
	r.asOps("")
	require.Contains(t, r.do(http.MethodGet, "/health").Body.String(), detail)
}

// A clipped link could take the focus invisibly. So the names of sharers wrap at any
// width.
func TestNamesOfSharersAreNotClipped(t *testing.T) {
	t.Parallel()
	css, err := os.ReadFile("static/page.css")
	require.NoError(t, err)
	cutting := regexp.MustCompile(`overflow(-x)?:|white-space: *nowrap|text-overflow`)
	rules := regexp.MustCompile(`([^{}]+)\{([^{}]*)\}`).FindAllStringSubmatch(regexp.MustCompile(`(?s)/\*.*?\*/`).ReplaceAllString(string(css), ""), -1)
	require.Greater(t, len(rules), 50)
	found := 0
	for _, rule := range rules {
		for selector := range strings.SplitSeq(rule[1], ",") {
			switch strings.TrimSpace(selector) {
			case ".card", ".card .last", ".card .last a", ".last", ".links", ".link", "main", "body":
				found++
				require.NotRegexp(t, cutting, strings.ReplaceAll(rule[2], "overflow-anchor:", ""), rule[0])
			}
		}
	}
	require.GreaterOrEqual(t, found, 4)
	require.Regexp(t, `body \{[^}]*overflow-wrap: anywhere`, string(css), "a long name breaks")

	r := newRig(t)
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	last := find(find(r.parse(r.get("/")), class("link"))[0], class("last"))
	require.Len(t, last, 1)
	require.Contains(t, attr(last[0].Parent, "class"), "card", "the rules apply to the names")
}

func TestLargestLimitIsDocumented(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/api.md")
	require.NoError(t, err)
	require.Contains(t, string(page), fmt.Sprintf("`limit` defaults to %d and is %d at most", defaultLimit, maxLimit))
	r := newRig(t)
	rec := r.do(http.MethodGet, fmt.Sprintf("/api/v1/trending?limit=%d", maxLimit+1))
	require.Equal(t, http.StatusBadRequest, rec.Code)
	require.Contains(t, rec.Body.String(), fmt.Sprintf("from 1 to %d", maxLimit))
}
