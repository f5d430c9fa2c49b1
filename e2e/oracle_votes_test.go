package e2e

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/ranking"
)

// claimed selects what the share s claims about its link; c is its claim.
const claimed = ` coalesce(c.url, ''), coalesce(c.title, ''), coalesce(c.description, ''), coalesce(c.image, '')`

// headline is what Weir shows of a page.
type headline struct{ url, title, description, image, from string }

// canonical returns the canonical URL of a spelling.
func canonical(spelling string) string {
	_, rest, _ := strings.Cut(spelling, "://")
	rest, _, _ = strings.Cut(rest, "#") // a place on the page
	return "https://" + strings.TrimSuffix(strings.TrimPrefix(rest, "www."), "/")
}

// ballot is the vote of one account.
type ballot struct {
	value string
	did   string
	since time.Time // the time of the account's first post with this value
	rkey  string    // the rkey of that post
	of    shareRow  // the share of the account's last post
}

func (b ballot) uri() string { return "at://" + b.did + "/app.bsky.feed.post/" + b.rkey }

// ballots returns the votes on a page by the accounts that count. Each account votes with its last
// post whose value is not empty. Reposts and quotes of posts with the page do not vote, and neither
// do spellings of merged links.
func (tr oracle) ballots(url string, value func(shareKey, shareRow) string) []ballot {
	posts := map[string][]ballot{}
	for key, s := range tr.shares {
		if tr.root(key.url) == url && s.through == "" && value(key, s) != "" && tr.counts(key, s) {
			posts[key.did] = append(posts[key.did], ballot{value(key, s), key.did, s.at, key.rkey, s})
		}
	}
	var all []ballot
	for _, own := range posts {
		slices.SortFunc(own, func(a, b ballot) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.rkey, b.rkey)) })
		last := own[len(own)-1]
		first := own[slices.IndexFunc(own, func(b ballot) bool { return b.value == last.value })]
		first.of = last.of
		all = append(all, first)
	}
	return all
}

// elect returns the earliest ballot for the value with the most votes. If values have equally many,
// preferred ones win, and among these the one with the earliest ballot.
func elect(all []ballot, preferred func(value string) bool) (winner ballot) {
	slices.SortFunc(all, func(a, b ballot) int { return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.uri(), b.uri())) })
	votes := map[string]int{}
	for _, b := range all {
		votes[b.value]++
	}
	most := 0
	for _, b := range all { // the earliest ballot comes first
		n := 2 * votes[b.value]
		if preferred(b.value) {
			n++
		}
		if n > most {
			winner, most = b, n
		}
	}
	return winner
}

// headline folds the votes on a page. Its url is empty if nobody votes for a spelling.
func (tr oracle) headline(url string) (h headline) {
	none := func(string) bool { return false }
	h.url = elect(tr.ballots(url, func(key shareKey, s shareRow) string {
		if key.url != url {
			return ""
		}
		return s.claim.URL
	}), func(url string) bool { return strings.HasPrefix(url, "https:") }).value
	titles := tr.ballots(url, func(_ shareKey, s shareRow) string { return s.claim.Title })
	variant := func(title string) string { // of the title without the name at the end, if somebody gives that
		plain := strings.TrimSuffix(title, " | News")
		if slices.ContainsFunc(titles, func(b ballot) bool { return b.value == plain }) {
			return plain
		}
		return title
	}
	candidates := slices.Clone(titles)
	for i := range candidates {
		candidates[i].value = variant(candidates[i].value)
	}
	best := elect(candidates, none).value
	if best == "" {
		return h
	}
	h.title = best
	h.from = elect(slices.DeleteFunc(slices.Clone(titles), func(b ballot) bool { return b.value != best }), none).uri()
	of := func(value func(shareRow) string) ballot {
		var voters []ballot
		for _, b := range titles {
			if variant(b.value) == best && value(b.of) != "" {
				b.value = value(b.of)
				voters = append(voters, b)
			}
		}
		return elect(voters, none)
	}
	h.description = of(func(s shareRow) string { return s.claim.Description }).value
	if picture := of(func(s shareRow) string { return s.claim.Picture }); picture.value != "" {
		h.image = "blob:" + picture.did + "/" + picture.value
	}
	return h
}

// compareHeadlines compares the headlines that Weir shows with the votes. It returns up to five
// differences.
func (tr oracle) compareHeadlines(links []ranking.TrendingLink) (problems []string) {
	for _, l := range links {
		expected, found := tr.headline(canonical(l.URL)), headline{l.URL, l.Title, l.Description, l.Image, l.CardFrom}
		if expected.url == "" {
			expected.url = found.url // no post that counts spells the URL, so Weir may keep any spelling
		}
		if expected != found && len(problems) < 5 {
			problems = append(problems, fmt.Sprintf("headline of %s: expected %+v, found %+v", canonical(l.URL), expected, found))
		}
	}
	return problems
}
