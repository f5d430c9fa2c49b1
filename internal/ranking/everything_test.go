package ranking

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestCardsAreDroppedWithoutAJoin prevents a slow plan: before the first count of a database, the
// planner expects that no link has a title. A join would then read all votes for each link.
func TestCardsAreDroppedWithoutAJoin(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, links := range [][]int64{nil, {1, 2}} {
		q := &pgx.Batch{}
		queueDropCards(q, links)
		plan, err := schema.All(t.Context(), pool, "explain", pgx.RowTo[string], `EXPLAIN `+q.QueuedQueries[0].SQL,
			q.QueuedQueries[0].Arguments...)
		require.NoError(t, err)
		require.Contains(t, strings.Join(plan, "\n"), "on claim_votes")
		require.NotContains(t, strings.Join(plan, "\n"), "Anti Join")
	}
}
