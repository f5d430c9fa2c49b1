package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestClockSetBackIsSeen against the process's monotonic clock, in one step or in
// several; one that goes on, or is set ahead, is no news.
func TestClockSetBackIsSeen(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var c clockStart
	for _, read := range []struct {
		database, elapsed time.Duration
		back              bool
	}{
		{0, 0, false},
		{5 * time.Second, 5 * time.Second, false},
		{10 * time.Second, 10100 * time.Millisecond, false}, // the answer took longer
		{13 * time.Second, 15 * time.Second, true},          // it went on, and less than it should
		{18 * time.Second, 20 * time.Second, false},         // once
		{time.Hour, 25 * time.Second, false},                // ahead
		{30 * time.Second, 30 * time.Second, true},          // and back
		{34400 * time.Millisecond, 35 * time.Second, false}, // a little
		{38800 * time.Millisecond, 40 * time.Second, true},  // and a little more
		{38800 * time.Millisecond, 40500 * time.Millisecond, false},
	} {
		require.Equal(t, read.back, c.wentBack(noon.Add(read.database), read.elapsed), "%+v", read)
	}
}
