package card

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHeadOfAPage(t *testing.T) {
	t.Parallel()
	for content, want := range map[string]string{
		`<title>T</title>`: "T||",
		`<title>T</title><meta name="twitter:title" content="W"><meta property="og:title" content="O">`: "O||",
		`<meta name="og:title" content="O"><meta property="og:title" content="P">`:                      "O||",
		`<meta property="og:title" content=" "><title> A &amp; B` + "\n" +
			`&lt;i&gt; </title>`: "A & B <i>||",
		`<meta name=description content=D><meta property=og:description content=O>` +
			`<meta property=og:site_name content=S><title>T</title>`: "T|O|S",
		`<meta name=twitter:description content=W><meta name=description content=D>` +
			`<meta name=application-name content=A><title>T</title>`: "T|W|A",
		`<!doctype html><html><head></head><title>T</title>`: "||",
		`<body><title>T</title>`:                             "||",
		`<p>text<title>T</title>`:                            "||",
		`<script>var a = "<title>S</title></head>"</script><style>p{}</style><noscript><img ` +
			`src=x></noscript><template><p><title>X</title></template><title>T</title>`: "T||",
		`<!-- <title>C</title> --><title>T</title>`:        "T||",
		`<title>` + strings.Repeat("x", 1000) + `</title>`: strings.Repeat("x", 300) + "||",
		"<title>a\x00b\u202ec\x1b[31md</title>":            "a\uFFFDbc[31md||",
		`<title>T`:                                         "T||",
		``:                                                 "||",
		`<meta property="og:title" content="<script>alert(1)</script>">`:       "<script>alert(1)</script>||",
		`<title>` + strings.Repeat("<", 5) + `</title>`:                        "<<<<<||",
		`<META PROPERTY="OG:TITLE" CONTENT="O">`:                               "O||",
		`<meta content="O" property="og:title" property="x" content="second">`: "O||",
	} {
		h, err := parseHead(strings.NewReader(content))
		require.NoError(t, err, content)
		require.Equal(t, want, h.title.text+"|"+h.description.text+"|"+h.site.text, content)
	}
}

func TestTitleIsReadInItsCharset(t *testing.T) {
	t.Parallel()
	script := "<script>" + strings.Repeat("x", 2000) + "</script>"
	for kind, c := range map[string]struct{ content, title, why string }{
		"text/html; declared=late":        {script + "<meta charset=utf-8><title>Héron ”</title>", "Héron ”", ""},
		"text/html; declared=never":       {script + "<title>Héron ”</title>" + strings.Repeat("é", 64<<10), "Héron ”", ""},
		"text/html; declared=notatall":    {script + "<title>Héron ”</title>x" + strings.Repeat("é", 64<<10), "Héron ”", ""},
		"text/html; declared=legacy":      {script + "<title>H\xe9ron</title>", "Héron", ""},
		"text/html; charset=iso-8859-1":   {"<title>H\xe9ron</title>", "Héron", ""},
		"text/html":                       {"<meta charset=shift_jis><title>\x83\x54\x83\x4d</title>", "サギ", ""},
		"text/html; charset=utf-8":        {"<title>H\xe9ron</title>", "H\uFFFDron", "its title cannot be read in its charset"},
		"text/html; charset=utf-16":       {"\xfe\xff\x00<\x00t\x00i\x00t\x00l\x00e\x00>\x00T\x00<\x00/\x00t\x00i\x00t\x00l\x00e\x00>", "T", ""},
		"text/html; charset=none-such":    {"<title>Héron</title>", "Héron", ""},
		"text/html; charset=\"broken":     {"<title>T</title>", "T", ""},
		"application/xhtml+xml":           {"<?xml version='1.0' encoding='utf-8'?><html><head><title>T</title>", "T", ""},
		"text/html; charset=replacement":  {"<title>T</title>", "\uFFFD", "its title cannot be read in its charset"},
		"text/html;charset=windows-1252;": {"<title>\x93T\x94</title>", "“T”", ""},
	} {
		w := newWeb(t, false, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/a" {
				http.NotFound(w, r)
				return
			}
			w.Header().Set("Content-Type", kind)
			w.Write([]byte(c.content)) // the client checks it
		})
		p, err := w.fetch("paper.example", "/a")
		require.NoError(t, err, kind)
		if c.title != "\uFFFD" {
			require.Equal(t, c.title, p.Title, kind)
			require.Equal(t, c.why, p.Why, kind)
		}
	}
}

// redirectingPages are pages that lead elsewhere, or name another address as their own.
func redirectingPages() map[string]string {
	const title = "<title>Heron</title>"
	return map[string]string{
		"paper.example/a": title, "www.paper.example/b": "> http://paper.example/a?utm_source=x", "other.example/c": "> http://paper.example/a",
		"paper.example/": "<title>The Paper</title>", "paper.example/front": "> /", "paper.example/login": title,
		"paper.example/members":  "> /login?from=members",
		"paper.example/own":      `<link rel="alternate canonical" href="/a#top">` + title,
		"paper.example/stranger": `<link rel=canonical href="http://other.example/c">` + title,
		"paper.example/bad":      `<link rel=canonical href="javascript:alert(1)">` + title,
		"paper.example/sub":      `<link rel=canonical href="http://m.paper.example/a">` + title,
		"paper.example/based/x": `<link rel=canonical href="../a"><base target=_top><base href="/one/two/"><base ` +
			`href="http://other.example/">` + title,
		"paper.example/moved":  `<base href="http://other.example/"><link rel=canonical href="/c">` + title,
		"paper.example/nobase": `<base href="data:text/html,x"><link rel=canonical href="a">` + title,
		"paper.example/back":   "> /welcome?to=%2Fback", "paper.example/welcome": title,
		"paper.example/wall": "<title>Log in | The Paper</title>",
		"paper.example/bot":  "<title>Just a moment...</title>",
		"paper.example/news": "> /tosv2.html?uuid=2b&url=L25ld3M=", "paper.example/tosv2.html": title,
		"paper.example/name":  `<meta property="og:site_name" content="Daily Heron"><title>Daily Heron</title>`,
		"paper.example/host":  "<title>www.paper.example</title>",
		"paper.example/twice": "<title>The heron&amp;#39;s return</title>",
	}
}

func TestRedirectsAndCanonicalAddresses(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, pages(redirectingPages()))
	for path, want := range map[string]Page{
		"paper.example/a":     {Address: "http://paper.example/a", SameSite: true},
		"www.paper.example/b": {Address: "http://paper.example/a", SameSite: true},
		"other.example/c":     {Address: "http://paper.example/a"},
		"paper.example/front": {
			Address: "http://paper.example/", SameSite: true, Title: "The Paper",
			Why: "it leads to the front page of paper.example",
		},
		"paper.example/": {Address: "http://paper.example/", SameSite: true, Title: "The Paper"},
		"paper.example/members": {
			Address: "http://paper.example/login?from=members", SameSite: true, Why: "it is a consent, login or bot-check page",
		},
		"paper.example/back": {
			Address: "http://paper.example/welcome?to=%2Fback", SameSite: true, Why: "it is a consent, login or bot-check page",
		},
		"paper.example/login":    {Address: "http://paper.example/login", SameSite: true},
		"paper.example/own":      {Address: "http://paper.example/own", SameSite: true},
		"paper.example/stranger": {Address: "http://paper.example/stranger", SameSite: true},
		"paper.example/bad":      {Address: "http://paper.example/bad", SameSite: true},
		"paper.example/sub":      {Address: "http://paper.example/sub", SameSite: true},
		"paper.example/based/x":  {Address: "http://paper.example/based/x", SameSite: true},
		"paper.example/moved":    {Address: "http://paper.example/moved", SameSite: true},
		"paper.example/nobase":   {Address: "http://paper.example/nobase", SameSite: true},
		"paper.example/wall": {
			Address: "http://paper.example/wall", SameSite: true, Title: "Log in | The Paper",
			Why: "it is a consent, login or bot-check page",
		},
		"paper.example/bot": {
			Address: "http://paper.example/bot", SameSite: true, Title: "Just a moment...",
			Why: "it is a consent, login or bot-check page",
		},
		"paper.example/news": {
			Address: "http://paper.example/tosv2.html?uuid=2b&url=L25ld3M=", SameSite: true,
			Why: "it is a consent, login or bot-check page",
		},
		"paper.example/name": {
			Address: "http://paper.example/name", SameSite: true, Title: "Daily Heron", SiteName: "Daily Heron",
			Why: "its title is the name of the site",
		},
		"paper.example/host": {
			Address: "http://paper.example/host", SameSite: true, Title: "www.paper.example",
			Why: "its title is the name of the site",
		},
		"paper.example/twice": {Address: "http://paper.example/twice", SameSite: true, Title: "The heron's return"},
	} {
		host, rest, _ := strings.Cut(path, "/")
		got, err := w.fetch(host, "/"+rest)
		require.NoError(t, err, path)
		if want.Title == "" {
			want.Title = "Heron"
		}
		switch own := strings.ReplaceAll(got.Canonical.URL, ":"+w.Port, ""); path {
		case "paper.example/based/x":
			require.Equal(t, "http://paper.example/one/a", own)
		case "paper.example/own", "paper.example/nobase":
			require.Equal(t, "http://paper.example/a", own)
		case "paper.example/sub":
			require.Equal(t, "http://m.paper.example/a", own)
		default:
			require.Empty(t, own, path)
		}
		require.Equal(t, got.Address, got.To.URL, path)
		got.Canonical, got.To, got.Address = want.Canonical, want.To, strings.ReplaceAll(got.Address, ":"+w.Port, "")
		require.Equal(t, want, got, path)
	}
}

func TestPageThatCannotBeReadNowIsAskedAgain(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "90")
		pages(map[string]string{
			"a.example/429": "429", "a.example/408": "408", "a.example/500": "500", "a.example/503": "503", "a.example/403": "403",
			"a.example/410": "410", "a.example/204": "204", "robots.example/robots.txt": "503", "robots.example/a": "<title>T",
		})(w, r)
	})
	for _, path := range []string{"/429", "/408", "/500", "/503"} {
		_, err := w.fetch("a.example", path)
		require.ErrorContains(t, err, "a.example answers "+path[1:])
		require.Equal(t, 90*time.Second, RetryAfter(err))
		var dead *Dead
		require.NotErrorAs(t, err, &dead)
	}
	for _, path := range []string{"/403", "/410", "/204", "/404"} {
		_, err := w.fetch("a.example", path)
		var dead *Dead
		require.ErrorAs(t, err, &dead)
		require.ErrorContains(t, err, "a.example answers "+path[1:])
	}
	_, err := w.fetch("robots.example", "/a")
	require.ErrorContains(t, err, "robots.txt")
	require.NotContains(t, w.Pages(), "robots.example/a", "a page must not be fetched if its robots.txt cannot be read")
}

// TestEveryRequestWaitsForItsTurn covers requests for robots.txt and after
// redirects too.
func TestEveryRequestWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, pages(map[string]string{"a.example/1": "> http://b.example/2", "b.example/2": "> /3", "b.example/3": "<title>T"}))
	_, err := w.fetch("a.example", "/1")
	require.NoError(t, err)
	require.Equal(t, []string{"a.example/robots.txt", "a.example/1", "b.example/robots.txt", "b.example/2", "b.example/3"}, w.Asked())
	require.EqualValues(t, 5, w.turns.Load())
}
