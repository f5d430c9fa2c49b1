package ranking_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestShortLinkIsDueAtOnceWhateverItsWorkersClock shows that the database's clock decides when a short link is resolved:
// the clock of the worker that adds it is a day ahead.
func TestShortLinkIsDueAtOnceWhateverItsWorkersClock(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	l, err := link.Parse("https://bit.ly/ahead")
	require.NoError(t, err)
	short, err := ranking.EnsureLinks(t.Context(), pool, []ranking.Share{{Link: l}}, time.Now().Add(24*time.Hour))
	require.NoError(t, err)
	require.True(t, short)
	due, err := ranking.DueShortLinks(t.Context(), pool, 10)
	require.NoError(t, err)
	require.Len(t, due, 1)
}
