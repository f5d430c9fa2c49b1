package socket

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/weir-social/weir/consumer"
)

// MaxKept is how many bytes of a frame beyond the read limit are kept.
const MaxKept = 16 << 10

// slabBytes is the size of an allocation that many frames share.
const slabBytes = 256 << 10

// Conn is one connection. One goroutine calls Next, and another checks that the
// server is alive.
type Conn struct {
	dialer *Dialer
	host   string
	ws     *websocket.Conn

	once     sync.Once
	done     chan struct{}
	closeErr error // why this side closed it; set before done closes

	lastFrame consumer.MonotonicTime
	proven    consumer.MonotonicTime

	// Used by the reading goroutine.
	slab     []byte
	received bool        // a frame has arrived
	probes   bool        // see Probes
	stop     func() bool // ends the wait for the context of Next

	ending
}

// ending is what a connection did for its dialer, whose lock guards it.
type ending struct {
	served time.Time // when the server began to serve; zero: not yet
	before int       // failures before that
	left   bool      // this side ended the connection for its own reasons
	over   bool      // it has been recorded whether the connection failed
}

func newConn(d *Dialer, host string, ws *websocket.Conn) *Conn {
	k := &Conn{dialer: d, host: host, ws: ws, done: make(chan struct{})}
	now := time.Now()
	k.lastFrame.Set(now)
	k.proven.Set(now)
	go k.watch()
	return k
}

// Host returns the host and port of the server.
func (k *Conn) Host() string { return k.host }

// Proven returns when the connection was last known to be alive.
func (k *Conn) Proven() time.Time { return k.proven.At() }

// Close ends the connection at once. This does not count as a failure of the server.
func (k *Conn) Close() error {
	k.Leave(nil)
	return nil
}

// Leave ends the connection with the error that Next returns. This does not count as a failure
// of the server.
func (k *Conn) Leave(closeErr error) {
	k.dialer.mu.Lock()
	k.left = true
	k.dialer.mu.Unlock()
	k.Fail(closeErr)
}

// Serves records that the server does what was requested. It resets the count of failures.
func (k *Conn) Serves() {
	d := k.dialer
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.over || k.probes || !k.served.IsZero() {
		return
	}
	k.served, k.before = time.Now(), d.failed
	d.failed, d.lastErr = 0, nil
	d.metrics.failed.Set(0)
}

// Refuses ends the connection because the server refuses the request, and counts it as a
// failure. If the server served only briefly before, the count of failures continues:
// otherwise the server would be asked again and again after the shortest wait.
func (k *Conn) Refuses(closeErr error) {
	k.fails(closeErr, true)
	k.Fail(closeErr)
}

// fails records the end of a connection. It counts as a failure if the server refused or did
// not serve.
func (k *Conn) fails(err error, refuses bool) {
	d := k.dialer
	d.mu.Lock()
	defer d.mu.Unlock()
	if k.over {
		return
	}
	k.over = true
	served := !k.served.IsZero()
	briefly := served && time.Since(k.served) < d.cfg.MaxWait
	if refuses && briefly {
		d.failed = k.before
	}
	if served && !(refuses && briefly) {
		d.retries.Reset()
	}
	if !k.probes && (refuses || !served && !k.left) {
		d.recordFailure(err)
	}
}

// Fail ends the connection with the error that Next returns.
func (k *Conn) Fail(closeErr error) {
	k.once.Do(func() {
		k.closeErr = closeErr
		close(k.done)
		k.ws.CloseNow() // the connection is over either way
	})
}

// Probes marks the connection as one that only looks at what the server has. Its end is not a
// failure, and its events do not reset the count of failures. Call it before Next.
func (k *Conn) Probes() { k.probes = true }

// Send sends a text message.
func (k *Conn) Send(ctx context.Context, message []byte) error {
	ctx, cancel := context.WithTimeout(ctx, k.dialer.cfg.DialTimeout)
	defer cancel()
	return k.ws.Write(ctx, websocket.MessageText, message)
}

// Next reads the next frame. It sets Compressed if the message was binary.
func (k *Conn) Next(ctx context.Context) (consumer.Frame, error) {
	if k.stop == nil {
		k.stop = context.AfterFunc(ctx, func() { k.Fail(ctx.Err()) })
	}
	f, err := k.read()
	if check := k.dialer.service.Check; err == nil && check != nil {
		if err = check(f.Data); err != nil && k.dialer.service.Serves {
			k.Refuses(err)
		}
	}
	if err != nil {
		return consumer.Frame{}, k.ended(ctx, err)
	}
	k.lastFrame.Set(f.Arrived)
	k.proven.Set(f.Arrived)
	k.dialer.metrics.bytes.Add(float64(len(f.Data)))
	if !k.received && !k.dialer.service.Serves {
		k.Serves()
	}
	k.received = true
	return f, nil
}

// ended returns why the connection ended.
func (k *Conn) ended(ctx context.Context, err error) error {
	k.Fail(nil) // ends watch too
	k.stop()
	if ctx.Err() != nil {
		k.dialer.mu.Lock()
		k.left = true
		k.dialer.mu.Unlock()
		k.fails(ctx.Err(), false)
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
	failure := err
	if !k.received {
		failure = fmt.Errorf("no event arrived: %w", err)
	}
	k.fails(failure, false)
	return err
}

// read reads one message into memory of its own. The reads have no context: Next closes the
// connection when its context ends.
func (k *Conn) read() (consumer.Frame, error) {
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
		case int64(len(k.slab)-start) > k.dialer.cfg.ReadLimit:
			f.Data = append([]byte(nil), k.slab[start:start+int(min(MaxKept, k.dialer.cfg.ReadLimit))]...)
			f.Truncated, k.slab = true, nil
			if err := k.discard(message); err != nil {
				return consumer.Frame{}, err
			}
			f.Arrived = time.Now()
			return f, nil
		}
	}
}

// mostRead is how often as long as the read limit a message may be. Without an end, it would be read for ever: it
// shows that the server is alive.
const mostRead = 64

// discard reads a message that is too long to its end. Each part of it shows that the server is alive.
func (k *Conn) discard(message io.Reader) error {
	part := make([]byte, 64<<10)
	for left := mostRead * k.dialer.cfg.ReadLimit; left > 0; {
		n, err := message.Read(part)
		left -= int64(n)
		k.lastFrame.Set(time.Now())
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("a frame is longer than %d bytes", mostRead*k.dialer.cfg.ReadLimit)
}

// watch pings a server that has been silent, and ends the connection if it does not
// reply.
func (k *Conn) watch() {
	quiet := k.dialer.cfg.QuietAfter
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
		ctx, cancel := context.WithTimeout(context.Background(), k.dialer.cfg.PongWithin)
		err := k.ws.Ping(ctx)
		cancel()
		switch {
		case err == nil:
			k.proven.Set(sent)
		case time.Since(k.lastFrame.At()) >= k.dialer.cfg.PongWithin:
			k.Fail(fmt.Errorf("the server has been silent for %s and does not reply to a ping", time.Since(sent.Add(-idle)).Round(time.Second)))
			return
		}
		timer.Reset(quiet)
	}
}
