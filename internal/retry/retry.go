// Package retry has the waits between attempts: those that end with a context, and those
// that a server requests. How the waits grow is up to a backoff.
package retry

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"time"
)

// longest bounds the wait that a server can request. Callers set shorter bounds.
const longest = 24 * time.Hour

// Sleep waits for d. If ctx ends first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// After returns the wait that the header Retry-After of a response requests, in seconds
// or as a date. ok is false without a readable one.
func After(header http.Header, now time.Time) (wait time.Duration, ok bool) {
	raw := header.Get("Retry-After")
	if seconds, err := strconv.ParseFloat(raw, 64); err == nil && !math.IsNaN(seconds) {
		return time.Duration(min(max(0, seconds), longest.Seconds()) * float64(time.Second)), true
	}
	if at, err := http.ParseTime(raw); err == nil {
		return min(max(0, at.Sub(now)), longest), true
	}
	return 0, false
}
