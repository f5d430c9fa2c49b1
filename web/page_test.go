package web

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"
)

// row is the visible text of one link.
type row struct {
	title, count, last string
}

func (r *rig) rows(target string) (rows []row) {
	r.t.Helper()
	for _, li := range find(r.parse(r.get(target)), class("link")) {
		rows = append(rows, row{
			title: text(find(li, func(n *html.Node) bool { return n.Data == "h2" })[0]),
			count: text(find(li, class("count"))[0]),
			last:  text(find(li, class("last"))[0]),
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
	r.share("https://two.example/", "did:plc:aaa", 50*time.Minute)
	r.share("https://two.example/", "did:plc:bbb", 40*time.Minute)
	r.share("https://loud.example/", "did:plc:aaa", 3*time.Minute) // one account, three times
	r.share("https://loud.example/", "did:plc:aaa", 2*time.Minute)
	r.share("https://loud.example/", "did:plc:aaa", time.Minute)
	r.share("https://b.example/", "did:plc:ccc", 5*time.Minute)
	r.share("https://a.example/", "did:plc:ddd", 5*time.Minute)
	r.share("https://late.example/", "did:plc:eee", 4*time.Minute)
	rows := r.rows("/?window=1h")
	require.Equal(t, []string{"https://two.example/", "https://loud.example/", "https://late.example/", "https://a.example/", "https://b.example/"}, titles(rows))
	require.Equal(t, "2 sharers", rows[0].count)
	require.Equal(t, "1 sharer", rows[1].count)
}

func TestHiddenAccountIsNeitherCountedNorNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	r.share("https://a.example/", "did:plc:bbb", 2*time.Minute)
	r.share("https://b.example/", "did:plc:bbb", 2*time.Minute)
	r.exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:aaa', 'alice.example'), ('did:plc:bbb', 'bob.example')`)
	require.Equal(t, []row{
		{"Title of https://a.example/", "2 sharers", "last shared 1 min ago by @alice.example, earlier by @bob.example"},
		{"Title of https://b.example/", "1 sharer", "last shared 2 min ago by @bob.example"},
	}, r.rows("/"))
	r.exec(`UPDATE accounts SET status = 'deactivated' WHERE did = 'did:plc:bbb'`)
	require.Equal(t, []row{{"Title of https://a.example/", "1 sharer", "last shared 1 min ago by @alice.example"}}, r.rows("/"))
}

func TestSharerWithoutAVisibleNameIsNotNamed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	r.exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:aaa', E'\u200B')`)
	require.Equal(t, []row{{"Title of https://a.example/", "1 sharer", "last shared 1 min ago"}}, r.rows("/"))
}

func TestWindowExcludesItsBeginningAndHasNoEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.share("https://future.example/", "did:plc:aaa", -time.Second)
	r.share("https://now.example/", "did:plc:aaa", 0)
	lengths := map[string]time.Duration{"1h": time.Hour, "3h": 3 * time.Hour, "6h": 6 * time.Hour, "12h": 12 * time.Hour, "24h": 24 * time.Hour, "7d": 7 * 24 * time.Hour}
	for name, length := range lengths {
		r.share("https://in-"+name+".example/", "did:plc:aaa", length-time.Millisecond)
		r.share("https://out-"+name+".example/", "did:plc:aaa", length)
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

func TestPageMarksTheCurrentWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	current := func(target string) string {
		marked := find(r.parse(r.get(target)), func(n *html.Node) bool { return attr(n, "aria-current") == "page" })
		require.Len(t, marked, 1)
		return text(marked[0])
	}
	require.Equal(t, "6h", current("/"))
	require.Equal(t, "24h", current("/?window=24h"))
	rec := r.do(http.MethodGet, "/?window=2h")
	require.Equal(t, http.StatusBadRequest, rec.Code)
	require.Contains(t, rec.Body.String(), "send one of 1h, 3h, 6h, 12h, 24h, 7d")
	require.Equal(t, http.StatusBadRequest, r.do(http.MethodGet, "/?window=1h&window=3h").Code)
	require.Equal(t, http.StatusBadRequest, r.do(http.MethodGet, "/?window=%zz").Code)
	require.Equal(t, http.StatusOK, r.do(http.MethodGet, "/?utm_source=elsewhere").Code)
}

func TestCardAndSharersAreShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 1234 {
		r.share("https://a.example/", "did:plc:"+strconv.Itoa(10000+i), time.Duration(i)*time.Second)
	}
	r.exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:10000', 'alice.example')`)
	r.exec(`UPDATE links SET description = 'What it is about', site = 'a.example', image = 'blob:did:plc:abc/bafkreiabcdefgh',
		card_from = 'at://did:plc:abc/app.bsky.feed.post/3kabc'`)
	li := find(r.parse(r.get("/")), class("link"))[0]
	require.Equal(t, "a.example Title of https://a.example/ What it is about 1,234 sharers card from a post "+
		"last shared just now by @alice.example, earlier by did:plc:10001, did:plc:10002", text(li))
	var hrefs []string
	for _, a := range find(li, func(n *html.Node) bool { return n.Data == "a" }) {
		require.Equal(t, "noopener noreferrer nofollow ugc", attr(a, "rel"))
		hrefs = append(hrefs, attr(a, "href"))
	}
	require.Equal(t, []string{
		"https://a.example/", "https://bsky.app/profile/did:plc:abc/post/3kabc", "https://bsky.app/profile/alice.example",
		"https://bsky.app/profile/did:plc:10001", "https://bsky.app/profile/did:plc:10002", "https://a.example/",
	}, hrefs)
	img := find(li, func(n *html.Node) bool { return n.Data == "img" })[0]
	require.Equal(t, "https://images.example/did:plc:abc/bafkreiabcdefgh", attr(img, "src"))
	require.Equal(t, "lazy", attr(img, "loading"))
	require.Equal(t, "no-referrer", attr(img, "referrerpolicy"))
	require.Equal(t, "2026-05-04T12:00:00Z", attr(find(li, func(n *html.Node) bool { return n.Data == "time" })[0], "datetime"))
}

func TestLinkWithoutATitleIsShownByItsURL(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.share("https://a.example/wiki/Caf%C3%A9?q=1", "did:plc:aaa", time.Minute)
	r.exec(`UPDATE links SET title = '', site = ''`)
	rows := r.rows("/")
	require.Equal(t, "a.example/wiki/Café?q=1", rows[0].title)
}

// The weak validator changes if and only if the ranking changes.
func TestFragmentIsSentOnlyWhenSomethingChanged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stream("jetstream", "live", "")
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	r.exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('jetstream', $1, $2, 'why', now())`,
		r.now.Add(-2*time.Hour), r.now.Add(-time.Hour))
	for _, target := range []string{"/fragment?window=6h", "/api/v1/trending?window=6h"} {
		etag := ""
		next := func(reason string, code int) {
			rec := r.do(http.MethodGet, target, "If-None-Match", `"other", `+etag)
			require.Equal(t, code, rec.Code, reason)
			if code == http.StatusNotModified {
				require.Empty(t, rec.Body.String())
			}
			etag = rec.Header().Get("ETag")
			require.NotEmpty(t, etag)
		}
		next("first", http.StatusOK)
		next("unchanged", http.StatusNotModified)
		r.now = r.now.Add(time.Minute)
		next("only older", http.StatusNotModified)
		r.share("https://a.example/", "did:plc:"+strings.Repeat("b", len(target)), 0)
		next("another sharer", http.StatusOK)
		r.exec(`UPDATE links SET title = title || '!'`)
		next("another title", http.StatusOK)
		r.exec(`UPDATE streams SET last_event_at = last_event_at + interval '1 second'`)
		next("another event", http.StatusOK)
		r.exec(`UPDATE streams SET state_detail = state_detail || 'x'`)
		next("another detail, which is not on the page", http.StatusNotModified)
		r.exec(`UPDATE streams SET lease_expires_at = now() - interval '1 second'`)
		next("the consumer died", http.StatusOK)
		r.exec(`UPDATE gaps SET reason = reason || 'x'`)
		next("another reason", http.StatusOK)
		next("unchanged again", http.StatusNotModified)
		r.exec(`UPDATE streams SET lease_expires_at = now() + interval '1 hour'`)
	}
	one, other := r.do(http.MethodGet, "/fragment?window=6h"), r.do(http.MethodGet, "/fragment?window=24h")
	require.NotEqual(t, one.Header().Get("ETag"), other.Header().Get("ETag"))
}

// The script keeps elements with the same version, so a version must change if and only
// if the content changes.
func TestVersionsChangeWithTheContent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.stream("jetstream", "live", "")
	r.share("https://a.example/", "did:plc:aaa", time.Minute)
	r.share("https://b.example/", "did:plc:aaa", time.Minute)
	versions := func() map[string]string {
		all := make(map[string]string)
		for _, n := range find(r.parse(r.get("/fragment")), func(n *html.Node) bool { return attr(n, "data-v") != "" }) {
			require.NotEmpty(t, attr(n, "id"))
			all[attr(n, "id")] = attr(n, "data-v")
		}
		require.Len(t, all, 3, "two links and a status")
		return all
	}
	before := versions()
	r.now = r.now.Add(time.Minute)
	r.exec(`UPDATE streams SET last_event_at = last_event_at + interval '1 second'`)
	require.Equal(t, before, versions())
	r.share("https://b.example/", "did:plc:bbb", 0)
	r.exec(`UPDATE streams SET state = 'quiet'`)
	after := versions()
	same := 0
	for id, v := range before {
		require.Contains(t, after, id)
		if after[id] == v {
			same++
		}
	}
	require.Equal(t, 1, same, "only the other link")
}

// The page contains the validator of its fragment, so that the first refresh transfers
// nothing.
func TestPageContainsTheValidatorOfItsFragment(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	rec := r.do(http.MethodGet, "/?window=3h")
	require.Equal(t, "no-cache", rec.Header().Get("Cache-Control"))
	live := find(r.parse(rec.Body.String()), func(n *html.Node) bool { return attr(n, "id") == "live" })[0]
	require.Equal(t, http.StatusNotModified, r.do(http.MethodGet, "/fragment?window=3h", "If-None-Match", attr(live, "data-etag")).Code)
}

func TestCompressedResponseKeepsItsValidator(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for i := range 20 {
		r.share("https://"+strconv.Itoa(i)+".example/", "did:plc:aaa", time.Minute)
	}
	rec := r.do(http.MethodGet, "/fragment", "Accept-Encoding", "gzip")
	require.Equal(t, "gzip", rec.Header().Get("Content-Encoding"))
	require.Equal(t, "text/html; charset=utf-8", rec.Header().Get("Content-Type"))
	rec = r.do(http.MethodGet, "/fragment", "Accept-Encoding", "gzip", "If-None-Match", rec.Header().Get("ETag"))
	require.Equal(t, http.StatusNotModified, rec.Code)
	require.Empty(t, rec.Body.Bytes())
}
