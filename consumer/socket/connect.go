package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync/atomic"

	"github.com/coder/websocket"

	"github.com/weir-social/weir/consumer"
)

// An Attempt dials the endpoint of a host, once, with parameters for its URL, and
// prepares the connection. An error counts as a failure of that endpoint.
type Attempt func(ctx context.Context, host string, dial func(parameters url.Values) (*Conn, error)) error

// Connect tries one endpoint after another until one succeeds or ctx ends. After a
// connection that brought events, it starts with the same endpoint, for which the cursor
// is exact. Waits double until the server serves, see Conn.Serves: a server that accepts
// the connection and sends nothing counts as failed. A long wait may end early, see wait.
func (d *Dialer) Connect(ctx context.Context, try Attempt, report func(consumer.Attempt)) error {
	if report == nil {
		report = func(consumer.Attempt) {}
	}
	for {
		if d.dialed {
			if err := d.wait(ctx, report); err != nil {
				return err
			}
		}
		d.dialed = true
		e := &d.endpoints[d.at]
		err := try(ctx, e.host, func(parameters url.Values) (*Conn, error) { return d.dial(ctx, e, parameters) })
		if err == nil {
			d.metrics.connects.WithLabelValues(e.host, "accepted").Inc()
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d.metrics.connects.WithLabelValues(e.host, "failed").Inc()
		d.mu.Lock()
		d.recordFailure(err)
		d.mu.Unlock()
	}
}

// recordFailure counts a failed attempt. The next attempt goes to another endpoint. The
// caller holds the lock.
func (d *Dialer) recordFailure(err error) {
	d.failed++
	d.last = d.at
	d.lastErr = fmt.Errorf("%s: %w", d.endpoints[d.at].host, err)
	d.metrics.failed.Set(float64(d.failed))
	d.at = (d.at + 1) % len(d.endpoints)
}

// dial makes one connection.
func (d *Dialer) dial(ctx context.Context, e *endpoint, parameters url.Values) (*Conn, error) {
	u := *e.url
	q := u.Query()
	for name, values := range parameters {
		q[name] = append(q[name], values...)
	}
	u.RawQuery = q.Encode()

	dialing, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	header := http.Header{}
	if d.cfg.UserAgent != "" {
		header.Set("User-Agent", d.cfg.UserAgent)
	}
	var reached atomic.Bool // a TCP connection was made
	traced := httptrace.WithClientTrace(dialing, &httptrace.ClientTrace{
		GotConn:     func(httptrace.GotConnInfo) { reached.Store(true) },
		ConnectDone: func(_, _ string, err error) { reached.CompareAndSwap(false, err == nil) },
	})
	ws, response, err := websocket.Dial(traced, u.String(), &websocket.DialOptions{HTTPClient: d.cfg.HTTPClient, HTTPHeader: header,
		CompressionMode: websocket.CompressionDisabled})
	e.unreachable = !reached.Load()
	d.recordResponse(e, response)
	if err != nil {
		return nil, refusal(err, response)
	}
	ws.SetReadLimit(-1) // read bounds frames: a long one is dead-lettered, not fatal
	return newConn(d, e.host, ws), nil
}

// refusal returns why a dial failed, with the server's message if there is one.
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

// unwrapDial removes the URL from a dial's error, because it may contain many DIDs.
func unwrapDial(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(inner) {
		if deeper := errors.Unwrap(inner); deeper == nil || strings.HasPrefix(inner.Error(), "dial ") {
			return inner
		}
	}
	return err
}
