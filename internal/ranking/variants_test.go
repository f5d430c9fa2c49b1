package ranking_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
)

// TestVariantsOfATitleAreOneCandidate has votes for titles, and the title that is shown. Each account
// has one, the first of them earliest.
func TestVariantsOfATitleAreOneCandidate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		why    string
		titles []string
		shown  int // index of the title
	}{
		{"the name of the site at the end", []string{"False", "False", "Heron returns – News", "Heron returns - The News", "Heron returns"}, 4},
		{"another name at the end", []string{"False", "False", "Heron returns – Herald", "Heron returns — The Marsh", "Heron returns"}, 4},
		{"the name of the site, and nobody leaves it out", []string{"False", "Heron returns – News", "Heron returns - The News"}, 1},
		{"other names, and nobody leaves them out", []string{"False", "Heron returns – Herald", "Heron returns – Marsh"}, 0},
		{"an ellipsis", []string{"False", "False", "Heron returns…", "Heron returns to the...", "Heron returns to the harbour"}, 4},
		{"an ellipsis and a name", []string{
			"False", "False", "Heron returns to th…", "Heron returns to the harbour – Herald", "Heron returns to the harbour",
		}, 4},
		{"an ellipsis that belongs to the title", []string{"False", "And then the heron…", "And then the heron…"}, 1},
		{"too little before the ellipsis", []string{"False", "False", "Live…", "Live…", "Live from the harbour"}, 0},
		{"case", []string{"False", "False", "HERON RETURNS", "heron returns", "Heron Returns"}, 4},
		{"quotes and punctuation", []string{"False", "False", `"Heron's" return!`, "“Heron’s” return", "“Heron’s” return"}, 3},
		{"the spelling of most", []string{"Heron: returns", "Heron returns", "Heron returns"}, 1},
		{"different titles", []string{"Heron returns", "Heron leaves", "Heron leaves"}, 1},
		{"a longer title", []string{"Heron returns", "Heron returns to the harbour", "Heron returns to the harbour"}, 1},
		{"no letters", []string{"🔥", "🔥🔥", "🔥🔥"}, 1},
	} {
		s := newStory(t)
		for i, title := range c.titles {
			s.post(fmt.Sprint("did", i), i, "", title+"|D|cid"+fmt.Sprint(i))
		}
		first := slices.Index(c.titles, c.titles[c.shown])
		got := s.shown()
		require.Contains(t, got, "https "+c.titles[c.shown]+" D blob:", c.why)
		require.Contains(t, got, from(fmt.Sprint("did", first), first), c.why)
		s.requires(got)
	}
}

// TestPictureOfAVariant has a description and a picture that only voters for a variant give.
func TestPictureOfAVariant(t *testing.T) {
	t.Parallel()
	s := newStory(t)
	s.post("a", 1, "", "Heron returns")
	s.post("b", 2, "", "Heron returns – News|D|cid")
	s.requires("https Heron returns D blob:b/cid " + from("a", 1))
}

// TestOrderOfVariantsDoesNotMatter posts the same variants in random orders.
func TestOrderOfVariantsDoesNotMatter(t *testing.T) {
	t.Parallel()
	titles := []string{
		"Heron returns", "HERON RETURNS", "Heron returns – News", "Heron returns – Herald",
		"Heron ret…", "Heron returns…", "Heron leaves", "Heron leaves – Herald", "Owl",
	}
	want := ""
	for seed := range uint64(4) {
		s := newStory(t)
		for k, i := range rand.New(rand.NewPCG(seed, 0)).Perm(len(titles)) { // a test
			s.post(fmt.Sprint("did", i), i, "", titles[i])
			if k%3 == 0 {
				_, err := ranking.Count(t.Context(), s.pool, s.now)
				require.NoError(t, err)
			}
		}
		if want == "" {
			want = s.shown()
			require.Contains(t, want, "https Heron returns did0/")
		}
		s.requires(want)
	}
}
