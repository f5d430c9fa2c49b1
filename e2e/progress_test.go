package e2e

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
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

// readsAll waits until the only stream has committed the last event that it delivers of these
// collections, by default posts and reposts. It compares positions, because events may share a time.
func readsAll(t testing.TB, pool *pgxpool.Pool, n *simnet.Net, collections ...string) {
	t.Helper()
	if len(collections) == 0 {
		collections = []string{"app.bsky.feed.post", "app.bsky.feed.repost"}
	}
	last := int64(0)
	for _, e := range n.Log().Entries() {
		if e.Kind != "commit" || slices.Contains(collections, e.Collection) {
			last = e.Seq
		}
	}
	finishes(t, 20*time.Millisecond, func() (int, error) {
		return tryCount(pool, fmt.Sprintf(`SELECT %d - cursor FROM streams`, last))
	}, "not everything is read")
}
