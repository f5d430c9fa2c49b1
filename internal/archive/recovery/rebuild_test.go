package recovery

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"
)

// TestRebuildKeepsItsRate reads a thousand records at a hundred a second.
func TestRebuildKeepsItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := rebuilding{limit: rate.NewLimiter(100, 100)}
		began, read := time.Now(), 0
		for range r.limited(t.Context(), func(yield func([]byte, error) bool) {
			for range 1000 {
				if !yield(nil, nil) {
					return
				}
			}
		}) {
			read++
		}
		require.Equal(t, 1000, read)
		require.Equal(t, 9*time.Second, time.Since(began).Round(10*time.Millisecond), "the first hundred records must not wait")
	})
}
