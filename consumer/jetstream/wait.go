package jetstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/weir-social/weir/consumer"
)

// maxRetryAfter bounds the wait that a Retry-After header can request.
const maxRetryAfter = 5 * time.Minute

// probeTimeout bounds one probe of a host, which is only a TCP handshake.
const probeTimeout = 2 * time.Second

// wait reports the last failure and waits before the next attempt. A long wait ends
// early if an unreachable host accepts TCP connections again: that host is tried at
// once, and the waits restart at the shortest. A host that responds with an error
// is not probed.
func (c *Client) wait(ctx context.Context, report func(consumer.Attempt)) error {
	c.mu.Lock()
	failed, lastErr := c.failed, c.lastErr
	c.mu.Unlock()
	pause := c.pause()
	if lastErr != nil {
		next := c.endpoints[c.at].url.String()
		report(consumer.Attempt{Endpoint: next, Failed: failed, Err: lastErr, Wait: pause})
		level := slog.LevelWarn
		if failed >= c.cfg.AlertAfter {
			level = slog.LevelError
		}
		c.log.Log(ctx, level, "not_connected", "failed", failed, "error", lastErr, "next", next, "wait", pause)
	}
	end := time.Now().Add(pause)
	for {
		left := time.Until(end)
		step := min(left, c.cfg.ProbeEvery+rand.N(c.cfg.ProbeEvery/2+1))
		timer := time.NewTimer(step)
		select {
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-timer.C:
		}
		if step == left {
			return nil
		}
		if at, ok := c.probe(ctx); ok {
			c.log.Info("host_reachable_again", "host", c.endpoints[at].host, "failed", failed)
			c.at = at
			c.retries.Reset()
			return nil
		}
	}
}

// pause returns the wait before the next attempt, and moves c.at past hosts whose
// Retry-After is later than that of another host.
func (c *Client) pause() time.Duration {
	now := time.Now()
	longest := c.cfg.MaxWait
	if c.starting {
		longest = min(longest, c.cfg.StartingWait)
	}
	pause := min(c.retries.NextBackOff(), longest)
	last := &c.endpoints[c.last]
	if c.refused && last.notBefore.Before(now.Add(pause)) {
		last.notBefore = now.Add(pause) // even if another host resets the waits
	}
	best := c.at
	for i := range c.endpoints {
		at := (c.at + i) % len(c.endpoints)
		if !c.endpoints[at].notBefore.After(now.Add(pause)) {
			best = at
			break
		}
		if c.endpoints[at].notBefore.Before(c.endpoints[best].notBefore) {
			best = at
		}
	}
	c.at = best
	return max(pause, c.endpoints[best].notBefore.Sub(now))
}

// newRetries returns the waits after failures: doubled after each, from the
// shortest to the longest, and reduced at random by up to half, so that many
// clients do not reconnect in step.
func newRetries(shortest, longest time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: shortest * 3 / 4, MaxInterval: longest * 3 / 4, Multiplier: 2, RandomizationFactor: 1.0 / 3}
}

// probe opens a TCP connection to each host that the last attempt did not reach. It
// returns the first, in the order of failover, that accepts.
func (c *Client) probe(ctx context.Context) (at int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	accepts := make([]chan bool, len(c.endpoints))
	for i := range c.endpoints {
		if !c.endpoints[i].unreachable {
			continue
		}
		accepts[i] = make(chan bool, 1)
		go func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.endpoints[i].address())
			if err == nil {
				conn.Close() //nolint:errcheck // nothing was sent
			}
			accepts[i] <- err == nil
		}()
	}
	for i := range c.endpoints {
		next := (c.at + i) % len(c.endpoints)
		if accepts[next] != nil && <-accepts[next] {
			return next, true
		}
	}
	return 0, false
}

// address returns the host and port for a TCP connection.
func (e *endpoint) address() string {
	port := e.url.Port()
	if port == "" {
		port = "80"
		if e.url.Scheme == "wss" || e.url.Scheme == "https" {
			port = "443"
		}
	}
	return net.JoinHostPort(e.url.Hostname(), port)
}

// recordResponse records when a response allows the next attempt at this host. A
// server that is starting, or a proxy before one, responds with 502, 503 or 504.
func (c *Client) recordResponse(e *endpoint, response *http.Response) {
	c.starting, c.refused = false, false
	if response == nil {
		return
	}
	switch code := response.StatusCode; {
	case code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		c.starting = true
	case code >= 400 && code < 500:
		c.refused = true
	}
	e.notBefore = time.Now().Add(min(retryAfter(response.Header.Get("Retry-After")), maxRetryAfter))
}

// retryAfter parses the header: seconds, or a date.
func retryAfter(header string) time.Duration {
	if seconds, err := strconv.Atoi(header); err == nil {
		return time.Duration(min(max(0, seconds), 1e6)) * time.Second
	}
	if at, err := http.ParseTime(header); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
