package words

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
)

func TestWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                               "",
		"Heron RETURNS, to the “River”!": "heron returns to the river",
		"Crème brûlée à l'Élysée":        "creme brulee a l elysee",
		"Cafe\u0301 Ёлка Ωμέγα":          "cafe елка ωμεγα",
		"node.js v1.2 COVID-19":          "node js v1 2 covid 19",
		"寿司が食べたい now":                    "寿 司 が 食 べ た い now",
		"か\u3099 ｆｕｌｌ":                   "が full",
		"हिन्दी العربية":                 "हिन्दी العربية",
		"soft\u00adhyphen 👨‍👩‍👧 #tag":    "softhyphen tag",
		"it's a 'quote' \\ : * & | <->":  "it s a quote",
		"\xff\xfebad":                    "bad",
		strings.Repeat("é", 100):         strings.Repeat("e", maxWord),
	} {
		require.Equal(t, want, strings.Join(split(text), " "), text)
	}
}

func TestSearchParses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                          "",
		" , !":                      "",
		"Heron":                     "'heron':*",
		"in":                        "'in'",
		"heron returns":             "'heron' & 'returns':*",
		`"Heron Returns"`:           "'heron' <-> 'returns'",
		`say “heron returns” to it`: "'say' & 'heron' <-> 'returns' & 'to' & 'it'",
		`unclosed "heron returns`:   "'unclosed' & 'heron' <-> 'returns'",
		"node.js":                   "'node' <-> 'js' address %node.js% %node%",
		"寿司":                        "'寿' <-> '司'",
		"https://WWW.News.example/": "'https' <-> 'www' <-> 'news' <-> 'example' address %news.example% %example%",
		"news.example/a_b%c\\":      `'news' <-> 'example' <-> 'a' <-> 'b' <-> 'c' address %news.example/a\_b\%c\\% %example%`,
		"a.b":                       "'a' <-> 'b'",
		"one two.example":           "'one' & 'two' <-> 'example'",
	} {
		s := Parse(text)
		got := s.Words
		if s.Address != nil {
			got += " address " + *s.Address + " " + *s.Part
		}
		require.Equal(t, want, got, text)
	}
}

// FuzzPlainWords checks that an ASCII text has the same words next to an accent.
func FuzzPlainWords(f *testing.F) {
	for _, text := range []string{"Heron returns", "A-b_c 12.3e4", "\x00'\\\x7f", strings.Repeat("x", 3000) + " Y"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if isASCII(text) {
			require.Equal(t, append(split(text), "e"), split(text+" \u00e9"))
		}
	})
}

// FuzzSearch checks that Postgres accepts every indexed text and every query, and that a text is
// found by each of its words.
func FuzzSearch(f *testing.F) {
	for _, text := range []string{"Heron returns", `a "b c`, "news.example/ä?x", "寿司が",
		"\x00'\\:*!&|<->", "\xff", strings.Repeat("x", 3000)} {
		f.Add(text)
	}
	pool := schematest.New(f)
	f.Fuzz(func(t *testing.T, text string) {
		v, asked := Vector(text, text), []Search{Parse(text)}
		for _, word := range split(bounded(text)) {
			asked = append(asked, Parse(word))
		}
		for i, s := range asked {
			var found bool
			require.NoError(t, pool.QueryRow(t.Context(), `
				SELECT coalesce($1::tsvector @@ $2::tsquery, false) AND ($3::text IS NULL OR 'x' ILIKE $3 IS NOT NULL)`, v, s.Words,
				s.Address).Scan(&found))
			require.True(t, found || i == 0, "%q in %q", s.Words, text)
		}
	})
}
