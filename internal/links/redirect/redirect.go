// Package redirect asks known shorteners where their links lead. It contacts no other host: not
// even the site that a short link leads to.
package redirect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/guard"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/retry"
)

// Config configures a Client.
type Config struct {
	Transport *http.Transport                                // http.DefaultTransport when nil; tests give one that reaches their server
	Limit     func(context.Context) (done func(), err error) // waits for permission to make a request; nil: no limit
	Timeout   time.Duration                                  // of one request; 10 s when zero
	UserAgent string
}

// Client asks shorteners. It is safe for concurrent use.
type Client struct {
	cfg  Config
	http *http.Client
}

// New returns a client.
func New(cfg Config) *Client {
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	var round http.RoundTripper = cfg.Transport
	if cfg.Transport == nil {
		round = guard.Config{}.Transport(http.DefaultTransport.(*http.Transport)) // it is one
	}
	return &Client{cfg, &http.Client{
		Transport:     round,
		Timeout:       cfg.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// maxHops limits the shorteners that one link leads through.
const maxHops = 5

// Dead is the error of a short link that leads nowhere. A retry would not help.
type Dead struct{ Why string }

func (e *Dead) Error() string { return e.Why }

// Busy is the error of a shortener that asks the client to wait.
type Busy struct {
	Site   string
	Status int
	Wait   time.Duration
}

func (e *Busy) Error() string { return fmt.Sprintf("ask %s: it answers %d", e.Site, e.Status) }

const (
	defaultWait = time.Minute // if it does not say how long
	maxWait     = time.Hour
)

// newBusy returns a *Busy, or nil if the response does not ask for a pause.
func newBusy(site string, resp *http.Response) *Busy {
	wait, ok := retry.After(resp.Header, time.Now())
	switch {
	case !ok && resp.StatusCode != http.StatusTooManyRequests:
		return nil
	case !ok:
		wait = defaultWait
	}
	return &Busy{site, resp.StatusCode, min(max(wait, time.Second), maxWait)}
}

// Follow returns the link that a short link leads to. It follows the link from shortener to
// shortener, and stops at the first other host. It returns a *Dead, a *Busy, or another error if
// the shortener could not be asked now.
func (c *Client) Follow(ctx context.Context, short link.Link) (link.Link, error) {
	at := short
	for range maxHops {
		next, err := c.ask(ctx, at)
		switch {
		case err != nil:
			return link.Link{}, err
		case next.Short:
			at = next
			continue
		case next.Excluded:
			return link.Link{}, &Dead{"it leads to " + next.Site + ", whose links do not count"}
		}
		// Dead links usually lead to a front page. A route in a fragment selects a page.
		if u, err := url.Parse(next.URL); err != nil || u.Path == "/" && u.RawQuery == "" && !strings.ContainsAny(u.Fragment, "!/=") {
			return link.Link{}, &Dead{"it leads to the front page of " + next.Site}
		}
		return next, nil
	}
	return link.Link{}, &Dead{fmt.Sprintf("it leads through more than %d shorteners", maxHops)}
}

// address returns the address to ask for a short link: its spelling, or the shortener's address
// if the spelling is a copy in an archive, which is another host.
func address(short link.Link) string {
	if short.MayShort || link.IsShort(short.URL) {
		return short.URL
	}
	return "https://" + short.Identity
}

// ask makes one request.
func (c *Client) ask(ctx context.Context, short link.Link) (link.Link, error) {
	if c.cfg.Limit != nil {
		done, err := c.cfg.Limit(ctx)
		if err != nil {
			return link.Link{}, err
		}
		defer done()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address(short), nil)
	if err != nil {
		return link.Link{}, &Dead{"its address is not valid"}
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	resp, err := c.http.Do(req)
	if errors.Is(err, guard.ErrPrivate) {
		return link.Link{}, &Dead{short.Site + " has a private address"}
	}
	if err != nil {
		return link.Link{}, fmt.Errorf("ask %s: %w", short.Site, err)
	}
	resp.Body.Close() // its body is not read
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests || status == http.StatusRequestTimeout || status >= 500:
		if busy := newBusy(short.Site, resp); busy != nil {
			return link.Link{}, busy
		}
		return link.Link{}, fmt.Errorf("ask %s: it answers %d", short.Site, status)
	case status/100 != 3:
		return link.Link{}, &Dead{fmt.Sprintf("%s answers %d, which is no redirect", short.Site, status)}
	}
	to, err := resp.Location()
	if err != nil {
		return link.Link{}, &Dead{short.Site + " redirects to no address"}
	}
	next, err := link.Parse(to.String())
	if err != nil {
		return link.Link{}, &Dead{short.Site + " redirects to what is no link: " + err.Error()}
	}
	return next, nil
}
