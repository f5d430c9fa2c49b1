package firehose

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
)

// readLimit is slightly above the longest valid frame, so that the decoder can name
// the part that is too long.
const readLimit = maxFrame + 1<<10

// Config configures a client.
type Config struct {
	socket.Config                              // ReadLimit: the network's limit
	Wanted        func(collection string) bool // the collections whose records are decoded; nil: all
	Verifier      *Verifier                    // checks signatures; nil: they are not checked
}

// Client reads one of several servers: relays, or servers of single accounts. One
// goroutine at a time uses Connect and the connection.
type Client struct {
	cfg     Config
	log     *slog.Logger
	dialer  *socket.Dialer
	notices *prometheus.CounterVec
}

// New checks the configuration and sets the defaults.
func New(cfg Config) (*Client, error) {
	cfg.ReadLimit = cmp.Or(cfg.ReadLimit, readLimit)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	c := &Client{cfg: cfg, log: cfg.Logger}
	var err error
	c.dialer, err = socket.New(cfg.Config, socket.Service{Name: "relay", Path: "/xrpc/com.atproto.sync.subscribeRepos",
		Example: "wss://relay1.us-east.bsky.network", Check: c.check})
	if err != nil {
		return nil, err
	}
	c.notices = promauto.With(cfg.Registerer).NewCounterVec(prometheus.CounterOpts{Name: "weir_firehose_notices_total",
		Help: "Notices of servers about the connection, by name. ConsumerTooSlow: the consumer fell behind and was disconnected."},
		[]string{"name"})
	return c, nil
}

// Capabilities returns the capabilities that relays and account servers have in
// common. They differ in whether a cursor is inclusive, so the consumer requests
// the number before the one it needs. A relay omits the past events of an account
// that it took down, so several anchors are requested. To start at a time, the
// client searches by the dates of the events.
func (c *Client) Capabilities() consumer.Capabilities {
	return consumer.Capabilities{Wire: Wire(c.cfg.Wanted, c.cfg.Verifier), TimeCursor: true, Informal: true, Exclusive: true, Anchors: 8}
}

// Connect makes a connection, see socket.Dialer.
func (c *Client) Connect(ctx context.Context, at func(host string) consumer.Cursor, report func(consumer.Attempt)) (consumer.Conn, error) {
	var connected *conn
	err := c.dialer.Connect(ctx, func(ctx context.Context, host string, dial func(url.Values) (*socket.Conn, error)) error {
		parameters := url.Values{}
		switch from := at(host); from.Kind {
		case consumer.CursorSeq:
			parameters.Set("cursor", strconv.FormatInt(from.Value, 10))
		case consumer.CursorTime:
			since, err := c.find(ctx, dial, time.UnixMicro(from.Value))
			if err != nil {
				return err
			}
			parameters.Set("cursor", strconv.FormatInt(since, 10))
		}
		ws, err := dial(parameters)
		if err == nil {
			connected = &conn{Conn: ws, client: c, decoder: decoder{wanted: c.cfg.Wanted, verifier: c.cfg.Verifier}}
		}
		return err
	}, report)
	if err != nil {
		return nil, err
	}
	return connected, nil
}

// check returns the notice of an error frame as an error. The server closes the
// connection after it, and it does not show that the server works, as an event
// does.
func (c *Client) check(frame []byte) error {
	d := decoder{reader: reader{data: frame}}
	if d.object(d.headerField) != nil || d.op != opError {
		return nil // Decode reports what is wrong with it
	}
	var m consumer.Message
	notice := d.decode(frame, m.Arrived, &m)
	if notice == nil {
		notice = &Notice{Name: "an unreadable error", Fatal: true}
	}
	c.count(notice)
	if notice.Name == FutureCursor {
		return fmt.Errorf("%w: %w", consumer.ErrCursorRefused, notice)
	}
	return fmt.Errorf("the server ended the connection: %w", notice)
}

// count counts a notice in the metrics.
func (c *Client) count(n *Notice) {
	switch n.Name {
	case FutureCursor, ConsumerTooSlow, OutdatedCursor:
		c.notices.WithLabelValues(n.Name).Inc()
	default:
		c.notices.WithLabelValues("other").Inc()
	}
}

// conn is one connection. One goroutine calls Next, and another Decode.
type conn struct {
	*socket.Conn
	client  *Client
	decoder decoder // of the decoding goroutine
}

// Next reads the next frame.
func (k *conn) Next(ctx context.Context) (consumer.Frame, error) {
	f, err := k.Conn.Next(ctx)
	f.Compressed = false // all frames are binary
	return f, err
}

// Decode decodes a frame. A notice has no events. It is logged unless it is an
// error.
func (k *conn) Decode(f consumer.Frame, m *consumer.Message) error {
	if f.Truncated {
		k.decoder.decodeBeginning(f.Data, f.Arrived, m)
		return nil
	}
	if notice := k.decoder.decode(f.Data, f.Arrived, m); notice != nil {
		k.client.count(notice)
		k.client.log.Warn("relay_notice", "host", k.Host(), "name", notice.Name, "message", notice.Message)
	}
	return nil
}
