package bluesky

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/weir-social/weir/internal/retry"
)

const (
	// maxRateLimitWait is how long a call waits for a rate limit to end. If the
	// wait is longer, the call fails, so that its job can snooze instead of
	// blocking a worker.
	maxRateLimitWait = 5 * time.Second
	// maxRetryAfter limits the wait that a server can request.
	maxRetryAfter = time.Hour
	// defaultRetryAfter is the wait after a rate limit without a duration.
	defaultRetryAfter = 30 * time.Second

	// tripAfter failures in a row open a host's breaker for openFor. A single call
	// that fails with all its retries does not.
	tripAfter = 10
	openFor   = 30 * time.Second

	// maxHosts limits the cached hosts from DID documents.
	maxHosts = 4096
)

// host is the state of one origin.
type host struct {
	origin  string
	name    string // label in metrics; empty: from a DID document
	client  *http.Client
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu        sync.Mutex // guards what follows
	openUntil time.Time
	calls     allowance
	logins    allowance // sessions have their own rate limit
}

// allowance is a rate limit as the server reported it.
type allowance struct {
	until time.Time // no request before this time
}

// errHostFailed is the failure that the breaker counts: no response, or one that
// shows that the host is broken.
var errHostFailed = errors.New("the host did not respond")

// errCallerGone is the failure that the breaker ignores.
var errCallerGone = errors.New("the caller gave up")

// host returns the state of an origin, and creates it if necessary.
func (c *Client) host(origin string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	if h, ok := c.hosts[origin]; ok {
		return h
	}
	if len(c.hosts) >= maxHosts {
		for other, h := range c.hosts {
			if h.name == "" {
				delete(c.hosts, other)
				break
			}
		}
	}
	h := &host{origin: origin, client: c.guarded}
	if _, ok := c.own[origin]; ok {
		_, h.name, _ = strings.Cut(origin, "://")
		h.client = c.trusted
	}
	h.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Timeout:      openFor,
		ReadyToTrip:  func(n gobreaker.Counts) bool { return n.ConsecutiveFailures >= tripAfter },
		IsSuccessful: func(err error) bool { return err == nil },
		IsExcluded:   func(err error) bool { return errors.Is(err, errCallerGone) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			if to == gobreaker.StateOpen {
				h.mu.Lock()
				h.openUntil = time.Now().Add(openFor)
				h.mu.Unlock()
				c.metrics.openings.Inc()
			}
			c.log.Info("breaker_changed", "host", origin, "from", from.String(), "to", to.String())
		},
	})
	c.hosts[origin] = h
	return h
}

func (h *host) allowance(login bool) *allowance {
	if login {
		return &h.logins
	}
	return &h.calls
}

// wait returns when the host's rate limit allows a request, or immediately with an
// error if that takes longer than maxRateLimitWait.
func (h *host) wait(ctx context.Context, login bool) error {
	deadline := time.Now().Add(maxRateLimitWait)
	for {
		h.mu.Lock()
		until := h.allowance(login).until
		h.mu.Unlock()
		left := time.Until(until)
		if left <= 0 {
			return nil
		}
		if until.After(deadline) {
			return &Error{
				Class: RateLimited, Name: nameNotSent, held: true, Message: "the rate limit of " + h.origin + " is used up", RetryAfter: left,
			}
		}
		if err := retry.Sleep(ctx, left); err != nil {
			return err
		}
	}
}

// allow asks the breaker. Call report with the outcome.
func (h *host) allow() (report func(error), err error) {
	if report, err = h.breaker.Allow(); err == nil {
		return report, nil
	}
	return nil, h.broken(err)
}

// closed returns an error while the breaker is open.
func (h *host) closed() error {
	if h.breaker.State() == gobreaker.StateOpen {
		return h.broken(gobreaker.ErrOpenState)
	}
	return nil
}

func (h *host) broken(cause error) error {
	h.mu.Lock()
	left := time.Until(h.openUntil)
	h.mu.Unlock()
	return &Error{Class: Transient, Name: nameNotSent, held: true, Message: h.origin + " failed again and again and is left alone for a while",
		RetryAfter: max(left, time.Second), cause: cause}
}

// recordRateLimit records the rate limit of a response.
func (c *Client) recordRateLimit(h *host, login bool, header http.Header, now time.Time) {
	remaining, err := strconv.Atoi(header.Get("RateLimit-Remaining"))
	if err != nil || remaining < 0 {
		return
	}
	if h.name != "" && !login {
		c.metrics.remaining.WithLabelValues(h.name).Set(float64(remaining))
	}
	if remaining == 0 {
		h.hold(login, now, resetAfter(header, now))
	}
}

// hold blocks requests for a duration. It never shortens a longer block.
func (h *host) hold(login bool, now time.Time, wait time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.allowance(login)
	if until := now.Add(wait); wait > 0 && until.After(a.until) {
		a.until = until
	}
}

// resetAfter returns the time until the rate limit resets: RateLimit-Reset is a
// Unix time or, on servers that follow the draft standard, a number of seconds.
func resetAfter(header http.Header, now time.Time) time.Duration {
	n, err := strconv.ParseInt(header.Get("RateLimit-Reset"), 10, 64)
	switch {
	case err != nil || n <= 0:
		return 0
	case n < 1e8:
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	case n > now.Unix()+int64(maxRetryAfter/time.Second):
		return maxRetryAfter
	}
	return max(0, time.Unix(n, 0).Sub(now))
}

// retryAfter returns the wait that a server requests; 0: none.
func retryAfter(header http.Header, now time.Time) time.Duration {
	wait, _ := retry.After(header, now)
	return min(wait, maxRetryAfter)
}
