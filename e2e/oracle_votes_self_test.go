package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const votedPage = "https://a.example/story"

// says returns a post with a claim about votedPage, written this many minutes
// before oracleEnd.
func says(did, rkey string, minutes int, c simnet.Claim) *simnet.Entry {
	e := wrote(did, rkey, "r"+rkey, time.Duration(minutes)*time.Minute, votedPage)
	if c.URL == "" {
		c.URL = votedPage
	}
	e.Claims = []simnet.Claim{c}
	return e
}

func TestOracleFoldsTheVotes(t *testing.T) {
	t.Parallel()
	const http, www = "http://a.example/story", "https://www.a.example/story"
	titled := func(title string) simnet.Claim { return simnet.Claim{Title: title} }
	hidden := &simnet.Entry{Kind: "account", DID: "b", Status: "takendown"}
	post := func(did, rkey string) string { return "at://" + did + "/" + oraclePost + "/" + rkey }
	for name, c := range map[string]struct {
		entries []*simnet.Entry
		want    headline
	}{
		"the first of two": {[]*simnet.Entry{says("a", "1", 5, titled("A")), says("b", "1", 4, titled("B"))}, headline{
			votedPage, "A", "", "", post("a", "1"),
		}},
		"the most accounts": {[]*simnet.Entry{
			says("a", "1", 5, titled("A")), says("a", "2", 4, titled("A")), says("b", "1", 4, titled("B")), says("c", "1", 3, titled("B")),
		},
			headline{votedPage, "B", "", "", post("b", "1")}},
		"a repost does not vote": {[]*simnet.Entry{
			says("a", "1", 5, titled("A")), says("b", "1", 4, titled("B")),
			refers(wrote("c", "1", "r", time.Minute), "app.bsky.feed.repost", "b", "1"),
		},
			headline{votedPage, "A", "", "", post("a", "1")}},
		"a hidden account does not vote": {[]*simnet.Entry{says("b", "1", 5, titled("B")), hidden, says("a", "1", 4, titled("A"))}, headline{
			votedPage, "A", "", "", post("a", "1"),
		}},
		"a card without a living claim goes": {
			[]*simnet.Entry{says("a", "1", 5, titled("A")), removed("a", "1", "r3"), says("c", "1", 4, simnet.Claim{})}, headline{url: votedPage},
		},
		"an account changes its mind": {[]*simnet.Entry{
			says("a", "1", 9, titled("A")), says("a", "2", 4, titled("B")), says("a", "3", 3, simnet.Claim{}), says("c", "1", 8, titled("B")),
		},
			headline{votedPage, "B", "", "", post("c", "1")}},
		"and back, since its first post": {[]*simnet.Entry{
			says("a", "1", 9, titled("A")), says("a", "2", 7, titled("B")), says("a", "3", 3, titled("A")), says("c", "1", 8, titled("C")),
		},
			headline{votedPage, "A", "", "", post("a", "1")}},
		"the description and the picture of the title": {[]*simnet.Entry{
			says("a", "1", 9, simnet.Claim{Title: "A", Picture: "one"}),
			says("b", "1", 8, simnet.Claim{Title: "A", Description: "D", Picture: "two"}),
			says("c", "1", 7, simnet.Claim{Title: "A", Picture: "two"}), says("d", "1", 6, simnet.Claim{Title: "B", Description: "other"})},
			headline{votedPage, "A", "D", "blob:b/two", post("a", "1")}},
		"a variant votes for the title": {[]*simnet.Entry{says("a", "1", 9, titled("B")), says("b", "1", 8, titled("A | News")), says("c", "1", 7,
			titled("A"))},
			headline{votedPage, "A", "", "", post("c", "1")}},
		"https before http": {
			[]*simnet.Entry{says("a", "1", 9, simnet.Claim{URL: http}), says("b", "1", 8, simnet.Claim{URL: www})}, headline{url: www},
		},
		"most before https": {[]*simnet.Entry{
			says("a", "1", 9, simnet.Claim{URL: http}), says("b", "1", 8, simnet.Claim{URL: www}), says("c", "1", 7, simnet.Claim{URL: http}),
		}, headline{url: http}},
		"the earliest of two": {
			[]*simnet.Entry{says("a", "1", 8, simnet.Claim{}), says("b", "1", 9, simnet.Claim{URL: www})}, headline{url: www},
		},
		"nobody spells it any more": {[]*simnet.Entry{says("b", "1", 9, titled("B")), hidden}, headline{}},
	} {
		require.Equal(t, c.want, fold(c.entries).headline(votedPage), name)
	}
}

func TestOracleReportsAWrongHeadline(t *testing.T) {
	t.Parallel()
	tr := fold([]*simnet.Entry{says("a", "1", 5, simnet.Claim{Title: "A"})})
	shown := func(change func(*ranking.TrendingLink)) []ranking.TrendingLink {
		l := ranking.TrendingLink{LinkCard: ranking.LinkCard{URL: votedPage, Title: "A", CardFrom: "at://a/" + oraclePost + "/1"}, Sharers: 1}
		change(&l)
		return []ranking.TrendingLink{l}
	}
	require.Empty(t, tr.compareHeadlines(shown(func(*ranking.TrendingLink) {})))
	for name, change := range map[string]func(*ranking.TrendingLink){
		"spelling": func(l *ranking.TrendingLink) { l.URL = "http://a.example/story" }, "title": func(l *ranking.TrendingLink) { l.Title = "B" },
		"description": func(l *ranking.TrendingLink) { l.Description = "D" }, "image": func(l *ranking.TrendingLink) { l.Image = "blob:a/cid" },
		"card_from": func(l *ranking.TrendingLink) { l.CardFrom = "" },
	} {
		require.Len(t, tr.compareHeadlines(shown(change)), 1, name)
	}
}
