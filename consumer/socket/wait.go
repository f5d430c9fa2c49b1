package socket

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/retry"
)

// maxRetryAfter limits the wait that a Retry-After header can request.
const maxRetryAfter = 5 * time.Minute

// probeTimeout bounds one probe of a host, which is only a TCP handshake.
const probeTimeout = 2 * time.Second

// wait reports the last failure and waits before the next attempt. A long wait ends
// early if an unreachable host accepts TCP connections again. That host is then
// tried at once, and the waits start again with the shortest. A host that responds
// with an error is not probed.
func (d *Dialer) wait(ctx context.Context, report func(consumer.Attempt)) error {
	d.mu.Lock()
	failed, lastErr := d.failed, d.lastErr
	d.mu.Unlock()
	pause := d.pause()
	if lastErr != nil {
		next := d.endpoints[d.at].url.String()
		report(consumer.Attempt{Endpoint: next, Failed: failed, Err: lastErr, Wait: pause})
		level := slog.LevelWarn
		if failed >= d.cfg.AlertAfter {
			level = slog.LevelError
		}
		d.log.Log(ctx, level, "connect_failed", "failed", failed, "error", lastErr, "next", next, "wait", pause)
	}
	end := time.Now().Add(pause)
	for {
		left := time.Until(end)
		step := min(left, d.cfg.ProbeEvery+rand.N(d.cfg.ProbeEvery/2+1))
		if err := retry.Sleep(ctx, step); err != nil {
			return err
		}
		if step == left {
			return nil
		}
		if at, ok := d.probe(ctx); ok {
			d.log.Info("host_reachable_again", "host", d.endpoints[at].host, "failed", failed)
			d.at = at
			d.retries.Reset()
			return nil
		}
	}
}

// pause returns the wait before the next attempt. It moves d.at past hosts whose
// Retry-After is later than that of another host.
func (d *Dialer) pause() time.Duration {
	now := time.Now()
	longest := d.cfg.MaxWait
	if d.starting {
		longest = min(longest, d.cfg.StartingWait)
	}
	pause := min(d.retries.NextBackOff(), longest)
	last := &d.endpoints[d.last]
	if d.refused && last.notBefore.Before(now.Add(pause)) {
		last.notBefore = now.Add(pause) // this holds even if another host resets the waits
	}
	best := d.at
	for i := range d.endpoints {
		at := (d.at + i) % len(d.endpoints)
		if !d.endpoints[at].notBefore.After(now.Add(pause)) {
			best = at
			break
		}
		if d.endpoints[at].notBefore.Before(d.endpoints[best].notBefore) {
			best = at
		}
	}
	d.at = best
	return max(pause, d.endpoints[best].notBefore.Sub(now))
}

// jitter is the largest fraction by which a wait is randomly lengthened or
// shortened.
const jitter = 0.25

// newRetries returns the waits after failures: doubled after each, from the
// shortest to the longest, with jitter, so that many clients do not reconnect in
// step.
func newRetries(shortest, longest time.Duration) *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: shortest, MaxInterval: longest, Multiplier: 2, RandomizationFactor: jitter}
}

// probe opens a TCP connection to each host that the last attempt did not reach. It
// returns the first, in the order of failover, that accepts.
func (d *Dialer) probe(ctx context.Context) (at int, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	accepts := make([]chan bool, len(d.endpoints))
	for i := range d.endpoints {
		if !d.endpoints[i].unreachable {
			continue
		}
		accepts[i] = make(chan bool, 1)
		go func() {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", d.endpoints[i].address())
			if err == nil {
				conn.Close() // nothing was sent
			}
			accepts[i] <- err == nil
		}()
	}
	for i := range d.endpoints {
		next := (d.at + i) % len(d.endpoints)
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
// server that is starting, or a proxy in front of one, responds with 502, 503 or
// 504.
func (d *Dialer) recordResponse(e *endpoint, response *http.Response) {
	d.starting, d.refused = false, false
	if response == nil {
		return
	}
	switch code := response.StatusCode; {
	case code == http.StatusBadGateway, code == http.StatusServiceUnavailable, code == http.StatusGatewayTimeout:
		d.starting = true
	case code >= 400 && code < 500:
		d.refused = true
	}
	now := time.Now()
	wait, _ := retry.After(response.Header, now)
	e.notBefore = now.Add(min(wait, maxRetryAfter))
}
