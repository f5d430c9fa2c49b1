package link

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func eventOf(t *testing.T, content string, tags ...[]string) []byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"content": content, "tags": tags})
	require.NoError(t, err)
	return raw
}

func identities(p Post) (found []string) {
	for _, l := range p.Links {
		found = append(found, l.Identity)
	}
	return found
}

func TestLinksOfNotes(t *testing.T) {
	t.Parallel()
	imeta := []string{"imeta", "m image/jpeg", "url https://media.example/9f3c"}
	for _, c := range []struct {
		rule, content string
		tags          [][]string
		want          []string
	}{
		{"a link", "read https://news.example/a", nil, []string{"news.example/a"}},
		{"punctuation of the sentence", "(see https://news.example/a), or https://news.example/b.", nil,
			[]string{"news.example/a", "news.example/b"}},
		{"one article in two spellings", "https://news.example/a http://www.news.example/a/?utm_source=x", nil, []string{"news.example/a"}},
		{"references", "nostr:npub1qqq nostr:nevent1qqs.example/a @npub1 note1abc", nil, nil},
		{"a picture and a film", "https://image.example/x.JPG https://film.example/y.mp4?z=1#t https://news.example/a", nil,
			[]string{"news.example/a"}},
		{"a page whose query names a picture", "https://news.example/a?i=x.jpg", nil, []string{"news.example/a?i=x.jpg"}},
		{"a host that ends like a picture", "https://example.mov https://example.mov/", nil, []string{"example.mov", "example.mov"}[:1]},
		{"media by its tag", "https://media.example/9f3c https://news.example/a", [][]string{imeta}, []string{"news.example/a"}},
		{"a tag of other media", "https://media.example/9f3d", [][]string{imeta}, []string{"media.example/9f3d"}},
		{"tags name no links", "hello", [][]string{{"r", "https://news.example/a"}, {"url", "https://news.example/b"}}, nil},
		{"the network's own pages", "https://njump.me/nevent1abc https://primal.net/e/abc", nil, nil},
		{"no hosts without a scheme or path", "news.example is down, news.example/a is not", nil, []string{"news.example/a"}},
	} {
		got, err := InNote(eventOf(t, c.content, c.tags...))
		require.NoError(t, err, c.rule)
		require.Equal(t, c.want, identities(got), c.rule)
		require.Equal(t, c.content, got.Text, c.rule)
	}
}

func TestLinksOfArticles(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		rule, content string
		want          []string
	}{
		{"two links without a blank", "[a](https://news.example/a)[b](https://news.example/b)**c**",
			[]string{"news.example/a", "news.example/b"}},
		{"parentheses of the address", "([x](https://news.example/a_(b)))", []string{"news.example/a_(b)"}},
		{"a picture", "![x](https://image.example/no-ending)", nil},
		{"a picture that is a link", "[![x](https://image.example/p)](https://news.example/a)", []string{"news.example/a"}},
		{"a title", `[x](https://news.example/a "the title")`, []string{"news.example/a"}},
		{"angle brackets and references", "<https://news.example/a>\n[1]: https://news.example/b", []string{"news.example/a", "news.example/b"}},
		{"an address as its own text", "[https://news.example/a](https://news.example/a)", []string{"news.example/a"}},
		{"no end", "[x](https://news.example/a", []string{"news.example/a"}},
		{"brackets without an address", "a[0](b) \\](x) ](https://news.example/a)", []string{"news.example/a"}},
	} {
		got, err := InArticle(eventOf(t, c.content, []string{"title", "The title"}, []string{"summary", "Its summary"}))
		require.NoError(t, err, c.rule)
		require.Equal(t, c.want, identities(got), c.rule)
		require.Equal(t, "The title\nIts summary\n"+c.content, got.Text, c.rule)
		for _, l := range got.Links {
			require.Zero(t, l.Card, "%s: an article's title must not become that of the page", c.rule)
		}
	}
}

// TestHostileEvents shows that fields of the wrong type, fields that are too long and endless
// nesting cost little, and that only these fields are lost.
func TestHostileEvents(t *testing.T) {
	t.Parallel()
	for record, want := range map[string][]string{
		`{"content":7,"tags":{}}`: nil,
		`{"content":"https://news.example/a","tags":[7,[],["imeta",7,null,["x"]],[[]],{"imeta":1},["imeta","url https://news.example/b"]]}`: {
			"news.example/a",
		},
		`{"content":"https://news.example/\ud800 https://news.example/a"}`: {"news.example", "news.example/a"},
	} {
		got, err := InNote([]byte(record))
		require.NoError(t, err, record)
		require.Equal(t, want, identities(got), record)
	}
	for _, record := range []string{`[]`, `null`, ``, `{"content":`} {
		_, err := InNote([]byte(record))
		require.Error(t, err, record)
		_, err = InArticle([]byte(record))
		require.Error(t, err, record)
	}
	for _, text := range []string{
		strings.Repeat("[](", 1<<19), strings.Repeat("[", 1<<20) + strings.Repeat("](", 1<<19),
		strings.Repeat("https://news.example/", 1<<16),
	} {
		got, err := InArticle(eventOf(t, text))
		require.NoError(t, err)
		require.LessOrEqual(t, len(got.Links), maxLinks)
	}
	many := strings.Builder{}
	for i := range 100 {
		many.WriteString("https://news.example/" + string(rune('a'+i%26)) + strings.Repeat("x", i) + " ")
	}
	got, err := InNote(eventOf(t, many.String()))
	require.NoError(t, err)
	require.Len(t, got.Links, maxLinks)
}
