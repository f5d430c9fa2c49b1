package simnet_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestPeopleOfNostr shows that they write the same with the same seed, within their period, and
// share links that others share.
func TestPeopleOfNostr(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	articles := []simnet.Article{{URL: "https://news.example/a", Title: "A"}, {URL: "https://news.example/b", Title: "B"}}
	play := func(seed uint64) []*simnet.NostrEvent {
		n, err := simnet.NewNostr(simnet.NostrConfig{Seed: seed, Authors: 6, Now: now})
		require.NoError(t, err)
		defer n.Stop()
		n.Populate(60, 6*time.Hour, articles)
		return n.Events()
	}
	all := play(1)
	require.Equal(t, all, play(1))
	require.NotEqual(t, all, play(2))
	require.Len(t, all, 66)
	kinds, shared, hosts := map[int]int{}, 0, map[string]bool{}
	for i, e := range all {
		kinds[e.Kind]++
		require.WithinRange(t, time.Unix(e.CreatedAt, 0), now.Add(-6*time.Hour), now)
		require.True(t, i == 0 || e.CreatedAt >= all[i-1].CreatedAt, "their clocks are right")
		if _, address, ok := strings.Cut(e.Content, "https://"); ok && e.Kind == 1 {
			u, err := url.Parse("https://" + address)
			require.NoError(t, err)
			hosts[u.Host] = true
			shared++
		}
	}
	require.Equal(t, 6, kinds[0])
	require.Greater(t, min(kinds[1], shared), 20)
	require.Positive(t, kinds[5])
	require.Positive(t, kinds[6])
	require.True(t, hosts["news.example"] && len(hosts) > 1, "%v", hosts)
}
