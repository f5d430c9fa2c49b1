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
// A refused cursor is no failure: Connect returns it, and the next call tries the same
// endpoint.
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
		if errors.Is(err, consumer.ErrCursorRefused) {
			return err
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

// A Request is a connection to make.
type Request struct {
	Path        string // replaces the service's at the end of the endpoint's path; empty: the endpoint's
	Subprotocol string
	Parameters  url.Values
}

// Dial connects to another path of the endpoint that is being attempted. Only an Attempt calls it.
func (d *Dialer) Dial(ctx context.Context, r Request) (*Conn, error) {
	return d.request(ctx, &d.endpoints[d.at], r)
}

// Fetch gets a document of at most limit bytes from another path of the endpoint that is being
// attempted. Only an Attempt calls it.
func (d *Dialer) Fetch(ctx context.Context, path string, limit int64) ([]byte, error) {
	u := d.endpoints[d.at].at(path)
	u.Scheme = strings.Replace(u.Scheme, "ws", "http", 1)
	ctx, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header = d.header()
	response, err := d.cfg.HTTPClient.Do(request)
	if err != nil {
		return nil, unwrapDial(err)
	}
	defer response.Body.Close() // it was read
	if response.StatusCode != http.StatusOK {
		return nil, refusal(nil, response)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	if err == nil && int64(len(body)) > limit {
		err = fmt.Errorf("the response has more than %d bytes", limit)
	}
	return body, err
}

// at returns the URL of a path that replaces that of the service.
func (e *endpoint) at(path string) *url.URL {
	u := *e.url
	u.Path, u.RawPath = strings.TrimSuffix(u.Path, e.service)+path, ""
	return &u
}

func (d *Dialer) header() http.Header {
	header := http.Header{}
	if d.cfg.UserAgent != "" {
		header.Set("User-Agent", d.cfg.UserAgent)
	}
	return header
}

// dial makes one connection.
func (d *Dialer) dial(ctx context.Context, e *endpoint, parameters url.Values) (*Conn, error) {
	return d.request(ctx, e, Request{Parameters: parameters})
}

func (d *Dialer) request(ctx context.Context, e *endpoint, r Request) (*Conn, error) {
	u := *e.url
	if r.Path != "" {
		u = *e.at(r.Path)
	}
	q := u.Query()
	for name, values := range r.Parameters {
		q[name] = append(q[name], values...)
	}
	u.RawQuery = q.Encode()

	dialing, cancel := context.WithTimeout(ctx, d.cfg.DialTimeout)
	defer cancel()
	var reached atomic.Bool // a TCP connection was made
	traced := httptrace.WithClientTrace(dialing, &httptrace.ClientTrace{
		GotConn:     func(httptrace.GotConnInfo) { reached.Store(true) },
		ConnectDone: func(_, _ string, err error) { reached.CompareAndSwap(false, err == nil) },
	})
	options := &websocket.DialOptions{HTTPClient: d.cfg.HTTPClient, HTTPHeader: d.header(), CompressionMode: websocket.CompressionDisabled}
	if r.Subprotocol != "" {
		options.Subprotocols = []string{r.Subprotocol}
	}
	ws, response, err := websocket.Dial(traced, u.String(), options)
	e.unreachable = !reached.Load()
	d.recordResponse(e, response)
	if err != nil {
		return nil, refusal(err, response)
	}
	ws.SetReadLimit(-1) // read bounds frames: a long one is dead-lettered, not fatal
	return newConn(d, e.host, ws), nil
}

// Refused is a server's response that is no connection.
type Refused struct {
	Status int
	Body   []byte // its beginning
}

func (r *Refused) Error() string {
	words := ""
	if len(r.Body) > 0 {
		words = ": " + consumer.Shorten(strings.TrimSpace(string(r.Body)))
	}
	return fmt.Sprintf("the server responded with status %d%s", r.Status, words)
}

// refusal returns why a dial failed: a Refused if the server responded.
func refusal(err error, response *http.Response) error {
	if response == nil || response.StatusCode == http.StatusSwitchingProtocols {
		return unwrapDial(err)
	}
	r := &Refused{Status: response.StatusCode}
	if response.Body != nil {
		body, readErr := io.ReadAll(io.LimitReader(response.Body, 512))
		if readErr == nil {
			r.Body = body
		}
	}
	return r
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
