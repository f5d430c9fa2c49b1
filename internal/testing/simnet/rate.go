package simnet

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// Rate is a limit of calls per window; a window begins with its first call. With
// zero Calls there is no limit, and no headers.
type Rate struct {
	Calls  int
	Window time.Duration // 5 minutes when zero
}

// limiter counts the calls of the window.
type limiter struct {
	mu    sync.Mutex
	rate  Rate
	began time.Time
	used  int
}

// SetRate changes the limit and begins a new window.
func (n *Net) SetRate(r Rate) { n.limiter.set(r) }

func (l *limiter) set(r Rate) {
	if r.Window == 0 {
		r.Window = 5 * time.Minute
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.rate, l.began, l.used = r, time.Time{}, 0
}

// take counts a call, writes the headers, and reports whether it may pass.
func (l *limiter) take(h http.Header, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.rate.Calls == 0 {
		return true
	}
	if now.Sub(l.began) >= l.rate.Window {
		l.began, l.used = now, 0
	}
	reset := l.began.Add(l.rate.Window)
	ok := l.used < l.rate.Calls
	if ok {
		l.used++
	} else {
		h.Set("Retry-After", seconds(reset.Sub(now)))
	}
	h.Set("RateLimit-Limit", strconv.Itoa(l.rate.Calls))
	h.Set("RateLimit-Remaining", strconv.Itoa(l.rate.Calls-l.used))
	h.Set("RateLimit-Reset", strconv.FormatInt(int64(math.Ceil(float64(reset.UnixMilli())/1000)), 10))
	h.Set("RateLimit-Policy", fmt.Sprintf("%d;w=%s", l.rate.Calls, seconds(l.rate.Window)))
	return ok
}

// seconds rounds up, so that waiting this long is long enough.
func seconds(d time.Duration) string { return strconv.Itoa(int(math.Ceil(d.Seconds()))) }
