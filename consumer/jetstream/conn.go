package jetstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer"
)

// maxKept is how many bytes are kept of a frame beyond the read limit.
const maxKept = 16 << 10

// slabBytes is the size of an allocation that many frames share.
const slabBytes = 256 << 10

// conn is one connection. One goroutine calls Next, another Decode, and a third
// checks that the server is alive.
type conn struct {
	client *Client
	host   string
	ws     *websocket.Conn
	zip    *zstd.Decoder // nil: frames are plain

	once     sync.Once
	done     chan struct{}
	closeErr error // why this side closed it; set before done closes

	lastFrame consumer.MonotonicTime
	proven    consumer.MonotonicTime

	// Of the reading goroutine.
	slab     []byte
	received bool        // an event has arrived
	stop     func() bool // ends the wait for the context of Next

	// Of the decoding goroutine.
	decode   decoder
	unzipped []byte
}

func newConn(c *Client, host string, ws *websocket.Conn, zip *zstd.Decoder) *conn {
	k := &conn{client: c, host: host, ws: ws, zip: zip, done: make(chan struct{}), decode: decoder{wanted: c.cfg.Wanted}}
	now := time.Now()
	k.lastFrame.Set(now)
	k.proven.Set(now)
	go k.watch()
	return k
}

// Host returns the host and port of the server.
func (k *conn) Host() string { return k.host }

// Proven returns when the connection was last known to be alive.
func (k *conn) Proven() time.Time { return k.proven.At() }

// Close ends the connection at once.
func (k *conn) Close() error {
	k.fail(nil)
	return nil
}

// fail ends the connection with the error that Next returns.
func (k *conn) fail(closeErr error) {
	k.once.Do(func() {
		k.closeErr = closeErr
		close(k.done)
		k.client.forgetConn(k)
		k.ws.CloseNow() //nolint:errcheck // it is over either way
	})
}

func (c *Client) forgetConn(k *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == k {
		c.live = nil
	}
}

// setFilter replaces the filter of the connection.
func (k *conn) setFilter(ctx context.Context, f filter) error {
	message, err := f.update()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, k.client.cfg.DialTimeout)
	defer cancel()
	return k.ws.Write(ctx, websocket.MessageText, message)
}

// Next reads the next frame.
func (k *conn) Next(ctx context.Context) (consumer.Frame, error) {
	if k.stop == nil {
		k.stop = context.AfterFunc(ctx, func() { k.fail(ctx.Err()) })
	}
	f, err := k.read()
	if err != nil {
		return consumer.Frame{}, k.ended(ctx, err)
	}
	k.lastFrame.Set(f.Arrived)
	k.proven.Set(f.Arrived)
	k.client.metrics.bytes.Add(float64(len(f.Data)))
	if !k.received {
		k.received = true
		k.client.resetFailures()
	}
	return f, nil
}

// ended returns why the connection ended.
func (k *conn) ended(ctx context.Context, err error) error {
	k.fail(nil) // ends watch too
	k.stop()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	<-k.done
	if k.closeErr != nil {
		err = k.closeErr
	}
	var closed websocket.CloseError
	switch {
	case errors.As(err, &closed):
		err = fmt.Errorf("the server closed the connection: %d %s", closed.Code, consumer.Shorten(closed.Reason))
	case errors.Is(err, io.EOF):
		err = errors.New("the connection was lost")
	}
	if !k.received {
		k.client.recordFailure(fmt.Errorf("no event arrived: %w", err))
	}
	return err
}

// read reads one message into memory of its own. The reads have no context: a
// context that ends closes the connection, see Next.
func (k *conn) read() (consumer.Frame, error) {
	kind, message, err := k.ws.Reader(context.Background())
	if err != nil {
		return consumer.Frame{}, err
	}
	f := consumer.Frame{Compressed: kind == websocket.MessageBinary}
	if cap(k.slab)-len(k.slab) < 4<<10 {
		k.slab = make([]byte, 0, slabBytes)
	}
	start := len(k.slab)
	for {
		if len(k.slab) == cap(k.slab) { // the frame continues in a larger slab
			larger := make([]byte, len(k.slab)-start, max(slabBytes, 2*(len(k.slab)-start)))
			copy(larger, k.slab[start:])
			k.slab, start = larger, 0
		}
		n, err := message.Read(k.slab[len(k.slab):cap(k.slab)])
		k.slab = k.slab[:len(k.slab)+n]
		switch {
		case errors.Is(err, io.EOF):
			f.Data, f.Arrived = k.slab[start:len(k.slab):len(k.slab)], time.Now()
			return f, nil
		case err != nil:
			return consumer.Frame{}, err
		case int64(len(k.slab)-start) > k.client.cfg.ReadLimit:
			f.Data = append([]byte(nil), k.slab[start:start+int(min(maxKept, k.client.cfg.ReadLimit))]...)
			f.Truncated, k.slab = true, nil
			if err := k.discard(message); err != nil {
				return consumer.Frame{}, err
			}
			f.Arrived = time.Now()
			return f, nil
		}
	}
}

// discard reads a message of any length to its end. Each part of it shows that the
// server is alive.
func (k *conn) discard(message io.Reader) error {
	part := make([]byte, 64<<10)
	for {
		_, err := message.Read(part)
		k.lastFrame.Set(time.Now())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// watch pings a server that has been silent, and ends the connection if it does not
// reply.
func (k *conn) watch() {
	quiet := k.client.cfg.QuietAfter
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for {
		select {
		case <-k.done:
			return
		case <-timer.C:
		}
		idle := time.Since(k.lastFrame.At())
		if idle < quiet {
			timer.Reset(quiet - idle)
			continue
		}
		sent := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), k.client.cfg.PongWithin)
		err := k.ws.Ping(ctx)
		cancel()
		switch {
		case err == nil:
			k.proven.Set(sent)
		case time.Since(k.lastFrame.At()) >= k.client.cfg.PongWithin:
			k.fail(fmt.Errorf("the server has been silent for %s and does not reply to a ping", time.Since(sent.Add(-idle)).Round(time.Second)))
			return
		}
		timer.Reset(quiet)
	}
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
	return nil
}

// readBeginning reads the place of a frame that is too long, if it is not
// compressed.
func (d *decoder) readBeginning(f consumer.Frame, bad *consumer.Malformed, m *consumer.Message) {
	m.Reset(f.Data, f.Arrived)
	if f.Compressed {
		m.Refuse(bad)
		return
	}
	d.m, d.raw = m, f.Data
	d.refused(bad)
}
