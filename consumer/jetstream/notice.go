package jetstream

import (
	"bytes"
	"context"
	"fmt"

	"github.com/weir-social/weir/consumer"
)

// The names of notices.
const (
	consumerTooSlow = "ConsumerTooSlow" // an error
	internalError   = "InternalError"   // an error
	outdatedCursor  = "OutdatedCursor"  // the server starts later than requested, which shows as a gap
	futureCursor    = "FutureCursor"    // the server has not numbered so far, and starts at its tip
	cursorTooOld    = "CursorTooOld"    // the same as outdatedCursor, for a number: the server refuses the connection
)

// A notice is what the server says about the connection.
type notice struct {
	name, message string
	fatal         bool // the server closes the connection
}

func (n *notice) Error() string {
	if n.message == "" {
		return consumer.Shorten(n.name)
	}
	return consumer.Shorten(n.name) + ": " + consumer.Shorten(n.message)
}

// count counts a notice in the metrics.
func (c *Client) count(name string) {
	switch name {
	case consumerTooSlow, internalError, outdatedCursor, futureCursor, cursorTooOld:
	default:
		name = "other"
	}
	c.notices.WithLabelValues(name).Inc()
}

// Next reads the next frame. The server serves from the first frame on that is no notice.
func (k *conn) Next(ctx context.Context) (consumer.Frame, error) {
	f, err := k.Conn.Next(ctx)
	if err == nil && !k.serves && !k.isNotice(f) {
		k.serves = true
		k.Serves()
	}
	return f, err
}

func (k *conn) isNotice(f consumer.Frame) bool {
	if !k.events {
		return false
	}
	data := f.Data
	if f.Compressed && k.zip != nil {
		data, _ = k.zip.DecodeAll(data, nil) // Decode reports it
	}
	return bytes.HasPrefix(data, []byte(`{"$type":"error"`)) || bytes.Contains(data[:min(len(data), 128)], []byte(eventTypes+"info"))
}

// heed obeys a notice. An error ends the connection.
func (k *conn) heed(n *notice) error {
	k.client.count(n.name)
	switch {
	case n.fatal:
		err := fmt.Errorf("the server ended the connection: %w", n)
		k.Fail(err)
		return err
	case n.name == futureCursor:
		return fmt.Errorf("%w: %w", consumer.ErrCursorRefused, n)
	}
	k.client.log.Warn("jetstream_notice", "host", k.Host(), "name", consumer.Shorten(n.name), "message", consumer.Shorten(n.message))
	return nil
}
