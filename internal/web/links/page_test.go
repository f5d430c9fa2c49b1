package links

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
)

// row is the visible text of one link.
type row struct {
	title, count, by string
}

func (r *rig) rows(target string) (rows []row) {
	r.T.Helper()
	for _, li := range webtest.Find(r.Parse(r.Get(target)), webtest.Class("link")) {
		rows = append(rows, row{
			title: webtest.Text(webtest.Find(li, func(n *html.Node) bool { return n.Data == "h2" })[0]),
			count: webtest.Text(webtest.Find(li, webtest.Class("count"))[0]),
			by: strings.TrimSpace(strings.TrimPrefix(webtest.Text(webtest.Find(li, webtest.Class("by"))[0]),
				webtest.Text(webtest.Find(li, webtest.Class("count"))[0]))),
		})
	}
	return rows
}

func titles(rows []row) (all []string) {
	for _, each := range rows {
		all = append(all, strings.TrimPrefix(each.title, "Title of "))
	}
	return all
}

func TestLinksAreRankedBySharersThenLastShareThenURL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://two.example/", "did:plc:aaa", 50*time.Minute)
	r.Share("https://two.example/", "did:plc:bbb", 40*time.Minute)
	r.Share("https://loud.example/", "did:plc:aaa", 3*time.Minute) // one account, three times
	r.Share("https://loud.example/", "did:plc:aaa", 2*time.Minute)
	r.Share("https://loud.example/", "did:plc:aaa", time.Minute)
	r.Share("https://b.example/", "did:plc:ccc", 5*time.Minute)
	r.Share("https://a.example/", "did:plc:ddd", 5*time.Minute)
	r.Share("https://late.example/", "did:plc:eee", 4*time.Minute)
	rows := r.rows("/?window=1h")
	require.Equal(t, []string{
		"https://two.example/", "https://loud.example/", "https://late.example/", "https://a.example/", "https://b.example/",
	}, titles(rows))
	require.Equal(t, "shared by 2", rows[0].count)
	require.Equal(t, "shared by 1", rows[1].count)
}

func TestHiddenAccountIsNeitherCountedNorNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	r.Share("https://a.example/", "did:plc:bbb", 2*time.Minute)
	r.Share("https://b.example/", "did:plc:bbb", 2*time.Minute)
	r.Exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:aaa', 'alice.example'), ('did:plc:bbb', 'bob.example')`)
	require.Equal(t, []row{
		{"Title of https://a.example/", "shared by 2", "@alice.example @bob.example"},
		{"Title of https://b.example/", "shared by 1", "@bob.example"},
	}, r.rows("/"))
	r.Exec(`UPDATE accounts SET status = 'deactivated' WHERE did = 'did:plc:bbb'`)
	require.Equal(t, []row{{"Title of https://a.example/", "shared by 1", "@alice.example"}}, r.rows("/"))
}

// TestUnverifiedHandleIsShownAsSuch shows that anybody may claim a handle, and that only the account
// for which it was verified is found by it. The placeholder of the network is no handle.
func TestUnverifiedHandleIsShownAsSuch(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://real.example/", "did:plc:aaa", time.Minute)
	r.Share("https://spoof.example/", "did:plc:bbb", 2*time.Minute)
	r.Share("https://none.example/", "did:plc:ccc", 3*time.Minute)
	r.Exec(`INSERT INTO accounts (did, handle, handle_unverified)
		VALUES ('did:plc:aaa', 'nytimes.com', false), ('did:plc:bbb', 'nytimes.com', true), ('did:plc:ccc', 'handle.invalid', false)`)
	require.Equal(t, []row{
		{"Title of https://real.example/", "shared by 1", "@nytimes.com"},
		{"Title of https://spoof.example/", "shared by 1", "nytimes.com unverified"},
		{"Title of https://none.example/", "shared by 1", "did:plc:ccc"},
	}, r.rows("/"))
	require.Equal(t, []string{"https://real.example/"}, titles(r.rows("/?by=NYTimes.com")))
	require.Contains(t, r.Get("/"), `href="/?by=did:plc:bbb"`)
	require.Contains(t, r.Get("/api/v1/trending"), `"shared_by":["did:plc:bbb"]`)
	require.Contains(t, r.Get("/links/2"), "unverified")
	r.Exec(`UPDATE accounts SET handle_unverified = true`)
	require.Empty(t, r.rows("/?by=nytimes.com"), "nobody knows whose it is")
}

func TestSharerWithoutAVisibleNameIsNotNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	r.Exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:aaa', E'\u200B')`)
	require.Equal(t, []row{{"Title of https://a.example/", "shared by 1", ""}}, r.rows("/"))
}

func TestWindowExcludesItsBeginningAndHasNoEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://future.example/", "did:plc:aaa", -time.Second)
	r.Share("https://now.example/", "did:plc:aaa", 0)
	lengths := map[string]time.Duration{
		"1h": time.Hour, "3h": 3 * time.Hour, "6h": 6 * time.Hour, "12h": 12 * time.Hour, "24h": 24 * time.Hour,
		"7d": 7 * 24 * time.Hour,
	}
	for name, length := range lengths {
		r.Share("https://in-"+name+".example/", "did:plc:aaa", length-time.Millisecond)
		r.Share("https://out-"+name+".example/", "did:plc:aaa", length)
	}
	for name := range lengths {
		shown := titles(r.rows("/?window=" + name))
		require.Contains(t, shown, "https://in-"+name+".example/")
		require.NotContains(t, shown, "https://out-"+name+".example/")
		require.Contains(t, shown, "https://now.example/")
		require.Contains(t, shown, "https://future.example/", "the author's clock is ahead")
	}
	require.Equal(t, titles(r.rows("/?window=6h")), titles(r.rows("/")), "the default is six hours")
}

func TestCardAndSharersAreShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 1234 {
		r.Share("https://a.example/", "did:plc:"+strconv.Itoa(10000+i), time.Duration(i)*time.Second)
	}
	r.Exec(`INSERT INTO accounts (did, handle, avatar)
		VALUES ('did:plc:10000', 'alice.example', 'https://other.example/avatar/plain/did:plc:10000/bafkreiabcdefgh@jpeg'),
		('did:plc:10001', 'bob.example', 'https://other.example/tracker.png')`)
	r.Exec(`UPDATE links
		SET description = 'What it is about', site = 'a.example', image = 'blob:did:plc:abc/bafkreiabcdefgh',
			first_seen = $1`, r.Now.Add(-5*time.Hour))
	li := webtest.Find(r.Parse(r.Get("/")), webtest.Class("link"))[0]
	require.Equal(t,
		"a.example 5 h ago Title of https://a.example/ What it is about shared by 1,234 @alice.example @bob.example did:plc:10002 and 1,231 more",
		webtest.Text(li))
	var hrefs []string
	for _, a := range webtest.Find(li, webtest.Element("a")) {
		href := webtest.Attr(a, "href")
		hrefs = append(hrefs, href)
		require.Equal(t, strings.HasPrefix(href, "https:"), webtest.Attr(a, "rel") == "noopener noreferrer nofollow ugc", href)
	}
	require.Equal(t, []string{
		"/?domain=a.example", "https://a.example/", "/links/1?window=6h", "/?by=alice.example", "/?by=bob.example",
		"/?by=did:plc:10002", "https://a.example/",
	}, hrefs)
	var pictures []string
	for _, img := range webtest.Find(li, webtest.Element("img")) {
		require.Equal(t, []string{"lazy", "no-referrer"}, []string{webtest.Attr(img, "loading"), webtest.Attr(img, "referrerpolicy")})
		pictures = append(pictures, webtest.Attr(img, "src"))
	}
	require.Equal(t, []string{
		"https://images.example/did:plc:10000/bafkreiabcdefgh", "https://images.example/did:plc:abc/bafkreiabcdefgh",
	}, pictures, "no other host")
	stamp := webtest.Find(li, webtest.Element("time"))[0]
	require.Equal(t, []string{"2026-05-04T07:00:00Z", "4 May 2026, 07:00:00 UTC"}, []string{
		webtest.Attr(stamp, "datetime"), webtest.Attr(stamp, "title"),
	})
}

func TestLinkWithoutATitleIsShownByItsURL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/wiki/Caf%C3%A9?q=1", "did:plc:aaa", time.Minute)
	r.Exec(`UPDATE links SET title = '', site = ''`)
	rows := r.rows("/")
	require.Equal(t, "a.example/wiki/Café?q=1", rows[0].title)
}

func TestCompressedResponseKeepsItsValidator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 20 {
		r.Share("https://"+strconv.Itoa(i)+".example/", "did:plc:aaa", time.Minute)
	}
	rec := r.Do(http.MethodGet, "/", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", rec.Header().Get("Content-Encoding"))
	require.Equal(t, "text/html; charset=utf-8", rec.Header().Get("Content-Type"))
	rec = r.Do(http.MethodGet, "/", "Accept-Encoding", "gzip", "If-None-Match", rec.Header().Get("ETag"))
	require.Equal(t, http.StatusNotModified, rec.Code)
	require.Empty(t, rec.Body.Bytes())
}
