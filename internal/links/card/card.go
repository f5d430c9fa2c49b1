// Package card reads how a page describes itself: its title, description and site name,
// where its address leads, and which address it names as its own. The address and the page
// are untrusted: every request is guarded, and time, bytes and redirects are limited. It
// obeys robots.txt, executes nothing, sends no cookie and never fetches a picture.
package card

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/publicsuffix"

	"github.com/weir-social/weir/internal/guard"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/links/link/title"
	"github.com/weir-social/weir/internal/retry"
)

const (
	maxBytes     = 2 << 20 // per page, compressed and decompressed
	maxRedirects = 5
	maxAddress   = 4096 // bytes of an address, including those of redirects
)

// Config configures a Client.
type Config struct {
	Transport *http.Transport                           // http.DefaultTransport when nil; it is always guarded
	Guard     guard.Config                              // tests name their servers
	Ports     []string                                  // 80 and 443 when nil; tests have others
	Turn      func(ctx context.Context, h string) error // waits until a request to the host may start; nil: no limit
	Timeout   time.Duration                             // for everything; 10 s when zero
	UserAgent string                                    // begins with the name that robots.txt files use
}

// Client fetches pages. It is safe for concurrent use.
type Client struct {
	cfg       Config
	transport http.RoundTripper // follows no redirect, and keeps no cookie
	robots    robotsCache
}

// New returns a client.
func New(cfg Config) *Client {
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	if cfg.Ports == nil {
		cfg.Ports = []string{"80", "443"}
	}
	of := cfg.Transport
	if of == nil {
		of = http.DefaultTransport.(*http.Transport) // it is one
	}
	t := cfg.Guard.Transport(of)
	t.DisableKeepAlives, t.DisableCompression = true, true // gzip is read here, with a limit
	return &Client{cfg: cfg, transport: t}
}

// Page is a page's description of itself. All texts are plain, on one line, and valid
// UTF-8.
type Page struct {
	Title       string    // at most 300 characters
	Description string    // at most 1000
	SiteName    string    // at most 100
	Address     string    // where the redirects ended
	SameSite    bool      // Address has the registrable domain of the fetched address
	To          link.Link // Address as a link; zero: it is not one
	Canonical   link.Link // the address that the page names as its own, in the same registrable domain; zero: none
	Why         string    // why it is not the page of an article; empty: it is one
}

// Dead is the error for an address without a page. A retry would not help.
type Dead struct{ Why string }

func (e *Dead) Error() string { return e.Why }

// busy is the error of a server that asks the client to come back later.
type busy struct {
	status int
	host   string
	after  time.Duration
}

func (e *busy) Error() string { return fmt.Sprintf("%s answers %d", e.host, e.status) }

// RetryAfter returns how long a server asks to wait; 0: it did not say.
func RetryAfter(err error) time.Duration {
	if b, ok := errors.AsType[*busy](err); ok {
		return b.after
	}
	return 0
}

// Fetch reads the page at an address. It returns a *Dead, or another error if the page
// could not be read now.
func (c *Client) Fetch(ctx context.Context, address string) (Page, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	first, err := url.Parse(address)
	if err != nil {
		return Page{}, &Dead{"its address is not valid"}
	}
	allowed := func(ctx context.Context, at *url.URL) error {
		ok, err := c.mayFetch(ctx, at)
		if err == nil && !ok {
			err = &Dead{"the robots.txt of " + at.Hostname() + " forbids it"}
		}
		return err
	}
	resp, at, err := c.follow(ctx, first, allowed)
	if err != nil {
		return Page{}, err
	}
	defer resp.Body.Close() // it was read
	if resp.StatusCode != http.StatusOK {
		return Page{}, &Dead{fmt.Sprintf("%s answers %d", at.Hostname(), resp.StatusCode)}
	}
	h, err := readHead(resp)
	if err != nil {
		return Page{}, fmt.Errorf("read the page of %s: %w", at.Hostname(), err)
	}
	return newPage(h, first, at), nil
}

// newPage describes the page found at an address.
func newPage(h head, first, at *url.URL) Page {
	p := Page{Title: h.title.text, Description: h.description.text, SiteName: h.site.text, Address: at.String(), SameSite: sameSite(first, at)}
	if to, err := link.Parse(at.String()); err == nil && !to.Excluded && (!to.Short || at.Host == first.Host) {
		p.To, p.Address = to, to.URL
	}
	if own, err := h.baseOf(at).Parse(h.canonical); err == nil && h.canonical != "" && sameSite(own, at) {
		if !strings.ContainsAny(own.Fragment, "!/=") { // a place on the page
			own.Fragment = ""
		}
		if to, err := link.Parse(own.String()); err == nil && !to.Excluded && !to.Short {
			p.Canonical = to
		}
	}
	p.Why = title.Why(p.Title, first.String())
	switch {
	case strings.ContainsRune(p.Title, '\uFFFD'):
		p.Why = "its title cannot be read in its charset"
	case at.Path != first.Path && isRoot(at.Path):
		p.Why = "it leads to the front page of " + at.Hostname()
	case p.Why == "" && isWallAddress(first, at):
		p.Why = title.Wall
	case p.Why == "" && strings.EqualFold(p.Title, p.SiteName) && !isRoot(first.Path):
		p.Why = title.Name
	}
	if strings.ContainsRune(p.Description, '\uFFFD') {
		p.Description = ""
	}
	if strings.ContainsRune(p.SiteName, '\uFFFD') {
		p.SiteName = ""
	}
	return p
}

func isRoot(path string) bool { return strings.Trim(path, "/") == "" }

// follow follows redirects. It returns the first response that is not a redirect, and its
// address. before, if not nil, decides about each address.
func (c *Client) follow(ctx context.Context, at *url.URL, before func(context.Context, *url.URL) error) (*http.Response, *url.URL, error) {
	for hops := 0; ; hops++ {
		if err := c.check(at); err != nil {
			return nil, nil, err
		}
		if before != nil {
			if err := before(ctx, at); err != nil {
				return nil, nil, err
			}
		}
		resp, err := c.get(ctx, at)
		if err != nil {
			return nil, nil, err
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return resp, at, nil
		}
		resp.Body.Close() // its body is not read
		if hops == maxRedirects {
			return nil, nil, &Dead{fmt.Sprintf("it redirects more than %d times", maxRedirects)}
		}
		next, err := resp.Location()
		if err != nil {
			return nil, nil, &Dead{at.Hostname() + " redirects to no address"}
		}
		at = next
	}
}

// check refuses addresses that are never requested, whatever their host is.
func (c *Client) check(at *url.URL) error {
	port := at.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[at.Scheme]
	}
	switch {
	case at.Scheme != "http" && at.Scheme != "https":
		return &Dead{"it leads to an address that is neither http nor https"}
	case at.User != nil:
		return &Dead{"it leads to an address with a user name"}
	case at.Hostname() == "":
		return &Dead{"it leads to an address without a host"}
	case !slices.Contains(c.cfg.Ports, port):
		return &Dead{"it leads to port " + port}
	case len(at.String()) > maxAddress:
		return &Dead{fmt.Sprintf("it leads to an address of more than %d bytes", maxAddress)}
	}
	return nil
}

// get makes one request.
func (c *Client) get(ctx context.Context, at *url.URL) (*http.Response, error) {
	if c.cfg.Turn != nil {
		if err := c.cfg.Turn(ctx, strings.ToLower(at.Hostname())); err != nil {
			return nil, fmt.Errorf("wait to ask %s: %w", at.Hostname(), err)
		}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return nil, &Dead{"its address is not valid"}
	}
	req.Header.Set("User-Agent", c.cfg.UserAgent)
	req.Header.Set("Accept", "text/html,application/xhtml+xml;q=0.9,*/*;q=0.1")
	req.Header.Set("Accept-Encoding", "gzip")
	resp, err := c.transport.RoundTrip(req)
	if err != nil {
		return nil, refusal(at.Hostname(), err)
	}
	switch status := resp.StatusCode; {
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout, status >= 500:
		resp.Body.Close() // its body is not read
		wait, _ := retry.After(resp.Header, time.Now())
		return nil, &busy{status, at.Hostname(), wait}
	}
	return resp, nil
}

// refusal returns the error of a request without a response. For a private address, an unknown
// name or an invalid certificate it is a *Dead.
func refusal(host string, err error) error {
	var dns *net.DNSError
	var certificate *tls.CertificateVerificationError
	var record tls.RecordHeaderError
	switch {
	case errors.Is(err, guard.ErrPrivate):
		return &Dead{host + " has a private address"}
	case errors.As(err, &dns) && dns.IsNotFound:
		return &Dead{host + " does not exist"}
	case errors.As(err, &certificate), errors.As(err, &record):
		return &Dead{host + " has no valid certificate"}
	}
	return fmt.Errorf("ask %s: %w", host, err)
}

// sameSite reports whether two addresses have the same registrable domain.
func sameSite(a, b *url.URL) bool {
	return registrable(a.Hostname()) == registrable(b.Hostname())
}

func registrable(host string) string {
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil { // the host itself is a public suffix, or an IP address
		return host
	}
	return domain
}
