package link_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestLinksMatchTheSimulatedNetwork compares the links and claims of each post with those that the
// simulated network put into it, without any code of this package.
func TestLinksMatchTheSimulatedNetwork(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{Seed: 7, Accounts: 200, History: 5000, Start: time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)})
	require.NoError(t, err)
	links, quotes := 0, 0
	for _, e := range n.Log().Entries() {
		if e.Collection != "app.bsky.feed.post" || e.Operation == "delete" {
			continue
		}
		post, err := link.InPost(e.DID, e.Record)
		require.NoError(t, err)
		var pages []string
		var claims []simnet.Claim
		for _, l := range post.Links {
			pages = append(pages, "https://"+l.Identity)
			claims = append(claims, simnet.Claim{
				URL: l.URL, Title: l.Card.Title, Description: l.Card.Description,
				Picture: strings.TrimPrefix(l.Card.Image, "blob:"+e.DID+"/"),
			})
		}
		require.Equal(t, e.Links, pages, "%s", e.Record)
		require.Equal(t, e.Claims, claims, "%s", e.Record)
		links += len(pages)
		if post.Quoted != (link.Subject{}) {
			quotes++
		}
	}
	require.Greater(t, links, 500)
	require.Greater(t, quotes, 100)
}
