package title

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEntitiesAreDecodedTwice(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"It wasn&#39;t me: Tom &amp; Jerry": "It wasn't me: Tom & Jerry",
		"It wasn&amp;#39;t me":              "It wasn't me",
		"&amp;amp;#39;":                     "&#39;",
		"&lt;b&gt;":                         "<b>",
		"Q&A at AT&T; R&D":                  "Q&A at AT&T; R&D",
		"?a=1&copy=2&#x2019;&#146;":         "?a=1&copy=2’’",
		"&#0;&#xFFFFFF;&#99999999;":         "\uFFFD\uFFFD&#99999999;",
		"&nosuch;":                          "&nosuch;",
		"It&#39s &#8220up&#8221 &#8211 now": "It's “up” – now",
	} {
		require.Equal(t, want, Decode(Decode(raw)), raw)
	}
	require.LessOrEqual(t, len(Decode(strings.Repeat("&amp;amp;", 1e6))), maxText)
}

func TestTitleIsOneLine(t *testing.T) {
	t.Parallel()
	for raw, want := range map[string]string{
		"\u200b The\u00a0 heron\u2028\r\nreturns\u3164 ": "The heron returns",
		"a\x00b\u202ec\u2066d\u2069\ufeff\u00ad\u2060":   "abcd",
		"&#x202E;evil": "evil",
		"👩\u200d🚀":     "👩\u200d🚀",
	} {
		require.Equal(t, want, Clean(Decode(raw), 300), "%q", raw)
	}
	require.Equal(t, "ab", Clean("ab c", 3), "no space at the end")
}

func TestUselessTitlesAreNone(t *testing.T) {
	t.Parallel()
	for title, want := range map[string]string{
		"":                              "it has no title",
		"���ɥ - � 100�":                 "its title cannot be read",
		"\uFFFD\uFFFD":                  "its title cannot be read",
		"… — !":                         "its title cannot be read",
		"🔥🔥":                            "",
		"reuters.com":                   "its title is the name of the site",
		"www.reuters.com":               "its title is the name of the site",
		"Reuters":                       "its title is the name of the site",
		"- REUTERS":                     "its title is the name of the site",
		"The Reuters":                   "its title is the name of the site",
		"https://www.reuters.com/world": "its title is an address",
		"Reuters and the war":           "",
		"It\uFFFDs the heron's turn":    "",
		"1984":                          "",
		"{{ title }}":                   "its title is that of a template",
		"${title}":                      "its title is that of a template",
		"%title%":                       "its title is that of a template",
		"100%":                          "",
		"鷺が帰る":                          "",
	} {
		require.Equal(t, want, Why(title, "https://www.reuters.com/world/a-real-story-2026-11-27/"), title)
	}
	require.Empty(t, Why("Reuters", "https://paper.example/a"))
	require.NotEmpty(t, Why("BBC", "https://www.bbc.co.uk/news/1"))
	require.Empty(t, Why("A", "https://a.example/1"), "a word is not the name of a host of one letter")
}

// TestVariantsHaveOneKey has variants on each line, and different titles on different lines.
func TestVariantsHaveOneKey(t *testing.T) {
	t.Parallel()
	for want, variants := range map[string][]string{
		"heron returns to the harbour": {
			"Heron returns to the harbour", "HERON RETURNS TO THE HARBOUR!", "“Heron returns” to the harbour",
			"Heron returns to the harbour | The Paper", "Heron returns to the harbour - paper.example",
			"Heron returns to the harbour — Paper",
		},
		"it wasnt me tom jerry": {"It wasn't me: Tom & Jerry", "It wasn’t me: TOM & JERRY  "},
		"heron\nherald":         {"Heron | Herald", "Heron - Herald"},
		"heron returns to…":     {"Heron returns to…", "Heron returns to...", "Heron returns to .."},
		"":                      {"…", "", " | "},
		"paper":                 {"Paper"},
	} {
		for _, v := range variants {
			require.Equal(t, want, strings.TrimSuffix(Key(v, "paper.example"), "\n"), v)
		}
	}
	require.Equal(t, "heron\n", Key("Heron | The Paper", "paper.example"))
	require.Equal(t, "heron ret\n…", Key("Heron ret... | The Paper", "paper.example"))
	require.Equal(t, "鷺が帰る\n新聞", Key("鷺が帰る｜新聞", "paper.example"))
	require.NotContains(t, Key("Heron | a paper of herons, owls, storks and other birds", "paper.example"), "\n", "no site has so long a name")
	require.Equal(t, Group(Key("A – b", "c.example"), "c.example"), Group(Key("a: b", "c.example"), "c.example"))
	require.NotEqual(t, Group("a", "b.example"), Group("a", "c.example"))
}
