package eventually

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestSlowChecksAreRare: a check that takes long is followed by a longer pause.
func TestSlowChecksAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		Loop(t.Context(), 20*time.Millisecond, func() bool {
			at = append(at, time.Since(began))
			switch len(at) {
			case 2:
				time.Sleep(10 * time.Millisecond)
			case 3:
				time.Sleep(time.Minute)
			}
			return len(at) == 4
		})
		require.Equal(t, []time.Duration{0, 20 * time.Millisecond, 120 * time.Millisecond, time.Minute + 1120*time.Millisecond}, at)
	})
}

// TestLoopEndsWithItsContext: the condition is checked at least once.
func TestLoopEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	checks := 0
	require.False(t, Loop(ctx, time.Hour, func() bool { checks++; return false }))
	require.True(t, Loop(ctx, time.Hour, func() bool { checks++; return true }))
	require.Equal(t, 2, checks)
}

// failed records how a test ended.
type failed struct {
	testing.TB
	text string
}

func (f *failed) Helper() {}

func (f *failed) Fatalf(format string, args ...any) {
	f.text = fmt.Sprintf(format, args...)
}

// TestMessageIsFormatted: the test fails with the message of what did not come.
func TestMessageIsFormatted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failed{TB: t}
		True(f, func() bool { return false }, time.Second, "%s of %d", "none", 3)
		require.Contains(t, f.text, "none of 3")
		True(f, func() bool { return false }, time.Second, "100%d")
		require.Contains(t, f.text, "100%d")
		f.text = ""
		True(f, func() bool { return true }, time.Second)
		require.Empty(t, f.text)
	})
}
