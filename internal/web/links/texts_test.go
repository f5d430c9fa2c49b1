package links

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/webtest"
)

func TestEveryTextExistsAndIsUsed(t *testing.T) {
	t.Parallel()
	webtest.RequireTexts(t, texts, say, "way_", "sort_", "state_", "degree_", "how_", "why_", "active_degree_", "network_",
		"density_", "expected_", "api_")
	webtest.RequireNoText(t)
	for _, why := range append(ranking.Reasons(), ranking.Waiting) {
		require.Contains(t, texts, "why_"+string(why))
	}
	for _, way := range ranking.Ways() {
		require.Contains(t, texts, "way_"+way)
		require.Contains(t, texts, "how_"+way)
	}
}
