// Package bluesky makes the XRPC calls of Weir: follow lists, members of lists,
// records of accounts. Every error has a class that says whether a retry can help,
// every call ends, and every response is limited in size and storable. The package
// has no access to the database: the caller supplies the limit that processes
// share.
package bluesky

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Config configures a client. Zero values take the defaults.
type Config struct {
	AppView   string   // https://public.api.bsky.app, which needs no login
	Directory string   // https://plc.directory: serves did:plc documents
	Login     *Login   // nil: calls are made without a login
	Relays    []string // list the accounts of a collection; empty: not available
	Mirrors   []string // asked for repositories when an account's own server does not respond

	// Limit is called before every HTTP request, and the function that it returns
	// after the body was read, so it can limit requests across processes. It may
	// wait. Its own error ends the call, as Transient unless it is an *Error. nil:
	// no limit.
	Limit func(ctx context.Context) (done func(), err error)

	// HTTPClient calls the configured hosts. Its transport must be an
	// *http.Transport: hosts from DID documents are called through a guarded copy
	// without proxy.
	HTTPClient *http.Client
	Timeout    time.Duration   // 15 s: for one HTTP request and its body
	Retries    []time.Duration // 1, 2, 4 s: the waits within a call after a transient error
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: not exposed
	Tracer     trace.Tracer          // nil: no traces
	UserAgent  string                // weir
}

// Login is an account and its app password. Calls then go through its PDS, which
// forwards them to its AppView.
type Login struct {
	PDS        string // https://bsky.social
	Identifier string // handle, DID or e-mail address
	Password   string
}

// Client makes calls. Its methods are safe for concurrent use.
type Client struct {
	cfg       Config
	log       *slog.Logger
	appView   string              // origin of the AppView
	directory string              // origin of the directory
	relays    []string            // origins
	mirrors   []string            // origins
	own       map[string]struct{} // configured origins
	loopback  bool                // the AppView is on this machine, so PDSes may be too
	trusted   *http.Client        // for configured origins
	guarded   *http.Client        // for origins from DID documents
	session   *session            // nil: no login
	metrics   *metrics

	mu        sync.Mutex // guards what follows
	hosts     map[string]*host
	documents map[string]document // by DID
}

// New checks the configuration and sets the defaults. It makes no call.
func New(cfg Config) (*Client, error) {
	cfg.AppView = cmp.Or(cfg.AppView, "https://public.api.bsky.app")
	cfg.Directory = cmp.Or(cfg.Directory, "https://plc.directory")
	cfg.Timeout = cmp.Or(cfg.Timeout, 15*time.Second)
	cfg.UserAgent = cmp.Or(cfg.UserAgent, "weir")
	if cfg.Retries == nil {
		cfg.Retries = []time.Duration{time.Second, 2 * time.Second, 4 * time.Second}
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.Tracer = cmp.Or[trace.Tracer](cfg.Tracer, noop.Tracer{})
	c := &Client{cfg: cfg, log: cfg.Logger, own: map[string]struct{}{}, hosts: map[string]*host{}, documents: map[string]document{}}
	var err error
	if c.appView, err = c.configured("AppView", cfg.AppView); err != nil {
		return nil, err
	}
	if c.directory, err = c.configured("directory of DIDs", cfg.Directory); err != nil {
		return nil, err
	}
	for _, raw := range cfg.Relays {
		relay, err := c.configured("relay", raw)
		if err != nil {
			return nil, err
		}
		c.relays = append(c.relays, relay)
	}
	for _, raw := range cfg.Mirrors {
		mirror, err := c.configured("mirror", raw)
		if err != nil {
			return nil, err
		}
		c.mirrors = append(c.mirrors, mirror)
	}
	if cfg.Login != nil {
		pds, err := c.configured("PDS to log in at", cfg.Login.PDS)
		if err != nil {
			return nil, err
		}
		if u, err := url.Parse(pds); err != nil || u.Scheme != "https" && !isLoopback(u.Hostname()) {
			return nil, fmt.Errorf("the password is not sent to %s: use https for the PDS", pds)
		}
		if cfg.Login.Identifier == "" || cfg.Login.Password == "" {
			return nil, errors.New("a login needs a handle and an app password: set both or neither")
		}
		c.session = newSession(pds, *cfg.Login)
	}
	u, err := url.Parse(c.appView)
	if err != nil {
		return nil, fmt.Errorf("parse AppView: %w", err)
	}
	c.loopback = isLoopback(u.Hostname())
	if c.trusted, c.guarded, err = newHTTPClients(cfg.HTTPClient, c.loopback); err != nil {
		return nil, err
	}
	c.metrics = newMetrics(cfg.Registerer)
	return c, nil
}

// configured returns the origin of a configured URL, which is trusted.
func (c *Client) configured(what, raw string) (string, error) {
	o, err := origin(raw)
	if err != nil {
		return "", fmt.Errorf("%q is not a valid %s: expected a URL such as https://public.api.bsky.app: %w", redacted(raw), what, err)
	}
	c.own[o] = struct{}{}
	return o, nil
}

// origin returns the scheme, host and port of a URL that has nothing else.
func origin(raw string) (string, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || len(raw) > 512:
		return "", errors.New("not a URL")
	case u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("neither https nor http")
	case u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Path != "" && u.Path != "/":
		return "", errors.New("expected only a scheme, a host and a port")
	}
	return u.Scheme + "://" + strings.ToLower(u.Host), nil
}

// redacted hides a possible password in an invalid URL.
func redacted(raw string) string {
	if u, err := url.Parse(raw); err == nil {
		return u.Redacted()
	}
	return "(not a URL)"
}

func isLoopback(hostname string) bool {
	ip := net.ParseIP(hostname)
	return hostname == "localhost" || ip != nil && ip.IsLoopback()
}
