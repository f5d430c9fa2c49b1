package link

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

const poster = "did:plc:abc"

// inPost returns the URLs that a post shares.
func inPost(t testing.TB, record string) []string {
	p, err := InPost(poster, []byte(record))
	require.NoError(t, err, record)
	urls := []string{}
	for _, l := range p.Links {
		urls = append(urls, l.URL)
	}
	return urls
}

// textPost returns a post with a text and the raw JSON of its other fields.
func textPost(t testing.TB, text string, more ...string) string {
	quoted, err := json.Marshal(text)
	require.NoError(t, err)
	return `{"$type":"app.bsky.feed.post","createdAt":"2026-07-04T14:38:06.240Z","text":` + string(quoted) +
		strings.Join(append([]string{""}, more...), ",") + `}`
}

// linked returns a facet that links a part of a text.
func linked(text, part, uri string) string {
	start := strings.Index(text, part)
	return fmt.Sprintf(`{"index":{"byteStart":%d,"byteEnd":%d},"features":[{"$type":"app.bsky.richtext.facet#link","uri":%q}]}`, start,
		start+len(part), uri)
}

func card(uri, more string) string {
	return fmt.Sprintf(`{"$type":"app.bsky.embed.external","external":{"uri":%q%s}}`, uri, more)
}

func TestLinksOfFacetsCardsAndTextAreFoundInOrder(t *testing.T) {
	t.Parallel()
	text := "é https://bare.example/1 then second.example/a-lon... and third"
	facets := `"facets":[` + linked(text, "third", "https://third.example/") + `,` + linked(text, "second.example/a-lon...",
		"https://second.example/a-long-path") + `]`
	require.Equal(t, []string{
		"https://bare.example/1", "https://second.example/a-long-path", "https://third.example/", "https://card.example/",
	},
		inPost(t, textPost(t, text, facets, `"embed":`+card("https://card.example/", ""))))
}

func TestOneLinkInSeveralSpellingsIsFoundOnce(t *testing.T) {
	t.Parallel()
	text := "https://a.example/x?fbclid=1 and here"
	require.Equal(t, []string{"https://a.example/x"}, inPost(t, textPost(t, text,
		`"facets":[`+linked(text, "here", "HTTPS://a.example:443/x#comments")+`,`+linked(text, "here", "https://a.example/./x?")+`]`,
		`"embed":`+card("https://a.example/x?utm_source=b", ""))))
}

func TestArticleIsSharedOnceInItsFirstSpellingWithItsCard(t *testing.T) {
	t.Parallel()
	text := "http://www.news.example/2026/07/a-heron/ or here"
	p, err := InPost(poster, []byte(textPost(t, text,
		`"facets":[`+linked(text, "here", "https://web.archive.org/web/2026/https://news.example/2026/07/a-heron")+`]`,
		`"embed":`+card("https://news.example/2026/07/a-heron/amp/?utm_source=x", `,"title":"A heron"`))))
	require.NoError(t, err)
	require.Equal(t, []Link{{
		URL: "http://www.news.example/2026/07/a-heron/", Identity: "news.example/2026/07/a-heron", Site: "news.example",
		Card: Card{Title: "A heron"},
	}}, p.Links)
}

func TestCardFillsItsLinkAnywhereInThePost(t *testing.T) {
	t.Parallel()
	text := "first second"
	thumb := `,"thumb":{"$type":"blob","ref":{"$link":"bafkreiabc"},"mimeType":"image/jpeg","size":1}`
	p, err := InPost(poster, []byte(textPost(t, text,
		`"facets":[`+linked(text, "first", "https://www.news.example/1")+`,`+linked(text, "second", "https://b.example/2")+`]`,
		`"embed":`+card("https://www.news.example/1?utm_source=x", `,"title":" A  title\n","description":"About\u0000 it"`+thumb))))
	require.NoError(t, err)
	require.Equal(t, Post{Links: []Link{
		{URL: "https://www.news.example/1", Identity: "news.example/1", Site: "news.example", Card: Card{
			Title: "A title", Description: "About it", Image: "blob:did:plc:abc/bafkreiabc",
		}},
		{URL: "https://b.example/2", Identity: "b.example/2", Site: "b.example"},
	}, Text: text}, p)
}

func TestQuoteIsRecordedWithAndWithoutACard(t *testing.T) {
	t.Parallel()
	quoted := `{"$type":"app.bsky.embed.record","record":{"uri":"at://did:plc:x/app.bsky.feed.post/1","cid":"c"}}`
	subject := Subject{CollectionPost, "did:plc:x", "1"}
	for _, c := range []struct {
		rule, embed string
		want        Post
	}{
		{"a record", quoted, Post{Quoted: subject}},
		{"a record with a card",
			`{"$type":"app.bsky.embed.recordWithMedia","record":` + quoted + `,"media":` + card("https://a.example/", `,"title":"T"`) + `}`,
			Post{Quoted: subject, Links: []Link{{URL: "https://a.example/", Identity: "a.example", Site: "a.example", Card: Card{Title: "T"}}}}},
		{"a record with pictures",
			`{"$type":"app.bsky.embed.recordWithMedia","record":` + quoted +
				`,"media":{"$type":"app.bsky.embed.images","images":[]}}`, Post{Quoted: subject}},
		{"a card alone", card("https://a.example/", ""), Post{Links: []Link{{
			URL: "https://a.example/", Identity: "a.example", Site: "a.example",
		}}}},
		{"pictures alone", `{"$type":"app.bsky.embed.images","images":[],"external":{"uri":"https://a.example/"}}`, Post{}},
		{"a video alone", `{"$type":"app.bsky.embed.video","video":{}}`, Post{}},
		{"an embed without a type", `{"external":{"uri":"https://a.example/"}}`, Post{}},
	} {
		p, err := InPost(poster, []byte(textPost(t, "look", `"embed":`+c.embed)))
		require.NoError(t, err, c.rule)
		c.want.Text = "look"
		require.Equal(t, c.want, p, c.rule)
	}
}

// TestWhatTheTextOpenedIsClosed has facets whose addresses end in quotes and brackets.
func TestWhatTheTextOpenedIsClosed(t *testing.T) {
	t.Parallel()
	const page = "https://a.example/x"
	for _, c := range []struct{ text, uri, want string }{
		{"(" + page + ")", page + ")", page}, {"„" + page + "“", page + "“", page}, {"«" + page + "»", page + "»", page},
		{`"` + page + `"`, page + `"`, page},
		{"(" + page + "\ufe0f", page + "\ufe0f", page}, {"「" + page + "」", page + "」", page},
		{page + ")", page + ")", page + ")"}, {"(" + page + "_(y)", page + "_(y)", page + "_(y)"}, {"[" + page + ")", page + ")", page + ")"},
	} {
		shown := c.text[strings.Index(c.text, page):]
		require.Equal(t, []string{c.want}, inPost(t, textPost(t, c.text, `"facets":[`+linked(c.text, shown, c.uri)+`]`)), c.text)
	}
}

func TestLinksToAnimatedPicturesAndTheNetworkDoNotCount(t *testing.T) {
	t.Parallel()
	for _, uri := range []string{
		"https://media.tenor.com/x/cat.gif?hh=280&ww=498", "https://tenor.com/view/cat-1", "https://c.tenor.com/x.gif",
		"https://giphy.com/gifs/1", "https://media3.giphy.com/media/1/giphy.gif", "https://i.giphy.com/1.gif", "https://gph.is/1",
		"https://klipy.com/gifs/1", "https://static.klipy.com/1.gif", "http://MEDIA.TENOR.COM./x.gif",
		"https://bsky.app/profile/a.example/post/1", "https://www.bsky.app/", "https://go.bsky.app/x",
		"https://bsky.social/profile/a.example", "https://a.bsky.social/", "https://deer.social/profile/a.example/post/1",
		"https://njump.me/nevent1abc",
		"https://www.google.com/url?q=https://bsky.app/profile/a.example/post/1",
		"https://l.facebook.com/l.php?u=https%3A%2F%2Ftenor.com%2Fview%2Fcat-1",
		"https://web.archive.org/web/2026/https://bsky.app/profile/a.example/post/1", "https://www.google.com/url?q=http://127.0.0.1/x",
		"at://did:plc:abc/app.bsky.feed.post/1", "https://127.0.0.1/x", "https://user@a.example/",
	} {
		require.Empty(t, inPost(t, textPost(t, "", `"embed":`+card(uri, `,"title":"T"`))), uri)
		require.Empty(t, inPost(t, textPost(t, "here", `"facets":[`+linked("here", "here", uri)+`]`)), uri)
		require.Empty(t, inPost(t, textPost(t, "look "+uri)), uri)
	}
	for _, uri := range []string{
		"https://nottenor.com/x", "https://tenor.com.a.example/x", "https://bsky.app.a.example/x",
		"https://bsky.social/about/blog/a",
	} {
		require.Equal(t, []string{uri}, inPost(t, textPost(t, "", `"embed":`+card(uri, ""))), uri)
	}
}

func TestSiteIsTheRegistrableDomain(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]string{
		"https://www.bbc.co.uk/x":          "bbc.co.uk",
		"https://edition.cnn.com/x":        "cnn.com",
		"https://someone.github.io/x":      "someone.github.io",
		"https://www.gov.uk/x":             "gov.uk",
		"https://gov.uk/x":                 "gov.uk",
		"https://www.com/x":                "www.com",
		"https://a.news.example/x":         "news.example",
		"https://www.bücher.example/x":     "xn--bcher-kva.example",
		"https://www.harbourtimes.example": "harbourtimes.example",
	} {
		p, err := InPost(poster, []byte(textPost(t, "", `"embed":`+card(uri, ""))))
		require.NoError(t, err)
		require.Len(t, p.Links, 1, uri)
		require.Equal(t, want, p.Links[0].Site, uri)
	}
}

func TestCardIsCleanPlainText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ rule, title, want string }{
		{"white space becomes one space", "\\t a \\r\\n\\n b\\u00a0c ", "a b c"},
		{"control characters are removed", "a\\u0000b\\u0007c\\u0085d", "abc d"},
		{"changes of direction are removed", "a\\u202eb\\u2066c", "abc"},
		{"joined emoji stay", "👩‍💻", "👩‍💻"},
		{"markup is text", "<b>&", "<b>&"},
		{"entities are decoded", "It wasn&#39;t me: Tom &amp; Jerry &lt;b&gt;", "It wasn't me: Tom & Jerry <b>"},
		{"entities are decoded twice", "It wasn&amp;#39;t me", "It wasn't me"},
		{"a decoded change of direction is removed", "a&#x202E;b", "ab"},
		{"half a surrogate pair is replaced", "a\\ud800b", "a\uFFFDb"},
		{"cut to 300 runes", strings.Repeat("é", 301), strings.Repeat("é", 300)},
		{"no space at the cut", strings.Repeat("é", 299) + " é", strings.Repeat("é", 299)},
		{"a space before the last rune", strings.Repeat("é", 298) + " éé", strings.Repeat("é", 298) + " é"},
		{"only white space", " \\n ", ""},
	} {
		p, err := InPost(poster,
			[]byte(textPost(t, "", `"embed":`+card("https://a.example/", `,"title":"`+c.title+`","description":"`+strings.Repeat("d", 1001)+`"`))))
		require.NoError(t, err, c.rule)
		require.Equal(t, c.want, p.Links[0].Card.Title, c.rule)
		require.Len(t, p.Links[0].Card.Description, 1000)
	}
}

// TestCardOfAWallGivesNothing covers titles of walls, of nothing, and the name of the site.
func TestCardOfAWallGivesNothing(t *testing.T) {
	t.Parallel()
	const thumb = `,"thumb":{"ref":{"$link":"bafkreiabc"}}`
	for title, given := range map[string]bool{
		"Bank - Are you a robot?": false, "bank.example": false, "Bank": false, "���ɥ - � 100�": false,
		"Making sure you&amp;#39;re not a bot!": false,
		"Are you a robot? asks the bank":        true, "Bank raises rates": true,
	} {
		p, err := InPost(poster,
			[]byte(textPost(t, "", `"embed":`+card("https://bank.example/2026/a-real-story", thumb+`,"description":"d","title":"`+title+`"`))))
		require.NoError(t, err)
		require.Equal(t, given, p.Links[0].Card != Card{}, title)
	}
	p, err := InPost(poster,
		[]byte(textPost(t, "", `"embed":`+card("https://bank.example/in?returnUrl=%2F2026%2Fstory", thumb+`,"title":"Bank for members"`))))
	require.NoError(t, err)
	require.Zero(t, p.Links[0].Card, "the address is that of a wall")
}

func TestThumbnailMustReferToABlob(t *testing.T) {
	t.Parallel()
	for _, thumb := range []string{
		`"bafkreiabc"`, `{"ref":"bafkreiabc"}`, `{"ref":{"$link":7}}`, `{"ref":{"$link":""}}`, `{"ref":{"$link":"../x"}}`,
		`{"ref":{"$link":"a b"}}`, `{"ref":{"$link":"` + strings.Repeat("a", 129) + `"}}`, `"https://a.example/x.jpg"`, `null`, `[]`,
	} {
		p, err := InPost(poster, []byte(textPost(t, "", `"embed":`+card("https://a.example/", `,"thumb":`+thumb))))
		require.NoError(t, err, thumb)
		require.Equal(t, []Link{{URL: "https://a.example/", Identity: "a.example", Site: "a.example"}}, p.Links, thumb)
	}
}

func TestFieldOfAWrongTypeAffectsOnlyItself(t *testing.T) {
	t.Parallel()
	good := `{"index":{"byteStart":0,"byteEnd":4},"features":[{"$type":"app.bsky.richtext.facet#link","uri":"https://good.example/"}]}`
	carded := card("https://card.example/", "")
	both := []string{"https://good.example/", "https://card.example/"}
	for _, c := range []struct {
		facets, embed string
		want          []string
	}{
		{`[` + good + `]`, carded, both},
		{`[7,` + good + `]`, carded, both},
		{`[null,"x",[],{},` + good + `]`, carded, both},
		{`[{"features":7},` + good + `]`, carded, both},
		{`[{"features":[7,null,{"$type":7},{"$type":"app.bsky.richtext.facet#link","uri":{}}]},` + good + `]`, carded, both},
		{`[{"features":[{"$type":"app.bsky.richtext.facet#link","uri":7}],"index":"x"},` + good + `]`, carded, both},
		{
			`[{"features":[{"$type":"app.bsky.richtext.facet#link"},{"$type":"app.bsky.richtext.facet#link","uri":"https://good.example/"}]}]`,
			carded, both,
		},
		{`[{"index":{"byteStart":"0"},"features":[{"$type":"app.bsky.richtext.facet#link","uri":"https://good.example/"}]}]`, carded, both},
		{`{"x":1}`, carded, []string{"https://card.example/"}},
		{`"x"`, carded, []string{"https://card.example/"}},
		{`[` + good + `]`, `7`, []string{"https://good.example/"}},
		{`[` + good + `]`, `[` + carded + `]`, []string{"https://good.example/"}},
		{`[` + good + `]`, `{"$type":["app.bsky.embed.external"],"external":{"uri":"https://x.example/"}}`, []string{"https://good.example/"}},
		{`[` + good + `]`, `{"$type":"app.bsky.embed.external","external":7}`, []string{"https://good.example/"}},
		{`[` + good + `]`, `{"$type":"app.bsky.embed.external","external":{"uri":["https://x.example/"]}}`, []string{"https://good.example/"}},
		{`[` + good +
			`]`, `{"$type":"app.bsky.embed.external","external":{"uri":"https://card.example/","title":7,"description":{},"thumb":7}}`, both},
	} {
		require.Equal(t, c.want, inPost(t, textPost(t, "here", `"facets":`+c.facets, `"embed":`+c.embed)), "%s %s", c.facets, c.embed)
	}
	require.Equal(t, both, inPost(t, `{"text":7,"facets":[`+good+`],"embed":`+carded+`}`))
	require.Equal(t, both, inPost(t, `{"text":null,"text":["a"],"facets":[`+good+`],"embed":`+carded+`,"langs":7,"reply":"x"}`))
}

func TestRangeOutsideTheTextCoversNoBareLink(t *testing.T) {
	t.Parallel()
	const text = "see https://bare.example/x"
	for _, index := range []string{
		`{"byteStart":0,"byteEnd":9999}`, `{"byteStart":-1,"byteEnd":26}`, `{"byteStart":26,"byteEnd":0}`, `{"byteStart":5,"byteEnd":5}`,
		`{"byteStart":0,"byteEnd":9223372036854775808}`, `{"byteStart":1e99,"byteEnd":26}`, `{"byteStart":0.5,"byteEnd":26}`,
		`{"byteStart":"0","byteEnd":"26"}`, `{"byteStart":{"x":[]},"byteEnd":26}`, `{"byteEnd":26}`, `null`, `{}`,
	} {
		require.Equal(t, []string{"https://bare.example/x", "https://hidden.example/"}, inPost(t, textPost(t, text,
			`"facets":[{"index":`+index+`,"features":[{"$type":"app.bsky.richtext.facet#link","uri":"https://hidden.example/"}]}]`)), index)
	}
}

func TestFacetReplacesTheBareLinkItOverlaps(t *testing.T) {
	t.Parallel()
	const text = "a https://bare.example/x b"
	for _, c := range []struct {
		part, feature string
		want          []string
	}{
		{"https://bare.example/x", `{"$type":"app.bsky.richtext.facet#link","uri":"https://real.example/"}`, []string{"https://real.example/"}},
		{"x", `{"$type":"app.bsky.richtext.facet#link","uri":"https://real.example/"}`, []string{"https://real.example/"}},
		{"a https", `{"$type":"app.bsky.richtext.facet#link","uri":"at://x"}`, []string{}},
		{"a ", `{"$type":"app.bsky.richtext.facet#link","uri":"https://real.example/"}`,
			[]string{"https://real.example/", "https://bare.example/x"}},
		{" b", `{"$type":"app.bsky.richtext.facet#link","uri":"https://real.example/"}`,
			[]string{"https://bare.example/x", "https://real.example/"}},
		{"bare.example", `{"$type":"app.bsky.richtext.facet#mention","did":"did:plc:x"}`, []string{}},
		{"bare", `{"$type":"app.bsky.richtext.facet#tag","tag":"bare"}`, []string{"https://bare.example/x"}},
		{"bare", `{"$type":"some.other.facet","uri":"https://real.example/"}`, []string{"https://bare.example/x"}},
	} {
		start := strings.Index(text, c.part)
		require.Equal(t, c.want, inPost(t, textPost(t, text,
			fmt.Sprintf(`"facets":[{"index":{"byteStart":%d,"byteEnd":%d},"features":[%s]}]`, start, start+len(c.part),
				c.feature))), "%q %s", c.part, c.feature)
	}
}

// TestFewClosingSignsAreRemoved shows that the work for one facet is bounded: each sign is looked for in the whole URL.
func TestFewClosingSignsAreRemoved(t *testing.T) {
	t.Parallel()
	for signs, left := range map[int]int{2: 0, maxClosing: 0, 100: 100 - maxClosing} {
		text := strings.Repeat("(", signs) + "here"
		require.Equal(t, []string{"https://a.example/x" + strings.Repeat(")", left)}, inPost(t, textPost(t, text,
			`"facets":[`+linked(text, "here", "https://a.example/x"+strings.Repeat(")", signs))+`]`)))
	}
}

func TestPostSharesAtMost25LinksIncludingItsCard(t *testing.T) {
	t.Parallel()
	var facets []string
	for i := range 10_000 {
		facets = append(facets, linked("here", "here", fmt.Sprintf("https://a.example/%d", i)))
	}
	record := textPost(t, "here", `"facets":[`+strings.Join(facets, ",")+`]`, `"embed":`+card("https://card.example/", `,"title":"T"`))
	p, err := InPost(poster, []byte(record))
	require.NoError(t, err)
	require.Len(t, p.Links, maxLinks)
	require.Equal(t, "https://a.example/0", p.Links[0].URL)
	require.Equal(t, "https://a.example/23", p.Links[23].URL)
	require.Equal(t, Link{URL: "https://card.example/", Identity: "card.example", Site: "card.example", Card: Card{Title: "T"}}, p.Links[24])

	without := inPost(t, textPost(t, "here", `"facets":[`+strings.Join(facets, ",")+`]`))
	require.Len(t, without, maxLinks)
	require.Equal(t, "https://a.example/24", without[24])

	same := strings.Repeat(linked("here", "here", "https://a.example/")+",", 999) + linked("here", "here", "https://b.example/")
	require.Equal(t, []string{"https://a.example/", "https://b.example/"}, inPost(t, textPost(t, "here", `"facets":[`+same+`]`)))
	last := linked("here", "here", "https://last.example/")
	require.Equal(t, []string{"https://last.example/"}, inPost(t, textPost(t, "here", `"facets":[`+strings.Repeat(`{},`, maxList-1)+last+`]`)))
	require.Empty(t, inPost(t, textPost(t, "here", `"facets":[`+strings.Repeat(`{},`, maxList)+last+`]`)))
	require.Len(t, inPost(t, textPost(t, "here", `"facets":[{"features":[`+strings.Repeat(`{"$type":"app.bsky.richtext.facet#link",`+
		`"uri":"https://a.example/"},`, 5000)+`{}]}]`)), 1)
}

func TestHugeTextIsReadUpToItsLimit(t *testing.T) {
	t.Parallel()
	var words []string
	for i := range 100_000 {
		words = append(words, fmt.Sprintf("https://a.example/%d", i))
	}
	require.Len(t, inPost(t, textPost(t, strings.Join(words, " "))), maxLinks)
	filler := strings.Repeat("a.b ", maxText/4)
	require.Empty(t, inPost(t, textPost(t, filler+"https://a.example/x")))
	require.Equal(t, []string{"https://a.example/x"}, inPost(t, textPost(t, filler[:maxText-40]+"https://a.example/x")))
	require.Empty(t, inPost(t, textPost(t, "https://a.example/"+strings.Repeat(")", 200_000))),
		"a text that is cut off inside a link must not share it")
}

func TestInvalidPostIsAnError(t *testing.T) {
	t.Parallel()
	for _, record := range []string{
		"", " ", "null", "7", `"x"`, "[]", "{", `{"text":"x"`, `{"text":"x"}}`, `{"text":}`, "\x00",
		strings.Repeat(`{"a":`, 20_000),
	} {
		p, err := InPost(poster, []byte(record))
		require.Error(t, err, "%.20q", record)
		require.Zero(t, p)
	}
	for _, record := range []string{"{}", " {} ", `{"text":""}`, `{"$type":7}`, "{\"text\":\"\xff\"}"} {
		require.Empty(t, inPost(t, record), record)
	}
}

// addPosts adds the seeds of the fuzz targets.
func addPosts(f *testing.F) {
	text := "é https://bare.example/1 then second.example/a-lon... www.x.com (a.com/b) 日本https://b.example/。"
	f.Add(textPost(f, text, `"facets":[`+linked(text, "second.example/a-lon...", "https://second.example/a-long-path")+`]`,
		`"embed":`+card("https://card.example/", `,"title":" a b ","description":"c","thumb":{"ref":{"$link":"bafkreiabc"}}`)))
	f.Add(textPost(f, "x",
		`"embed":{"$type":"app.bsky.embed.recordWithMedia","record":{},"media":`+card("https://media.tenor.com/x.gif", "")+`}`))
	f.Add(textPost(f, "x",
		`"facets":[{"index":{"byteStart":-1,"byteEnd":1e9},"features":[{"$type":"app.bsky.richtext.facet#link",`+
			`"uri":"https://u@a.example"}]},7]`))
	f.Add(`{"text":"\ud800 a.example/x","facets":{},"embed":[]}`)
}

func FuzzInPost(f *testing.F) {
	addPosts(f)
	f.Fuzz(func(t *testing.T, record string) {
		p, err := InPost(poster, []byte(record))
		if err != nil {
			require.Zero(t, p)
			return
		}
		require.LessOrEqual(t, len(p.Links), maxLinks)
		seen := map[string]bool{}
		for _, l := range p.Links {
			requireNormal(t, l.URL)
			require.False(t, seen[l.Identity], "%s is returned twice", l.Identity)
			seen[l.Identity] = true
			require.NotEmpty(t, l.Site)
			require.LessOrEqual(t, utf8.RuneCountInString(l.Card.Title), maxTitle)
			require.LessOrEqual(t, utf8.RuneCountInString(l.Card.Description), maxDescription)
			require.NotContains(t, l.Card.Title+l.Card.Description+l.Card.Image, "\x00")
			require.True(t, utf8.ValidString(l.Card.Title+l.Card.Description))
		}
	})
}

func BenchmarkInPost(b *testing.B) {
	text := "What does it mean? www.youtube.com/watch?v=V5lD..."
	for _, c := range []struct{ name, record string }{
		{"plain", textPost(b, "Nobody told me that the library closes on a Tuesday, of all days. Never mind: the café is open.",
			`"langs":["en"]`)},
		{"reply", textPost(b, "Yes, exactly this!", `"langs":["en"],"reply":{"parent":{"cid":"bafyreib2rxk3rw6putwarch3a",`+
			`"uri":"at://did:plc:abc/app.bsky.feed.post/3k"},"root":{"cid":"bafyreib2rxk3rw6putwarch3a",`+
			`"uri":"at://did:plc:abc/app.bsky.feed.post/3k"}}`)},
		{"bare", textPost(b, "Worth your time: https://www.harbourtimes.example/2026/07/a-bridge-nobody-asked-for-1234?utm_source=bluesky")},
		{"card", textPost(b, text,
			`"facets":[`+linked(text, "www.youtube.com/watch?v=V5lD...", "https://www.youtube.com/watch?v=V5lDo-jw8mA")+`]`,
			`"embed":`+card("https://www.youtube.com/watch?v=V5lDo-jw8mA",
				`,"title":"What does it mean?","description":"YouTube video","thumb":{"$type":"blob",`+
					`"ref":{"$link":"bafkreias7oxbr6swsuggccmtnqpoeami4jza5x4w3urltn6gzhqf4k6k2e"},"mimeType":"image/jpeg","size":119635}`))},
	} {
		b.Run(c.name, func(b *testing.B) {
			record := []byte(c.record)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := InPost(poster, record); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "posts/s")
		})
	}
}
