package e2e

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/eventually"
)

// patience is how long a test waits without progress. A stream that is paused because keys could
// not be fetched resumes after a retry one minute later, then two, then four. The total time
// depends on the machine.
const patience = 8 * time.Minute

// progressing returns a function that reports whether the number left has reached a new minimum
// within the last minutes.
func progressing() func(left int) bool {
	least, since := math.MaxInt, time.Now()
	return func(left int) bool {
		if left < least {
			least, since = left, time.Now()
		}
		return time.Since(since) < patience
	}
}

// finishes waits until nothing is left, for as long as the number left decreases. It ignores errors
// of count, for example while the database is down.
func finishes(t testing.TB, every time.Duration, count func() (left int, err error), message string, args ...any) {
	t.Helper()
	if !ends(t, every, count) {
		require.Fail(t, "there is no progress", append([]any{message}, args...)...)
	}
}

// ends is like finishes, and reports whether nothing is left.
func ends(t testing.TB, every time.Duration, count func() (left int, err error)) bool {
	t.Helper()
	progress, left, moves := progressing(), math.MaxInt, true
	eventually.Loop(t.Context(), every, func() bool {
		if now, err := count(); err == nil {
			left = now
		}
		moves = progress(left)
		return left <= 0 || !moves
	})
	return left <= 0
}
