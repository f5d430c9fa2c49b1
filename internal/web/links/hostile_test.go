package links

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
)

// TestTextsOfStrangersStayText fills every column that strangers control with
// every hostile text.
func TestTextsOfStrangersStayText(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Stream("jetstream", "not connected", "")
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	r.Share("https://a.example/", "did:plc:bbb", time.Minute)
	r.Exec(`INSERT INTO accounts (did, handle) VALUES ('did:plc:aaa', '')`)
	r.Exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('jetstream', $1, $2, '', now())`, r.Now.Add(-time.Hour), r.Now.Add(-time.Minute))
	for _, text := range webtest.HostileTexts() {
		text = strings.ReplaceAll(text, "\x00", "") // Postgres cannot store NUL
		r.Exec(`UPDATE links SET title = $1, description = $1, site = $1, image = $1, card_from = $1`, text)
		r.Exec(`UPDATE accounts SET handle = $1`, text)
		r.Exec(`UPDATE streams SET state_detail = $1, host = $1`, text)
		r.Exec(`UPDATE gaps SET reason = $1`, text)
		for _, target := range []string{"/", "/?density=compact", "/?sort=speed"} {
			body := r.Get(target)
			r.Audit(body)
			require.Len(t, webtest.Find(r.Parse(body), webtest.Class("link")), 1)
			require.Less(t, len(body), 20000, "a long text must be shortened")
			for _, override := range []string{"\u202A", "\u202B", "\u202D", "\u202E", "\u2066", "\u2067", "\u2068"} {
				require.NotContains(t, body, override)
			}
		}
		r.Get("/api/v1/trending")
	}
}

// TestHostileTitleIsShownAsItWasWritten shows that a title is escaped once, not
// twice, and isolated from the text around it.
func TestHostileTitleIsShownAsItWasWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.Share("https://a.example/", "did:plc:aaa", time.Minute)
	r.Exec(`UPDATE links SET title = $1`, `"Q" & <script>alert('1')</script> `+"\u202Egnp.exe")
	require.Equal(t, `"Q" & <script>alert('1')</script> gnp.exe`, r.rows("/")[0].title)
	require.Equal(t, "auto", webtest.Attr(webtest.Find(r.Parse(r.Get("/")), func(n *html.Node) bool { return n.Data == "h2" })[0], "dir"))
}

func TestOnlyHTTPLinksAreShown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	bad := []string{
		"javascript:alert(1)", "JavaScript:alert(1)//https://x.example/", "data:text/html,<script>alert(1)</script>",
		"vbscript:x", "//x.example/",
		"/relative", "https:opaque", "https://", "http:///path", " https://x.example/", "https://x.example/\x7f",
		"file:///etc/passwd", "blob:https://x.example/1",
	}
	for _, u := range bad {
		r.Share(u, "did:plc:aaa", time.Minute)
	}
	good := []string{"https://ok.example/a;b,c@d:e=1+2$3!~*?q=%27&x=1;2&y[]=%2F#/route", "http://ok.example/",
		"https://xn--caf-dma.example/%C3%A9"}
	for _, u := range good {
		r.Share(u, "did:plc:aaa", time.Minute)
	}
	body := r.Get("/")
	r.Audit(body)
	shown := map[string]bool{}
	for _, li := range webtest.Find(r.Parse(body), webtest.Class("link")) {
		a := webtest.Find(li, func(n *html.Node) bool { return n.Data == "h2" })[0].FirstChild
		shown[webtest.Attr(a, "href")] = true
	}
	require.Len(t, shown, len(good))
	for _, u := range good {
		require.True(t, shown[u], "%s keeps its exact URL: %v", u, shown)
	}
	api := r.Get("/api/v1/trending")
	require.NotContains(t, strings.ToLower(api), `"url":"javascript`)
	require.Equal(t, 1, r.Log.Count(), "an invalid URL is logged once")
}

func TestCardLinksOnlyToPosts(t *testing.T) {
	t.Parallel()
	none := &Server{Server: &web.Server{}}
	require.Equal(t, "https://bsky.app/profile/did:plc:abc/post/3kabc", none.postURL("at://did:plc:abc/app.bsky.feed.post/3kabc"))
	for _, uri := range []string{
		"", "at://did:plc:abc", "at://did:plc:abc/app.bsky.feed.like/3kabc", "at://did:plc:abc/app.bsky.feed.post",
		"https://x.example/", "javascript:alert(1)",
	} {
		require.Empty(t, none.postURL(uri), uri)
	}
}
