package e2e

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// patience is how long a test waits without progress: a stream that is paused because keys
// could not be fetched goes on after a retry, one minute later, then two, then four. How
// long a test waits in all is up to the machine.
const patience = 8 * time.Minute

// progressing returns a function that reports whether less was left than ever before
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

// finishes waits until nothing is left, for as long as it becomes less. An error of the
// count, such as that of a database that is away, says nothing.
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
	require.Eventually(t, func() bool {
		if now, err := count(); err == nil {
			left = now
		}
		moves = progress(left)
		return left <= 0 || !moves
	}, time.Hour, every)
	return left <= 0
}
