// Package archive reads the archive of a Jetstream server: sealed segments of everything that the
// server has seen, without what was deleted since. It finds the blocks of an interval, downloads
// and checks them, and yields their events as frames of the wire that package jetstream decodes.
// A damaged block is named, requested again, and never yielded. It has no access to the database.
package archive

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
	"sync/atomic"
	"time"
)

// Config configures a client.
type Config struct {
	Endpoints []string // of Jetstream servers, as in consumer/jetstream
	Key       string   // sent over TLS or to this machine only; empty: none
	Limit     func(context.Context) (done func(), err error)
	HTTP      *http.Client
	UserAgent string
	Logger    *slog.Logger
	Retry     time.Duration // the first wait before a request is repeated; 250 ms when zero
}

// Client reads the archives of some servers. It is safe for concurrent use.
type Client struct {
	cfg     Config
	servers []server
	failed  atomic.Pointer[string] // the host whose archive could not be read the last time: others are asked before it
}

// server is where an archive may be.
type server struct {
	base string // URL
	host string
	key  string // "": none is sent
}

// New checks the endpoints.
func New(cfg Config) (*Client, error) {
	c := &Client{cfg: cfg}
	c.cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	c.cfg.Retry = cmp.Or(cfg.Retry, 250*time.Millisecond)
	if cfg.Limit == nil {
		c.cfg.Limit = func(context.Context) (func(), error) { return func() {}, nil }
	}
	client := http.Client{}
	if cfg.HTTP != nil {
		client = *cfg.HTTP
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse } // a server is not to choose others
	c.cfg.HTTP = &client
	for _, endpoint := range cfg.Endpoints {
		u, err := url.Parse(strings.TrimSpace(endpoint))
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("%q is not the URL of a Jetstream server", endpoint)
		}
		s := server{base: "http://" + u.Host, host: u.Host}
		if u.Scheme == "wss" || u.Scheme == "https" {
			s.base = "https://" + u.Host
		}
		if strings.HasPrefix(s.base, "https:") || loopback(u.Hostname()) {
			s.key = cfg.Key
		}
		c.servers = append(c.servers, s)
	}
	return c, nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// ErrNone means that none of the servers has an archive.
var ErrNone = errors.New("no server of WEIR_JETSTREAM has an archive")

// ErrChanged means that the server has rewritten a segment since it was planned. A new plan has
// the new one.
var ErrChanged = errors.New("the server has rewritten a segment")

// A DamagedError names a segment, or a block of it, that is not as its server describes it.
type DamagedError struct {
	Segment string
	Block   int // -1: the index of the blocks
	Cause   string
}

func (e *DamagedError) Error() string {
	if e.Block < 0 {
		return fmt.Sprintf("the index of segment %s is damaged: %s", e.Segment, e.Cause)
	}
	return fmt.Sprintf("block %d of segment %s is damaged: %s", e.Block, e.Segment, e.Cause)
}

// A Query selects events.
type Query struct {
	From, To    time.Time             // when the server saw them, inclusive
	Collections []string              // names and prefixes such as app.bsky.feed.*; none: all
	DIDs        []string              // the accounts, if a plan should name only their blocks
	Wants       func(did []byte) bool // selects the accounts; nil: all
}

const (
	maxPlanCollections = 100    // the server's limits
	maxPlanDIDs        = 10_000 //
)

// A Plan is how an interval is read.
type Plan struct {
	Query
	Host   string
	Begins time.Time // of the archive's oldest event; zero: the archive is empty
	Sealed time.Time // of the newest event that can be read; zero: as above
	Calls  int       // how many requests it will take, about

	server   server
	segments []planned
}

// Whole reports whether the archive has everything of the interval.
func (p *Plan) Whole() bool {
	return !p.Begins.IsZero() && !p.Begins.After(p.From) && p.Sealed.After(p.To)
}

// A Portion is the events of a block.
type Portion struct {
	Frames  [][]byte
	Through time.Time // all events before this time are in this portion or an earlier one
}
