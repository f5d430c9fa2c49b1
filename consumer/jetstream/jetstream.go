// Package jetstream is a source that reads a Jetstream server's v1 wire, which both
// generations of servers speak. It filters, decompresses and decodes. It has no access
// to the database.
package jetstream

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"sync"

	"github.com/klauspost/compress/zstd"

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
}

// Client connects to one of several servers. One goroutine at a time uses Connect
// and the connection. SetFilter is safe for concurrent use.
type Client struct {
	cfg    Config
	log    *slog.Logger
	dialer *socket.Dialer

	filterMu sync.Mutex // held while a filter is sent, so that the newest filter is sent last

	mu     sync.Mutex // guards what follows
	filter filter
	zip    *zstd.Decoder // nil: frames are plain, because that is configured or the server has another dictionary
	live   *conn         // the latest connection
}

// readLimit is the maximum length of a frame, in bytes.
const readLimit = 8 << 20

// New checks the configuration and sets the defaults.
func New(cfg Config) (*Client, error) {
	cfg.ReadLimit = cmp.Or(cfg.ReadLimit, readLimit)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	dialer, err := socket.New(cfg.Config, socket.Service{Name: "Jetstream", Path: "/subscribe",
		Example: "wss://jetstream2.us-west.bsky.network/subscribe"})
	if err != nil {
		return nil, err
	}
	if err := (filter{cfg.Filter}).check(); err != nil {
		return nil, err
	}
	c := &Client{cfg: cfg, log: cfg.Logger, dialer: dialer, filter: (filter{cfg.Filter}).sorted()}
	if cfg.Compress {
		if c.zip, err = zstd.NewReader(nil, zstd.WithDecoderDicts(dictionary.V1), zstd.WithDecoderConcurrency(1),
			zstd.WithDecoderMaxMemory(uint64(cfg.ReadLimit)), zstd.WithDecoderLowmem(true)); err != nil {
			return nil, fmt.Errorf("prepare the zstd decoder: %w", err)
		}
	}
	return c, nil
}

// Connect makes a connection and sets its filter, see socket.Dialer.
func (c *Client) Connect(ctx context.Context, at func(host string) consumer.Cursor, report func(consumer.Attempt)) (consumer.Conn, error) {
	var connected *conn
	err := c.dialer.Connect(ctx, func(ctx context.Context, host string, dial func(url.Values) (*socket.Conn, error)) error {
		zip := c.decoder()
		c.mu.Lock()
		filter := c.filter
		c.mu.Unlock()
		ws, err := dial(filter.query(at(host), zip != nil))
		if err != nil {
			return err
		}
		connected = &conn{Conn: ws, client: c, zip: zip, decode: decoder{wanted: c.cfg.Wanted}}
		if err := c.install(ctx, connected, filter); err != nil {
			connected.Close() //nolint:errcheck // the error is returned
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
	if !filter.inURL() {
		if err := k.setFilter(ctx, filter); err != nil {
			return fmt.Errorf("send the filter: %w", err)
		}
	}
	c.filterMu.Lock()
	defer c.filterMu.Unlock()
	c.mu.Lock()
	c.live = k
	latest := c.filter
	c.mu.Unlock()
	if latest.hash() != filter.hash() { // the filter changed during the dial
		if err := k.setFilter(ctx, latest); err != nil {
			return fmt.Errorf("change the filter: %w", err)
		}
	}
	return nil
}
