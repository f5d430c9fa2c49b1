// Package eventually waits in tests for what other goroutines, processes and servers do.
package eventually

import (
	"context"
	"fmt"
	"testing"
	"time"
)

const (
	limit    = 8 * time.Minute // a retry may be due only after minutes, and a busy machine may take long
	idle     = 9               // a check is followed by a pause this many times as long
	maxPause = time.Second
)

// True waits until the condition holds, and otherwise ends the test with the message: a text, or a
// format and its arguments. It checks at once, and then after pauses of every or more: see Loop.
func True(t testing.TB, condition func() bool, every time.Duration, message ...any) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if Loop(ctx, every, condition) {
		return
	}
	text := ""
	if len(message) > 0 {
		text = fmt.Sprint(message[0])
	}
	if len(message) > 1 {
		text = fmt.Sprintf(text, message[1:]...)
	}
	t.Fatalf("the condition does not hold after %s: %s", limit, text)
}

// Loop checks the condition until it holds or ctx ends, and reports whether it holds. It pauses for
// every between two checks, or for nine times as long as the last check took if that is longer, up
// to a second: checks take processor time from what they wait for.
func Loop(ctx context.Context, every time.Duration, condition func() bool) bool {
	for {
		began := time.Now()
		if condition() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(max(every, min(idle*time.Since(began), maxPause))):
		}
	}
}
