package link

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// textsWithLinks are texts, with the links in them.
var textsWithLinks = []struct {
	rule, text string
	want       []string // as written in the text
}{
	{"with a scheme", "see https://a.example/x now", []string{"https://a.example/x"}},
	{"any case", "HTTPS://A.Example/X", []string{"HTTPS://A.Example/X"}},
	{"http", "http://a.example", []string{"http://a.example"}},
	{"two", "https://a.example/x\nhttps://b.example/y", []string{"https://a.example/x", "https://b.example/y"}},
	{"www", "www.bbc.co.uk is up", []string{"https://www.bbc.co.uk"}},
	{"www with a query", "www.a.com?x=1", []string{"https://www.a.com?x=1"}},
	{"www at a sentence's end", "Go to www.bbc.co.uk.", []string{"https://www.bbc.co.uk"}},
	{"www alone", "the www.thing is www. or www.com", nil},
	{"host and path", "nytimes.com/2026/a", []string{"https://nytimes.com/2026/a"}},
	{"host and root", "nytimes.com/", []string{"https://nytimes.com/"}},
	{"host, port and path", "a.example:8080/x", []string{"https://a.example:8080/x"}},
	{"host without path", "I like nytimes.com, node.js and main.rs", nil},
	{"no public top-level domain", "src.main/x and/or 1.2/3 a.notatld/x a.local/x", nil},
	{"numbers", "3.14/2 127.0.0.1/x", nil},
	{"handle", "ask @a.bsky.social or @nytimes.com/x", nil},
	{"e-mail", "write to someone@nytimes.com/x or someone@www.a.com", nil},
	{"e-mail with www", "www.some.one@nytimes.com", nil},
	{"mailto", "mailto:someone@nytimes.com/x", nil},
	{"another scheme", "ftp://nytimes.com/x at://did:plc:x/app.bsky.feed.post/1 file.com://x/y", nil},
	{"after another scheme's colon", "did:web:nytimes.com/x", nil},
	{"inside a word", "xhttps://a.example/x", nil},
	{"inside a path", "./nytimes.com/x ~nytimes.com/x", nil},
	{"inside another", "https://web.archive.org/web/1/https://a.example/x", []string{"https://web.archive.org/web/1/https://a.example/x"}},
	{"after a colon", "Link:https://a.example/x", []string{"https://a.example/x"}},
	{"scheme alone", "https:// http://", nil},

	{"full stop", "https://a.example/x.", []string{"https://a.example/x"}},
	{"comma and the like", "https://a.example/x, https://a.example/y; https://a.example/z:", []string{
		"https://a.example/x", "https://a.example/y", "https://a.example/z",
	}},
	{"question", "https://a.example/x?!", []string{"https://a.example/x"}},
	{"dot inside", "https://a.example/x.html", []string{"https://a.example/x.html"}},
	{"dash and underscore stay", "https://youtu.be/dQw4w9WgX_- ", []string{"https://youtu.be/dQw4w9WgX_-"}},
	{"in parentheses", "(https://a.example/x)", []string{"https://a.example/x"}},
	{"in parentheses, then a stop", "(see https://a.example/x).", []string{"https://a.example/x"}},
	{"its own parentheses", "https://en.wikipedia.org/wiki/Mercury_(planet)", []string{"https://en.wikipedia.org/wiki/Mercury_(planet)"}},
	{"parentheses inside parentheses", "(https://en.wikipedia.org/wiki/Mercury_(planet)).",
		[]string{"https://en.wikipedia.org/wiki/Mercury_(planet)"}},
	{"markdown", "[text](https://a.example/x) **https://a.example/y**", []string{"https://a.example/x", "https://a.example/y"}},
	{"brackets", "[https://a.example/x]", []string{"https://a.example/x"}},
	{"quotes", `"https://a.example/x" 'https://a.example/y' “https://a.example/z”`, []string{
		"https://a.example/x", "https://a.example/y", "https://a.example/z",
	}},
	{"angle brackets", "<https://a.example/x>", []string{"https://a.example/x"}},
	{"host and path in parentheses", "(nytimes.com/x)", []string{"https://nytimes.com/x"}},

	{"CJK full stop", "https://a.example/x。次", []string{"https://a.example/x"}},
	{"CJK comma", "https://a.example/x、次", []string{"https://a.example/x"}},
	{"CJK brackets", "「https://a.example/x」（https://a.example/y）", []string{"https://a.example/x", "https://a.example/y"}},
	{"full-width space", "https://a.example/x　次", []string{"https://a.example/x"}},
	{"full-width punctuation", "https://a.example/x！https://a.example/y？", []string{"https://a.example/x", "https://a.example/y"}},
	{"after CJK", "詳細はhttps://a.example/x", []string{"https://a.example/x"}},
	{"after CJK, without a scheme", "詳細はnytimes.com/x", nil},
	{"after CJK punctuation", "詳細：nytimes.com/x", []string{"https://nytimes.com/x"}},
	{"letters beyond ASCII", "https://ja.wikipedia.org/wiki/ジョン・レノン", []string{"https://ja.wikipedia.org/wiki/ジョン・レノン"}},
	{"en dash", "https://en.wikipedia.org/wiki/A–B –", []string{"https://en.wikipedia.org/wiki/A–B"}},
	{"emoji", "👉https://a.example/x👀", []string{"https://a.example/x"}},
	{"emoji, without a scheme", "👉nytimes.com/x👀", []string{"https://nytimes.com/x"}},
	{"em dash", "https://a.example/x—which", []string{"https://a.example/x"}},

	{"shortened with an ellipsis", "nytimes.com/2026/07/a-lon…", nil},
	{"shortened with dots", "nytimes.com/2026/07/a-lon...", nil},
	{"shortened, in parentheses", "(nytimes.com/2026/07/a-lon...)", nil},
	{"shortened, with a scheme", "https://nytimes.com/2026/07/a-lon… https://nytimes.com/a-lon...", nil},
	{"shortened host", "www.nytim... www.nytim…", nil},
	{"a separate ellipsis", "https://a.example/x …", []string{"https://a.example/x"}},
}

func TestBareLinksOfAText(t *testing.T) {
	t.Parallel()
	for _, c := range textsWithLinks {

		var got []string
		for _, l := range bareLinks(c.text, nil) {
			require.True(t, strings.HasPrefix(c.text[l.at:], strings.TrimPrefix(l.uri, "https://")) ||
				strings.HasPrefix(c.text[l.at:], l.uri), "%s: %q is not at byte %d", c.rule, l.uri, l.at)
			got = append(got, l.uri)
		}
		require.Equal(t, c.want, got, "%s: %q", c.rule, c.text)
	}
}
