package card

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestRobots(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text           string
		allows, denies string // paths
	}{
		{"", "/ /a", ""},
		{"<html>not found", "/", ""},
		{"User-agent: *\nDisallow: /private", "/ /a /publicprivate", "/private /private/x /privately?x=1"},
		{"User-agent: *\nDisallow:", "/", ""},
		{"user-AGENT : * # all\r\ndisALLOW:/a#b\r\n", "/b", "/a"},
		{"User-agent: other\nDisallow: /", "/", ""},
		{"User-agent: *\nDisallow: /\n\nUser-agent: Weir\nDisallow: /a", "/ /b", "/a"},
		{"User-agent: weir/2.0\nUser-agent: other\nDisallow: /a\nUser-agent: other\nDisallow: /b\nUser-agent: WEIR\nDisallow: /c", "/b", "/a /c"},
		{"User-agent: weir\nAllow: /\n\nUser-agent: *\nDisallow: /", "/a", ""},
		{"User-agent: weir\n\nUser-agent: *\nDisallow: /", "", "/a"}, // two groups count as one
		{"User-agent: *\nDisallow: /a\nAllow: /a/b", "/a/b /a/bc", "/a /a/c"},
		{"User-agent: *\nDisallow: /a\nAllow: /a", "/a", ""}, // of two rules of the same length, the one that allows wins
		{"User-agent: *\nDisallow: /*.pdf$\nDisallow: /*/print", "/a.pdf?x /print /pdf", "/a.pdf /b/c.pdf /a/print /a/b/print/c"},
		{"User-agent: *\nDisallow: /a$\nDisallow: *x*y", "/ab /yx", "/a /1x2y3"},
		{"User-agent: *\nDisallow: /%7Ejoe/%c3%A9", "/~joe", "/~joe/é /%7ejoe/%C3%a9"},
		{"\uFEFFUser-agent: *\nDisallow: /", "", "/"},
		{"Sitemap: /x\nDisallow: /a\nUser-agent: *\nCrawl-delay: 5\nDisallow: /b", "/a", "/b"},
		{"User-agent: *\nDisallow: /b\nUser-agent: weirder\nDisallow: /", "/a", "/b"},
		{"User-agent: *\n" + strings.Repeat("Disallow: /"+strings.Repeat("x", 1000)+"\n", 100), "", "/"}, // too many rules to keep
		{"User-agent: other\n" + strings.Repeat("Disallow: /"+strings.Repeat("x", 1000)+"\n", 100), "/", ""},
	} {
		r := parseRobots(c.text, "weir")
		for path := range strings.FieldsSeq(c.allows) {
			require.True(t, r.allow(path), "%s allows %s", c.text, path)
		}
		for path := range strings.FieldsSeq(c.denies) {
			require.False(t, r.allow(path), "%s denies %s", c.text, path)
		}
	}
}

// TestRobotsAreObeyedAndRemembered covers the pages of a redirect too.
func TestRobotsAreObeyedAndRemembered(t *testing.T) {
	t.Parallel()
	w := newWeb(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/robots.txt" && strings.HasPrefix(r.Host, "paper.") {
			w.Write([]byte("User-agent: *\nDisallow: /private\n")) // the client checks it
			return
		}
		pages(map[string]string{
			"paper.example/a": "<title>T", "paper.example/private": "<title>P",
			"other.example/a": "> http://paper.example/private", "moved.example/robots.txt": "> http://paper.example/robots.txt",
			"moved.example/private": "<title>P",
		})(w, r)
	})
	for range 3 {
		p, err := w.fetch("paper.example", "/a")
		require.NoError(t, err)
		require.Equal(t, "T", p.Title)
	}
	for _, host := range []string{"paper.example", "other.example", "moved.example"} {
		_, err := w.fetch(host, map[bool]string{true: "/a", false: "/private"}[host == "other.example"])
		require.ErrorContains(t, err, "forbids it")
		var dead *Dead
		require.ErrorAs(t, err, &dead)
	}
	require.Equal(t, []string{"paper.example/a", "paper.example/a", "paper.example/a", "other.example/a"}, w.Pages())
	require.Len(t, w.Asked(), 4+4, "expected one robots.txt per host, one of them on another host")
}

func TestFewRobotsAreRemembered(t *testing.T) {
	t.Parallel()
	var c robotsCache
	now := time.Now()
	for n := range 2 * robotsHosts {
		c.keep(strings.Repeat("x", n), rules{}, now)
	}
	require.Len(t, c.hosts, robotsHosts)
	last := strings.Repeat("x", 2*robotsHosts-1)
	for at, want := range map[time.Duration]bool{0: true, robotsFor - 1: true, robotsFor: false, -time.Second: false} {
		_, ok := c.find(last, now.Add(at))
		require.Equal(t, want, ok, at)
	}
}
