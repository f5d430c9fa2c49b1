package web

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/html"

	"github.com/weir-social/weir/internal/web/webtest"
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
	r.Exec(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('jetstream', $1, $2, '', now())`, r.Now.Add(-time.Hour), r.Now.Add(-time.Minute))
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
		"javascript:alert(1)", "JavaScript:alert(1)//https://x.example/", "data:text/html,<script>alert(1)</script>", "vbscript:x", "//x.example/",
		"/relative", "https:opaque", "https://", "http:///path", " https://x.example/", "https://x.example/\x7f", "file:///etc/passwd", "blob:https://x.example/1",
	}
	for _, u := range bad {
		r.Share(u, "did:plc:aaa", time.Minute)
	}
	good := []string{"https://ok.example/a;b,c@d:e=1+2$3!~*?q=%27&x=1;2&y[]=%2F#/route", "http://ok.example/", "https://xn--caf-dma.example/%C3%A9"}
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

func TestInvalidHandleIsNotLinked(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Person{
		"alice.example":                    {Name: "@alice.example", Known: true, Profile: "https://bsky.app/profile/alice.example"},
		"did:plc:z72i7hdynmk6r22z27h6tvur": {Name: "did:plc:z72i…tvur", Known: true, Profile: "https://bsky.app/profile/did:plc:z72i7hdynmk6r22z27h6tvur"},
		"did:web:a.example":                {Name: "did:web:a.example", Known: true, Profile: "https://bsky.app/profile/did:web:a.example"},
		"../../settings":                   {Name: "../../settings"},
		"alice.example/../x":               {Name: "alice.example/../x"},
		`a" onclick="x`:                    {Name: `a" onclick="x`},
		"handle.invalid":                   {Name: "handle.invalid"}, // the network's placeholder for an invalid handle
		"":                                 {},
	} {
		require.Equal(t, want, NewPerson(name), name)
	}
}

func TestCardLinksOnlyToPosts(t *testing.T) {
	t.Parallel()
	require.Equal(t, "https://bsky.app/profile/did:plc:abc/post/3kabc", postURL("at://did:plc:abc/app.bsky.feed.post/3kabc"))
	for _, uri := range []string{"", "at://did:plc:abc", "at://did:plc:abc/app.bsky.feed.like/3kabc", "at://did:plc:abc/app.bsky.feed.post", "https://x.example/", "javascript:alert(1)"} {
		require.Empty(t, postURL(uri), uri)
	}
}

func TestPlainTextIsOneVisibleLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"  a \n\t b\u2028c\u00a0d ":    "a b c d",
		"a\x00b\x1b[31mc\u0085d":       "a b [31mc d",
		"\u202Eabc\u202C\u2067d\ufeff": "abcd",
		"\u200f\u200eא":                "\u200f\u200eא",
		"bad \xff utf8":                "bad \uFFFD utf8",
		" \u200b\u200d\u3164\u2800 ":   "",
		"":                             "",
		"0123456789012":                "01234567890…",
		"e\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301x": "e\u0301\u0301\u0301\u0301\u0301\u0301x",
	} {
		require.Equal(t, want, PlainLine(in, 12), "%q", in)
	}
}

func FuzzPlainTextNeverReordersOrBreaksTheLine(f *testing.F) {
	for _, s := range webtest.HostileTexts() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := PlainLine(s, 50)
		require.LessOrEqual(t, len([]rune(got)), 50)
		require.False(t, strings.ContainsAny(got, "\u202A\u202B\u202C\u202D\u202E\u2066\u2067\u2068\u2069\n\r\t\x00\u2028\u2029"), "%q", got)
		require.Equal(t, got, PlainLine(got, 50), "plain is idempotent")
	})
}
