package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/retry"
)

const (
	methods        = "/xrpc/network.bsky.jetstream."
	attempts       = 5
	requestTimeout = 20 * time.Second // the largest block at 25 kB a second
	longestWait    = 20 * time.Second // between two attempts, if the server requests one
)

// request is a call of a method.
type request struct {
	method string
	query  url.Values
	body   []byte // posted, if it is set
	first  int64  // of the bytes that are requested
	last   int64  // 0: all bytes
	tag    string // of the file that the bytes must be of; empty: any
	most   int64  // length of the response; of a longer one, a byte more is returned
}

// response is a complete response.
type response struct {
	body []byte
	tag  string
}

// statusError is a response that is none of the expected ones.
type statusError struct {
	method  string
	status  int
	message string
	wait    time.Duration // that the server requests
}

func (e *statusError) Error() string {
	return strings.TrimSpace(fmt.Sprintf("%s: status %d %s", e.method, e.status, e.message))
}

// final reports whether a repetition would not help.
func final(err error) bool {
	var refused *statusError
	if errors.As(err, &refused) {
		switch refused.status {
		case http.StatusTooManyRequests, http.StatusRequestTimeout, http.StatusRequestedRangeNotSatisfiable:
			return false
		case http.StatusNotFound: // of a segment that the server has listed
			return refused.method != "getSegment" && refused.method != "getBlock"
		}
		return refused.status/100 == 4
	}
	return errors.Is(err, ErrChanged)
}

// errRange means that a server, or a proxy in front of it, ignores which bytes of a file are requested.
var errRange = errors.New("the server does not send the requested range of bytes: archives need one that does, and another server of " +
	"WEIR_JETSTREAM may")

// repeat calls f until it succeeds, with growing waits. If the time ends first, the error says what failed until then.
func (c *Client) repeat(ctx context.Context, f func(context.Context) error) (err error) {
	wait := c.cfg.Retry
	for attempt := 1; ; attempt++ {
		before := err
		err = f(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil && before != nil:
			return fmt.Errorf("%w; then %w", before, ctx.Err())
		case ctx.Err() != nil:
			return ctx.Err()
		case attempt == attempts || final(err):
			return err
		}
		c.cfg.Logger.Warn("archive_request_failed", "attempt", attempt, "error", err)
		var refused *statusError
		pause := wait
		if errors.As(err, &refused) {
			pause = min(max(wait, refused.wait), longestWait)
		}
		if ended := retry.Sleep(ctx, pause); ended != nil {
			return fmt.Errorf("%w; then %w", err, ended)
		}
		wait *= 2
	}
}

// request makes one call.
func (c *Client) request(ctx context.Context, s server, r request) (response, error) {
	done, err := c.cfg.Limit(ctx)
	if err != nil {
		return response{}, err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.base+methods+r.method+"?"+r.query.Encode(), nil)
	if err != nil {
		return response{}, err
	}
	if r.body != nil {
		req.Method, req.Body, req.ContentLength = http.MethodPost, io.NopCloser(bytes.NewReader(r.body)), int64(len(r.body))
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	want := http.StatusOK
	if r.last > 0 {
		want = http.StatusPartialContent
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", r.first, r.last))
		if r.tag != "" {
			req.Header.Set("If-Range", r.tag)
		}
	}
	resp, err := c.cfg.HTTP.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close() // it was read
	tag := resp.Header.Get("ETag")
	switch {
	case resp.StatusCode == http.StatusOK && want == http.StatusPartialContent && r.tag != "" && tag != r.tag,
		r.tag != "" && tag != "" && tag != r.tag && resp.StatusCode == want:
		return response{}, fmt.Errorf("%s: %w", r.method, ErrChanged)
	case want == http.StatusPartialContent && resp.StatusCode == http.StatusOK,
		want == resp.StatusCode && r.last > 0 && !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", r.first)):
		return response{}, fmt.Errorf("%s: %w", r.method, errRange)
	case resp.StatusCode != want:
		return response{}, refusal(r.method, resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, r.most+1))
	if err != nil {
		return response{}, fmt.Errorf("%s: read the response: %w", r.method, err)
	}
	return response{body, tag}, nil
}

// refusal reads the error of a response.
func refusal(method string, resp *http.Response) error {
	e := &statusError{method: method, status: resp.StatusCode}
	e.wait, _ = retry.After(resp.Header, time.Now())
	var body struct{ Error, Message string }
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10)) // it only explains
	if json.Unmarshal(raw, &body) == nil {
		e.message = strings.ToValidUTF8(body.Error+" "+body.Message, "\uFFFD")
		e.message = e.message[:min(len(e.message), 200)]
	}
	return e
}
