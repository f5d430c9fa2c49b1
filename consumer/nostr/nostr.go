// Package nostr is a source that reads Nostr relays. Each relay is a stream.
//
// A relay has neither cursors nor times of arrival. Its stored events can only be
// requested by the authors' dates, newest first, in pages that the relay cuts without
// saying so. So a connection first subscribes to new events, and then reads the past page
// by page to its end. Only then does the position move, to the moment before the
// subscription, by our clock. The next connection reads the past from an hour before the
// position, because events reach relays late. An event that arrives twice is dropped by
// its id.
//
// An event is emitted only if its id is the hash of its content. Its signature is its
// proof.
package nostr

import (
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/nostr"
)

// rewind is how long before the position a connection reads again: events reach a relay
// after their authors dated them.
const rewind = time.Hour

// readLimit is the maximum length of a message, in bytes: follow lists have over 100 kB.
const readLimit = 1 << 20

// maxAccounts is the maximum number of authors that one connection can request.
const maxAccounts = 10 * maxAuthors

// Config configures a client.
type Config struct {
	socket.Config // one endpoint: the relay

	Kinds    []int // the kinds to request, besides those that delete; nil: every kind
	Verifier *Verifier
	Key      *[32]byte // the secret key to authenticate with, where a relay demands it; nil: none

	AnswerWithin time.Duration // 2 min: how long the relay may take to respond to a request while the past is read
}

// Client reads one relay. One goroutine at a time uses Connect and the connection.
// SetFilter is safe for concurrent use.
type Client struct {
	cfg     Config
	log     *slog.Logger
	dialer  *socket.Dialer
	notices prometheus.Counter

	mu       sync.Mutex // guards what follows
	everyone bool
	authors  []string // sorted, in hexadecimal
	live     *conn    // the latest connection
}

// New checks the configuration and sets the defaults.
func New(cfg Config) (*Client, error) {
	cfg.ReadLimit = cmp.Or(cfg.ReadLimit, readLimit)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.HTTPClient = cmp.Or(cfg.HTTPClient, socket.NoRedirects)
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	cfg.MinWait = cmp.Or(cfg.MinWait, 500*time.Millisecond)
	cfg.AnswerWithin = cmp.Or(cfg.AnswerWithin, 2*time.Minute)
	if len(cfg.Endpoints) != 1 || cfg.Kinds != nil && len(cfg.Kinds) == 0 {
		return nil, fmt.Errorf("a Nostr stream has one relay and at least one kind: received %d relays and %d kinds", len(cfg.Endpoints),
			len(cfg.Kinds))
	}
	dialer, err := socket.New(cfg.Config, socket.Service{
		Name: "Nostr relay", Path: "/", Example: "wss://relay.example", Check: refused, Serves: true,
	})
	if err != nil {
		return nil, err
	}
	return &Client{cfg: cfg, log: cfg.Logger, dialer: dialer,
		notices: promauto.With(cfg.Registerer).NewCounter(prometheus.CounterOpts{Name: "weir_nostr_notices_total",
			Help: "Notices of the relay, which are for people. The log has the first ones of a connection."})}, nil
}

// Capabilities returns the capabilities of a relay.
func (c *Client) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{
		Wire: Wire(c.cfg.Verifier, c.cfg.Endpoints), TimeCursor: true, Rewind: rewind, Complete: true, Overlaps: true, Filters: true,
		Accounts: maxAccounts,
	}
}

// FilterHash returns a hash of the filter. A cursor is valid for one filter.
func (c *Client) FilterHash() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return hashFilter(c.cfg.Kinds, c.everyone, c.authors)
}

// SetFilter changes what the next connections request, and ends the current one. It
// ignores accounts of other networks.
func (c *Client) SetFilter(_ context.Context, wanted consumer.Filter) error {
	var authors []string
	for _, did := range wanted.Accounts {
		if key, ok := nostr.ParseDID(did); ok {
			authors = append(authors, hex.EncodeToString(key[:]))
		}
	}
	slices.Sort(authors)
	c.mu.Lock()
	same := c.everyone == wanted.Everyone && slices.Equal(c.authors, authors)
	c.everyone, c.authors = wanted.Everyone, authors
	live := c.live
	c.mu.Unlock()
	if live != nil && !same {
		live.Leave(errFilter)
	}
	return nil
}

// Connect makes a connection and subscribes, see socket.Dialer.
func (c *Client) Connect(ctx context.Context, at func(host string) consumer.Cursor, report func(consumer.Attempt)) (consumer.Conn, error) {
	var connected *conn
	err := c.dialer.Connect(ctx, func(ctx context.Context, host string, dial func(url.Values) (*socket.Conn, error)) error {
		limits := readLimits(ctx, c.cfg.HTTPClient, c.cfg.Endpoints[0], c.cfg.UserAgent, c.cfg.DialTimeout, c.log)
		c.mu.Lock()
		filters, everyone, authors := divide(c.cfg.Kinds, c.everyone, c.authors, limits), c.everyone, c.authors
		c.mu.Unlock()
		from := at(host)
		ws, err := dial(nil)
		if err != nil {
			return err
		}
		connected = newConn(c, ws, filters, limits, from)
		if err := connected.subscribe(ctx); err != nil {
			connected.Close() // the error is returned
			return fmt.Errorf("subscribe: %w", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.live = connected; everyone != c.everyone || !slices.Equal(authors, c.authors) { // the filter changed during the dial
			connected.Leave(errFilter)
		}
		return nil
	}, report)
	if err != nil {
		return nil, err
	}
	return connected, nil
}
