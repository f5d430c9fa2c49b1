// Package jetstream is a source that reads a Jetstream server: subscribeEvents if the server
// has it, else /subscribe, which older servers have. It filters, decompresses and decodes. It
// has no access to the database.
package jetstream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream/dictionary"
	"github.com/weir-social/weir/consumer/socket"
)

// Config configures a client.
type Config struct {
	socket.Config // ReadLimit is enough for 1 MiB of CBOR, which is at most 6 MiB of JSON

	Filter   consumer.Filter              // the first filter
	Compress bool                         // request zstd frames
	Wanted   func(collection string) bool // the collections whose records are decoded; nil: all

	RetryEvents time.Duration // 10 min: how long a host that refused subscribeEvents is not asked for it again
	RenewEvery  time.Duration // 1 s: how often a filter may change; longer for more than 500 accounts
}

// Client connects to one of several servers. One goroutine at a time uses Connect
// and the connection. SetFilter is safe for concurrent use.
type Client struct {
	cfg    Config
	log    *slog.Logger
	dialer *socket.Dialer

	filterMu sync.Mutex // held while a filter is sent, so that the newest filter is sent last

	notices *prometheus.CounterVec

	mu      sync.Mutex // guards what follows
	filter  filter
	whole   int           // a list of so many accounts could not be sent, so the whole network is requested; 0: the list is sent
	zip     *zstd.Decoder // of /subscribe; nil: frames are plain, because that is configured or the server has another dictionary
	live    *conn         // the latest connection
	renewed time.Time     // when a filter last changed, or will
	hosts   map[string]*host
}

// readLimit is the maximum length of a frame, in bytes.
const readLimit = 8 << 20

// New checks the configuration and sets the defaults.
func New(cfg Config) (*Client, error) {
	cfg.ReadLimit = cmp.Or(cfg.ReadLimit, readLimit)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.RetryEvents = cmp.Or(cfg.RetryEvents, 10*time.Minute)
	cfg.RenewEvery = cmp.Or(cfg.RenewEvery, time.Second)
	cfg.Endpoints = slices.Clone(cfg.Endpoints)
	for i, e := range cfg.Endpoints { // an endpoint may be named by either service
		cfg.Endpoints[i] = strings.Replace(e, eventsPath, subscribePath, 1)
	}
	dialer, err := socket.New(cfg.Config, socket.Service{Name: "Jetstream", Path: subscribePath,
		Example: "wss://jetstream.us-west.bsky.network", Serves: true})
	if err != nil {
		return nil, err
	}
	if err := (filter{cfg.Filter}).check(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, log: cfg.Logger, dialer: dialer, filter: (filter{cfg.Filter}).sorted(), hosts: map[string]*host{}}
	c.notices = promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{Name: "weir_jetstream_notices_total",
		Help: "Notices of Jetstream servers, by name. ConsumerTooSlow: the consumer fell behind and was disconnected."}, []string{"name"})
	if cfg.Compress {
		if c.zip, err = c.newDecoder(dictionary.V1); err != nil {
			return nil, fmt.Errorf("prepare the zstd decoder: %w", err)
		}
	}
	return c, nil
}

// Connect makes a connection and sets its filter, see socket.Dialer.
func (c *Client) Connect(ctx context.Context, at func(host string) consumer.Cursor, report func(consumer.Attempt)) (consumer.Conn, error) {
	var connected *conn
	err := c.dialer.Connect(ctx, func(ctx context.Context, host string, dial func(url.Values) (*socket.Conn, error)) error {
		c.mu.Lock()
		filter := c.requested()
		c.mu.Unlock()
		var err error
		if connected, err = c.open(ctx, host, at(host), filter, dial); err != nil {
			return err
		}
		if err := c.install(ctx, connected, filter); err != nil {
			connected.Close() // the error is returned
			return err
		}
		return nil
	}, report)
	if err != nil {
		return nil, err
	}
	return connected, nil
}

// install makes k the connection whose filter SetFilter changes. If the filter fits
// into the URL, the server already has it.
func (c *Client) install(ctx context.Context, k *conn, filter filter) error {
	if !k.events && !filter.inURL() {
		if err := k.setFilter(ctx, filter); err != nil {
			return fmt.Errorf("send the filter: %w", err)
		}
	}
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	c.mu.Lock()
	c.live = k
	latest := c.requested()
	c.mu.Unlock()
	if latest.hash() == filter.hash() {
		return nil
	}
	return c.change(ctx, k, latest) // the filter changed during the dial
}
