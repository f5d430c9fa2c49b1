package link_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/weir-social/weir/link"
	"github.com/weir-social/weir/simnet"
)

// TestLinksMatchTheSimulatedNetwork compares the links of each post with those that
// the simulated network put into it, without any code of this package.
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
		var urls []string
		for _, l := range post.Links {
			urls = append(urls, l.URL)
		}
		require.Equal(t, e.Links, urls, "%s", e.Record)
		links += len(urls)
		if post.Quoted != (link.Subject{}) {
			quotes++
		}
	}
	require.Greater(t, links, 500)
	require.Greater(t, quotes, 100)
}
