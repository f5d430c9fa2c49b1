package bluesky

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/guard"
	"github.com/weir-social/weir/internal/retry"
)

// maxBody limits a response body after decompression.
const maxBody = 16 << 20

// maxDocument limits a DID document: many are read at once, and anybody can serve one.
const maxDocument = 1 << 20

// maxErrorBody limits the body of an error response.
const maxErrorBody = 64 << 10

// otherNetwork occurs in the query of a call that names a Nostr account. Such calls are
// never sent to services of this network.
const otherNetwork = "did%3Anostr%3A"

// request is one call, with its retries.
type request struct {
	call   string // name in errors and metrics
	method string
	origin string
	path   string // with its query
	body   []byte
	token  string // empty: without authorization
	login  bool   // a call that creates a session; such calls have their own rate limit
	proof  bool   // the response is a part of a repository, not JSON
	car    bool   // the response is a whole repository, not JSON: longer and slower; its job repeats the call
	read   func(body []byte) error
}

// query calls a method of the AppView, directly or through the login's PDS.
func (c *Client) query(ctx context.Context, call string, params url.Values, read func([]byte) error) error {
	r := request{call: call, method: http.MethodGet, origin: c.appView, path: xrpcPath(call, params), read: read}
	if c.session == nil {
		return c.do(ctx, r)
	}
	token, err := c.token(ctx, "")
	if err != nil {
		return err
	}
	r.origin, r.token = c.session.pds, token
	if err = c.do(ctx, r); !expired(err) {
		return err
	}
	if r.token, err = c.token(ctx, token); err != nil {
		return err
	}
	err = c.do(ctx, r)
	if e, ok := errors.AsType[*Error](err); ok && expired(err) {
		e.cause = ErrLogin
	}
	return err
}

func xrpcPath(call string, params url.Values) string {
	return "/xrpc/" + call + "?" + params.Encode()
}

// do sends a request, and repeats it after transient errors until it succeeds or
// the waits are used up.
func (c *Client) do(ctx context.Context, r request) error {
	if strings.Contains(r.path, otherNetwork) {
		return &Error{Class: Permanent, Call: r.call, Name: nameRefused, Message: "an account of Nostr has no repository"}
	}
	for try := 0; ; try++ {
		err := c.try(ctx, r)
		if err == nil {
			return nil
		}
		e := c.explain(ctx, r, err)
		if e.Class != Transient || e.held || r.car || ctx.Err() != nil || try >= len(c.cfg.Retries) || e.RetryAfter > maxRateLimitWait {
			return e
		}
		wait := max(c.cfg.Retries[try], e.RetryAfter)
		c.log.Debug("call_retried", "call", r.call, "error", e.Error(), "wait", wait)
		if retry.Sleep(ctx, wait) != nil {
			return c.explain(ctx, r, ctx.Err())
		}
	}
}

// explain turns every error into an *Error.
func (c *Client) explain(ctx context.Context, r request, err error) *Error {
	e := &Error{Class: Transient, Message: oneLine(err.Error()), cause: err}
	found, ok := errors.AsType[*Error](err)
	if ok {
		*e = *found // other calls may share it
	}
	switch {
	case errors.Is(err, guard.ErrPrivate):
		e.Class, e.Name = Permanent, nameRefused
	case ctx.Err() != nil && !ok:
		e.cause = context.Cause(ctx)
		e.Message = oneLine(e.cause.Error())
	}
	if e.Call == "" {
		e.Call = r.call
	}
	return e
}

// try sends a request once, as soon as the host's rate limit, its breaker and the shared
// limit allow it. It holds the shared limit only during the request.
func (c *Client) try(ctx context.Context, r request) error {
	h := c.host(r.origin)
	if err := h.wait(ctx, r.login); err != nil {
		c.count(h, r, "not_sent")
		return err
	}
	if err := h.closed(); err != nil {
		c.count(h, r, "not_sent")
		return err
	}
	if c.cfg.Limit != nil {
		done, err := c.cfg.Limit(ctx)
		if err != nil {
			c.count(h, r, "not_sent")
			return limitError(err)
		}
		if done != nil {
			defer done()
		}
	}
	report, err := h.allow()
	if err != nil {
		c.count(h, r, "not_sent")
		return err
	}
	outcome := errHostFailed
	defer func() { report(outcome) }()
	started := time.Now()
	body, err := c.traced(ctx, h, r)
	outcome = breakerOutcome(ctx, err)
	if err == nil {
		err = r.read(body)
	}
	c.metrics.seconds.WithLabelValues(r.call).Observe(time.Since(started).Seconds())
	class := "ok"
	if err != nil {
		class = Classify(err).String()
	}
	c.count(h, r, class)
	return err
}

// count counts a request by host and outcome.
func (c *Client) count(h *host, r request, class string) {
	c.metrics.requests.WithLabelValues(r.call, cmp.Or(h.name, "other"), class).Inc()
}

// limitError is the error of the shared limit. It is not retried here: the next
// call takes the limit again.
func limitError(err error) error {
	e := Error{Class: Transient, Name: nameNotSent, Message: oneLine("take the limit of calls: " + err.Error()), cause: err}
	if own, ok := errors.AsType[*Error](err); ok {
		e = *own
	}
	e.held = true
	return &e
}

// breakerOutcome returns the outcome of a request for the host's breaker.
func breakerOutcome(ctx context.Context, err error) error {
	e, answered := errors.AsType[*Error](err)
	switch {
	case err == nil:
		return nil
	case answered && e.Status != 0 && e.Status < http.StatusInternalServerError:
		return nil
	case ctx.Err() != nil, errors.Is(err, guard.ErrPrivate):
		return errCallerGone
	}
	return errHostFailed
}

// send makes the HTTP request within its timeout, and returns the body of a
// successful response.
func (c *Client) send(ctx context.Context, h *host, r request) ([]byte, error) {
	timeout := c.cfg.Timeout
	if r.car {
		timeout = max(timeout, carTimeout)
	}
	timed, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := c.exchange(timed, h, r)
	if _, said := errors.AsType[*Error](err); err != nil && !said && timed.Err() != nil && ctx.Err() == nil {
		return nil, fmt.Errorf("%s did not respond within %s", h.origin, timeout)
	}
	return body, err
}

func (c *Client) exchange(ctx context.Context, h *host, r request) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, r.method, r.origin+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, &Error{Class: Permanent, Name: nameRefused, Message: "the request cannot be written as a URL", cause: err}
	}
	longest := maxBody
	req.Header.Set("Accept", "application/json")
	if r.call == didDocument {
		longest = maxDocument
	}
	if r.car {
		longest = maxCAR
	}
	if r.car || r.proof {
		req.Header.Set("Accept", "application/vnd.ipld.car")
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	resp, err := h.client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // omits the long URL
		}
		return nil, err
	}
	defer resp.Body.Close()
	now := time.Now()
	c.recordRateLimit(h, r.login, resp.Header, now)
	if resp.StatusCode != http.StatusOK {
		return nil, c.statusError(h, r, resp, now)
	}
	if r.car && resp.ContentLength > int64(longest) {
		return nil, tooLong(resp, longest, r)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, int64(longest)+1))
	if err != nil {
		return nil, err
	}
	if len(body) > longest {
		return nil, tooLong(resp, longest, r)
	}
	return body, nil
}

// tooLong returns the error of a response above a limit.
func tooLong(resp *http.Response, longest int, r request) error {
	e := malformed("the answer is longer than %d bytes", longest)
	e.Status = resp.StatusCode
	if r.car {
		e.Class, e.cause = Permanent, ErrTooLong
	}
	return e
}

// statusError returns the classified error of an unsuccessful response.
func (c *Client) statusError(h *host, r request, resp *http.Response, now time.Time) error {
	e := &Error{Class: Permanent, Status: resp.StatusCode, Message: http.StatusText(resp.StatusCode)}
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody)) // a partial body is better than none
	var said struct{ Error, Message string }
	if fields, err := readObject(body); err == nil {
		said.Error, said.Message = text(fields["error"]), text(fields["message"])
	}
	e.Name = errorName(said.Error)
	if said.Message != "" {
		e.Message = oneLine(said.Message)
	}
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests:
		e.Class = RateLimited
		e.RetryAfter = retryAfter(resp.Header, now)
		if e.RetryAfter == 0 {
			e.RetryAfter = resetAfter(resp.Header, now)
		}
		if e.RetryAfter == 0 {
			e.RetryAfter = defaultRetryAfter
		}
		h.hold(r.login, now, e.RetryAfter)
	case code >= http.StatusInternalServerError, code == http.StatusRequestTimeout, code == http.StatusTooEarly:
		e.Class = Transient
		e.RetryAfter = retryAfter(resp.Header, now)
	case code < http.StatusBadRequest:
		e.Class, e.Name = Transient, nameMalformed // not an XRPC response, so it is from a proxy
		e.Message = oneLine("expected status 200, received " + resp.Status + " " + resp.Header.Get("Location"))
	}
	return e
}
