package jetstream

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/socket"
)

// slabBytes is the size of an allocation that many frames share.
const slabBytes = 256 << 10

// conn is one connection. One goroutine calls Next, and another Decode.
type conn struct {
	*socket.Conn
	client *Client
	host   *host
	events bool          // it is of subscribeEvents, and its filter cannot change
	zip    *zstd.Decoder // nil: frames are plain

	changed atomic.Bool // its filter
	leaving bool        // it ends for a changed filter; guarded by the client's lock
	serves  bool        // used by the reading goroutine

	// Used by the decoding goroutine.
	decode   decoder
	unzipped []byte
}

// Refiltered implements consumer.Refiltered.
func (k *conn) Refiltered() bool { return k.changed.Load() }

// setFilter replaces the filter of the connection.
func (k *conn) setFilter(ctx context.Context, f filter) error {
	message, err := f.update()
	if err != nil {
		return err
	}
	return k.Send(ctx, message)
}

// Decode decodes a frame.
func (k *conn) Decode(f consumer.Frame, m *consumer.Message) error {
	data := f.Data
	switch {
	case f.Truncated:
		k.decode.readBeginning(f, &consumer.Malformed{Cause: "the frame is too long",
			Expected: fmt.Sprintf("at most %d bytes", k.client.cfg.ReadLimit), Received: "more", Raw: f.Data}, m)
		return nil
	case f.Compressed:
		var err error
		data, err = k.unzip(f.Data)
		if bad, ok := errors.AsType[*consumer.Malformed](err); ok {
			m.Reset(f.Data, f.Arrived)
			m.Refuse(bad)
			return nil
		}
		if err != nil {
			return err
		}
	}
	k.decode.decode(data, f.Arrived, m)
	if n := k.decode.notice; n != nil && len(m.Malformed) == 0 {
		return k.heed(n)
	}
	return nil
}

// readBeginning reads the place of a frame that is too long, unless the frame is
// compressed.
func (d *decoder) readBeginning(f consumer.Frame, bad *consumer.Malformed, m *consumer.Message) {
	m.Reset(f.Data, f.Arrived)
	if f.Compressed {
		m.Refuse(bad)
		return
	}
	d.m, d.raw, d.seen = m, f.Data, seen{events: isEvents(f.Data)}
	d.refused(bad)
}
