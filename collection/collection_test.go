package collection

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const day = 24 * time.Hour

func parse(t *testing.T, entries ...string) Registry {
	t.Helper()
	r, err := Parse(entries, day)
	require.NoError(t, err)
	return r
}

// TestExactNameWinsOverTheLongestPrefix, in whatever order the entries come.
func TestExactNameWinsOverTheLongestPrefix(t *testing.T) {
	t.Parallel()
	for _, entries := range [][]string{
		{"pub.layers.*=0", "pub.layers.annotation.*=48h", "pub.layers.annotation.note=1h", "app.bsky.feed.post"},
		{"app.bsky.feed.post", "pub.layers.annotation.note=1h", "pub.layers.annotation.*=48h", "pub.layers.*=0"},
	} {
		r := parse(t, entries...)
		for name, want := range map[string]Entry{
			"app.bsky.feed.post":           {"app.bsky.feed.post", day},
			"pub.layers.annotation.note":   {"pub.layers.annotation.note", time.Hour},
			"pub.layers.annotation.mark":   {"pub.layers.annotation.*", 2 * day},
			"pub.layers.annotation.note.x": {"pub.layers.annotation.*", 2 * day},
			"pub.layers.annotation":        {"pub.layers.*", 0},
			"pub.layers.persona":           {"pub.layers.*", 0},
		} {
			e, ok := r.Find(name)
			require.True(t, ok, name)
			require.Equal(t, want, e, name)
			require.Equal(t, want.Pattern, r.Label(name))
		}
		for _, name := range []string{"", "pub.layers", "pub.layers.", "pub.layersx.note", "app.bsky.feed.posts", "app.bsky.feed.post.x", "app.bsky.feed"} {
			require.False(t, r.Stores(name), name)
		}
	}
}

// TestFilterIsTheFewestPatterns: a change of a retention is no other stream.
func TestFilterIsTheFewestPatterns(t *testing.T) {
	t.Parallel()
	r := parse(t, "pub.layers.note=1h", "site.standard.document", "pub.layers.*=0", "pub.layers.deep.*", "app.bsky.feed.post=48h")
	require.Equal(t, []string{"app.bsky.feed.post", "pub.layers.*", "site.standard.document"}, r.Filter())
	require.Equal(t, []string{"app.bsky.feed.post", "pub.layers.note", "site.standard.document"}, r.Names())
	require.Equal(t, []string{"pub.layers.*", "pub.layers.deep.*"}, r.Prefixes())
}

func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	for want, entries := range map[string][]string{
		"it names no collection":                  nil,
		`"" is no collection`:                     {""},
		`"post" is no collection`:                 {"post"},
		`"app.bsky" is no collection`:             {"app.bsky"},
		`"app.bsky.feed.po st" is no collection`:  {"app.bsky.feed.po st"},
		`"pub..layers.*" is no collection`:        {"pub..layers.*"},
		`"pub.layers*" is no prefix`:              {"pub.layers*"},
		`"pub.*.note" is no prefix`:               {"pub.*.note"},
		`"pub.layers.*.*" is no prefix`:           {"pub.layers.*.*"},
		`"*" is no prefix`:                        {"*"},
		`"pub.*" is too wide a prefix`:            {"pub.*"},
		`"" is no retention of pub.layers.*`:      {"pub.layers.*="},
		`"-1h" is no retention of pub.layers.*`:   {"pub.layers.*=-1h"},
		`"7d" is no retention of pub.layers.*`:    {"pub.layers.*=7d"},
		`"1h=2h" is no retention of pub.layers.*`: {"pub.layers.*=1h=2h"},
		"app.bsky.feed.post is there twice":       {"app.bsky.feed.post", "app.bsky.feed.post=48h"},
		"pub.layers.* is there twice":             {"pub.layers.*", "pub.layers.note", " pub.layers.* = 0"},
	} {
		_, err := Parse(entries, day)
		require.ErrorContains(t, err, want)
	}
}

func TestSpacesAndTheStandardRetention(t *testing.T) {
	t.Parallel()
	r := parse(t, " app.bsky.feed.post ", " pub.layers.* = 0 ")
	require.Equal(t, []Entry{{"app.bsky.feed.post", day}, {"pub.layers.*", 0}}, r.Entries())
	require.False(t, Registry{}.Stores("app.bsky.feed.post"), "the zero value stores none")
}

// TestFindAllocatesNothing: it is asked about every event of the stream.
func TestFindAllocatesNothing(t *testing.T) {
	r := parse(t, "app.bsky.feed.post", "pub.layers.*")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.Find("app.bsky.feed.post")
		r.Find("pub.layers.note")
		r.Find("app.bsky.feed.like")
	}))
}
