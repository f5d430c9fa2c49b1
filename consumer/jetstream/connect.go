package jetstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync/atomic"

	"github.com/coder/websocket"

	"github.com/weir-social/weir/consumer"
)

// Connect dials one endpoint after another until one accepts or ctx ends. After a
// connection that brought events, it starts with the same endpoint, for which the
// cursor is exact. Waits double until an event arrives: a server that accepts and
// sends nothing counts as failed. A long wait may end early, see wait.
func (c *Client) Connect(ctx context.Context, at func(host string) consumer.Cursor, report func(consumer.Attempt)) (consumer.Conn, error) {
	if report == nil {
		report = func(consumer.Attempt) {}
	}
	for {
		if c.dialed {
			if err := c.wait(ctx, report); err != nil {
				return nil, err
			}
		}
		c.dialed = true
		e := &c.endpoints[c.at]
		conn, err := c.dial(ctx, e, at(e.host))
		if err == nil {
			c.metrics.connects.WithLabelValues(e.host, "accepted").Inc()
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		c.metrics.connects.WithLabelValues(e.host, "failed").Inc()
		c.recordFailure(err)
	}
}

// recordFailure counts an attempt that brought no event. The next one goes to
// another endpoint.
func (c *Client) recordFailure(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed++
	c.last = c.at
	c.lastErr = fmt.Errorf("%s: %w", c.endpoints[c.at].host, err)
	c.metrics.failed.Set(float64(c.failed))
	c.at = (c.at + 1) % len(c.endpoints)
}

// resetFailures resets the failures after an event has arrived.
func (c *Client) resetFailures() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed, c.lastErr = 0, nil
	c.retries.Reset()
	c.metrics.failed.Set(0)
}

// dial makes one connection and sets its filter.
func (c *Client) dial(ctx context.Context, e *endpoint, from consumer.Cursor) (*conn, error) {
	zip := c.decoder(ctx)
	c.mu.Lock()
	filter := c.filter
	c.mu.Unlock()
	u := *e.url
	q := u.Query()
	for name, values := range filter.query(from, zip != nil) {
		q[name] = append(q[name], values...)
	}
	u.RawQuery = q.Encode()

	dialing, cancel := context.WithTimeout(ctx, c.cfg.DialTimeout)
	defer cancel()
	header := http.Header{}
	if c.cfg.UserAgent != "" {
		header.Set("User-Agent", c.cfg.UserAgent)
	}
	var reached atomic.Bool // a TCP connection was made
	traced := httptrace.WithClientTrace(dialing, &httptrace.ClientTrace{
		GotConn:     func(httptrace.GotConnInfo) { reached.Store(true) },
		ConnectDone: func(_, _ string, err error) { reached.CompareAndSwap(false, err == nil) },
	})
	ws, response, err := websocket.Dial(traced, u.String(), &websocket.DialOptions{HTTPClient: c.cfg.HTTPClient, HTTPHeader: header,
		CompressionMode: websocket.CompressionDisabled})
	e.unreachable = !reached.Load()
	c.recordResponse(e, response)
	if err != nil {
		return nil, refusal(err, response)
	}
	ws.SetReadLimit(-1) // read bounds frames: a long one is dead-lettered, not fatal
	conn := newConn(c, e.host, ws, zip)
	if !filter.inURL() {
		if err := conn.setFilter(dialing, filter); err != nil {
			conn.Close() //nolint:errcheck // the error is returned
			return nil, fmt.Errorf("send the filter: %w", err)
		}
	}
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	c.mu.Lock()
	c.live = conn
	latest := c.filter
	c.mu.Unlock()
	if latest.hash() != filter.hash() { // it changed during the dial
		if err := conn.setFilter(dialing, latest); err != nil {
			conn.Close() //nolint:errcheck // the error is returned
			return nil, fmt.Errorf("change the filter: %w", err)
		}
	}
	return conn, nil
}

// refusal returns why a dial failed, with the server's message if it has one.
func refusal(err error, response *http.Response) error {
	if response == nil {
		return unwrapDial(err)
	}
	words := ""
	if response.Body != nil {
		body, readErr := io.ReadAll(io.LimitReader(response.Body, 512))
		if readErr == nil {
			words = ": " + consumer.Shorten(strings.TrimSpace(string(body)))
		}
	}
	if response.StatusCode == http.StatusSwitchingProtocols {
		return unwrapDial(err)
	}
	return fmt.Errorf("the server responded with status %d%s", response.StatusCode, words)
}

// unwrapDial removes the URL, which may contain many DIDs, from a dial's error.
func unwrapDial(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if deeper := errors.Unwrap(inner); deeper == nil || strings.HasPrefix(inner.Error(), "dial ") {
			return inner
		}
	}
	return err
}
