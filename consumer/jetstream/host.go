package jetstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
)

// The services of a host. docs/decisions/jetstream-wires.md says when which is used.
const (
	subscribePath  = "/subscribe"
	eventsPath     = "/xrpc/network.bsky.jetstream.subscribeEvents"
	dictionaryPath = "/xrpc/network.bsky.jetstream.getZstdDictionary"
	subprotocol    = "xrpc.v1.json"
)

// dialer connects to /subscribe of the host of an attempt.
type dialer func(url.Values) (*socket.Conn, error)

// host is what a host has shown to offer. The goroutine that connects uses it.
type host struct {
	until   time.Time // when older and longest are forgotten
	older   bool      // it has only /subscribe
	longest int       // a list of so many accounts was too long for its URL; 0: none was

	zip        *zstd.Decoder // with its dictionary for subscribeEvents; nil: not fetched
	dictionary string        // its id
	plain      bool          // frames are requested uncompressed; guarded by the client's lock
}

// host returns what is known of a host.
func (c *Client) host(name string) *host {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.hosts[name]
	if h == nil {
		h = &host{}
		c.hosts[name] = h
	}
	if time.Now().After(h.until) {
		h.older, h.longest = false, 0
	}
	return h
}

// open connects to a host: to subscribeEvents if the host has it and the list of accounts fits
// into its URL, else to /subscribe.
func (c *Client) open(ctx context.Context, name string, at consumer.Cursor, f filter, dial dialer) (*conn, error) {
	h := c.host(name)
	var first error // why it is not subscribeEvents
	long := f.parameters() > maxParameters || h.longest > 0 && len(f.Accounts) >= h.longest
	if !h.older && !long {
		k, err := c.openEvents(ctx, h, at, f)
		refused, responded := errors.AsType[*socket.Refused](err)
		if !responded || errors.Is(err, consumer.ErrCursorRefused) {
			return k, err
		}
		if long = tooLong(refused.Status, len(f.Accounts)); !long && !olderHost(refused.Status) {
			return nil, err
		}
		first = err
	}
	zip := c.decoder()
	ws, err := dial(f.query(at, zip != nil))
	refused, responded := errors.AsType[*socket.Refused](err)
	switch {
	case err == nil:
	case responded && long && olderHost(refused.Status):
		c.mu.Lock()
		c.whole = len(f.Accounts)
		c.mu.Unlock()
		return nil, fmt.Errorf("%w: the list of accounts is too long for %s, so the whole network is requested: %w",
			consumer.ErrCursorRefused, name, err)
	case first != nil:
		return nil, fmt.Errorf("%w (subscribeEvents: %w)", err, first)
	default:
		return nil, err
	}
	if first != nil {
		h.until = time.Now().Add(c.cfg.RetryEvents)
		if h.older = !long; long {
			h.longest = len(f.Accounts)
		}
		c.log.Info("subscribe_used", "host", name, "accounts", len(f.Accounts), "error", first)
	}
	return &conn{Conn: ws, client: c, zip: zip, decode: decoder{wanted: c.cfg.Wanted}}, nil
}

// openEvents connects to subscribeEvents.
func (c *Client) openEvents(ctx context.Context, h *host, at consumer.Cursor, f filter) (*conn, error) {
	request := socket.Request{Path: eventsPath, Subprotocol: subprotocol, Parameters: f.events(at)}
	zip := c.dictionary(ctx, h)
	var ws *socket.Conn
	var err error
	for range 2 {
		request.Parameters.Del("zstdDictionary")
		if zip != nil {
			request.Parameters.Set("zstdDictionary", h.dictionary)
		}
		if ws, err = c.dialer.Dial(ctx, request); zip == nil || refusalName(err) != "UnknownZstdDictionary" {
			break
		}
		unknown := h.dictionary
		h.zip = nil
		if zip = c.dictionary(ctx, h); h.dictionary == unknown {
			zip = nil
		}
	}
	switch {
	case err == nil:
		return &conn{Conn: ws, client: c, host: h, zip: zip, events: true, decode: decoder{wanted: c.cfg.Wanted}}, nil
	case refusalName(err) == cursorTooOld && at.Kind == consumer.CursorSeq:
		c.count(cursorTooOld)
		return nil, fmt.Errorf("%w: %w", consumer.ErrCursorRefused, err)
	}
	return nil, err
}

// refusalName returns the name of the error with which a service refused, or "".
func refusalName(err error) string {
	refused, ok := errors.AsType[*socket.Refused](err)
	var e struct{ Error string }
	if !ok || json.Unmarshal(refused.Body, &e) != nil {
		return ""
	}
	return e.Error
}

// tooLong reports whether a status may mean that the URL is too long for the host, or for a
// proxy in front of it.
func tooLong(status, accounts int) bool {
	switch status {
	case http.StatusRequestEntityTooLarge, http.StatusRequestURITooLong, http.StatusRequestHeaderFieldsTooLarge:
		return accounts > 0
	case http.StatusBadRequest:
		return accounts > maxDIDsInURL
	}
	return false
}

// olderHost reports whether a host that responds with a status may have only the other service.
func olderHost(status int) bool {
	switch status {
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return status < http.StatusInternalServerError || status == http.StatusNotImplemented
}
