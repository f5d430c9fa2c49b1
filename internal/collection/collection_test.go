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

// TestExactNameWinsOverTheLongestPrefix covers any order of the entries.
func TestExactNameWinsOverTheLongestPrefix(t *testing.T) {
	t.Parallel()
	for _, entries := range [][]string{
		{"pub.layers.*=0", "pub.layers.annotation.*=48h", "pub.layers.annotation.note=1h", "app.bsky.feed.post"},
		{"app.bsky.feed.post", "pub.layers.annotation.note=1h", "pub.layers.annotation.*=48h", "pub.layers.*=0"},
	} {
		r := parse(t, entries...)
		for name, want := range map[string]Entry{
			"app.bsky.feed.post":           {"app.bsky.feed.post", day, false},
			"pub.layers.annotation.note":   {"pub.layers.annotation.note", time.Hour, true},
			"pub.layers.annotation.mark":   {"pub.layers.annotation.*", 2 * day, true},
			"pub.layers.annotation.note.x": {"pub.layers.annotation.*", 2 * day, true},
			"pub.layers.annotation":        {"pub.layers.*", 0, true},
			"pub.layers.persona":           {"pub.layers.*", 0, true},
		} {
			e, ok := r.Find(name)
			require.True(t, ok, name)
			require.Equal(t, want, e, name)
			require.Equal(t, want.Pattern, r.Label(name))
		}
		for _, name := range []string{
			"", "pub.layers", "pub.layers.", "pub.layersx.note", "app.bsky.feed.posts", "app.bsky.feed.post.x", "app.bsky.feed",
		} {
			require.False(t, r.Stores(name), name)
		}
	}
}

// TestFilterIsTheFewestPatterns also checks that a retention does not change
// the filter.
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
		"no collection is named":                     nil,
		`"" is not a collection`:                     {""},
		`"post" is not a collection`:                 {"post"},
		`"app.bsky" is not a collection`:             {"app.bsky"},
		`"app.bsky.feed.po st" is not a collection`:  {"app.bsky.feed.po st"},
		`"pub..layers.*" is not a collection`:        {"pub..layers.*"},
		`"pub.layers*" is not a prefix`:              {"pub.layers*"},
		`"pub.*.note" is not a prefix`:               {"pub.*.note"},
		`"pub.layers.*.*" is not a prefix`:           {"pub.layers.*.*"},
		`"*" is not a prefix`:                        {"*"},
		`"pub.*" is too short a prefix`:              {"pub.*"},
		`"" is not a retention of pub.layers.*`:      {"pub.layers.*="},
		`"-1h" is not a retention of pub.layers.*`:   {"pub.layers.*=-1h"},
		`"7d" is not a retention of pub.layers.*`:    {"pub.layers.*=7d"},
		`"1h=2h" is not a retention of pub.layers.*`: {"pub.layers.*=1h=2h"},
		"app.bsky.feed.post occurs twice":            {"app.bsky.feed.post", "app.bsky.feed.post=48h"},
		"pub.layers.* occurs twice":                  {"pub.layers.*", "pub.layers.note", " pub.layers.* = 0"},
	} {
		_, err := Parse(entries, day)
		require.ErrorContains(t, err, want)
	}
}

func TestSpacesAndTheStandardRetention(t *testing.T) {
	t.Parallel()
	r := parse(t, " app.bsky.feed.post ", " pub.layers.* = 0 ")
	require.Equal(t, []Entry{{"app.bsky.feed.post", day, false}, {"pub.layers.*", 0, true}}, r.Entries())
	require.False(t, Registry{}.Stores("app.bsky.feed.post"), "the zero value stores none")
}

// TestFindAllocatesNothing covers Find, which is called for every event of the
// stream.
func TestFindAllocatesNothing(t *testing.T) {
	r := parse(t, "app.bsky.feed.post", "pub.layers.*")
	require.Zero(t, testing.AllocsPerRun(100, func() {
		r.Find("app.bsky.feed.post")
		r.Find("pub.layers.note")
		r.Find("app.bsky.feed.like")
	}))
}

// TestEveryKindIsAPrefix checks the one prefix with a single part. It covers numbered kinds only, so
// that no repository can write into it, and no server of repositories is asked for it.
func TestEveryKindIsAPrefix(t *testing.T) {
	t.Parallel()
	r := parse(t, "nostr.*=0", "nostr.1=24h", "nostr.7", "pub.layers.*")
	for name, pattern := range map[string]string{
		"nostr.1": "nostr.1", "nostr.30023": "nostr.*", "nostr.0": "nostr.*", "nostr.*": "nostr.*", "nostr.01": "", "nostr.note": "",
		"nostr.pub.note": "", "nostr.": "",
	} {
		e, _ := r.Find(name)
		require.Equal(t, pattern, e.Pattern, name)
	}
	kinds, every := r.Kinds("nostr")
	require.Equal(t, []int{1, 7}, kinds)
	require.True(t, every)
	require.Equal(t, []string{"pub.layers.*"}, r.Repositories().Filter())
	_, every = r.Repositories().Kinds("nostr")
	require.False(t, every)
}
