package ranking_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
)

// TestPageChangesWhileItsVotesAreCounted covers a page that the counter has read and that then
// turns out not to count. The counter's choice is not stored, and the next step chooses again.
func TestPageChangesWhileItsVotesAreCounted(t *testing.T) {
	t.Parallel()
	for name, everything := range map[string]bool{"a step": false, "everything": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPress(t)
			p.posts("a.example/1", "", "", "", "", "")
			p.counts()
			p.fetches(nil)
			require.Equal(t, []string{"a.example/1 5 Page of a.example/1 http"}, p.shown())
			p.posts("a.example/1", "Vote", "Vote")
			if everything {
				require.NoError(t, ranking.CountEverything(t.Context(), p.pool))
			}

			other, err := p.pool.Begin(t.Context())
			require.NoError(t, err)
			defer other.Rollback(t.Context()) // nothing is left to roll back
			execute(t, other, `SELECT FROM count_state FOR UPDATE`)
			counted := make(chan error, 1)
			go func() {
				_, err := ranking.Count(t.Context(), p.pool, p.now)
				counted <- err
			}()
			waitsForLock(t, p.pool, other)
			execute(t, p.pool, `UPDATE cards SET fetch_at = now(), fetched_at = NULL`)
			p.fetches(func(c *ranking.PageCard) { c.Title, c.Why = "", "a.example answers 404" })
			require.NoError(t, other.Commit(t.Context()))
			require.True(t, ranking.Overtaken(<-counted))
			p.counts()
			require.Equal(t, []string{"a.example/1 5 Vote at:/"}, p.shown())
		})
	}
}
