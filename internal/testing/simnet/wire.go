package simnet

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/weir-social/weir/internal/testing/loopback"
)

// listener tracks its connections, so that faults can be applied to them.
type listener struct {
	net.Listener
	limit time.Duration // how long a write may take

	mu      sync.Mutex
	conns   map[*wire]bool
	orphans map[net.Conn]bool // stalled connections that the server has given up; nil after stalls have ended
	empty   chan struct{}     // closed with the last connection; nil unless drain waits
}

func listen(port *loopback.Port, limit time.Duration) (*listener, error) {
	inner, err := port.Listen()
	if err != nil {
		return nil, fmt.Errorf("start the simulated network: %w", err)
	}
	return &listener{Listener: inner, limit: limit, conns: map[*wire]bool{}, orphans: map[net.Conn]bool{}}, nil
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: c, home: l, gate: make(chan struct{}), gone: make(chan struct{})}
	close(w.gate)
	l.mu.Lock()
	l.conns[w] = true
	l.mu.Unlock()
	return w, nil
}

func (l *listener) all() []*wire {
	l.mu.Lock()
	defer l.mu.Unlock()
	wires := make([]*wire, 0, len(l.conns))
	for w := range l.conns {
		wires = append(wires, w)
	}
	return wires
}

func (l *listener) forget(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, w)
	if len(l.conns) == 0 && l.empty != nil {
		close(l.empty)
		l.empty = nil
	}
}

// keepOrphan keeps a connection that the server has given up open and silent,
// until its client leaves or the stall ends.
func (l *listener) keepOrphan(orphan net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orphans == nil {
		orphan.Close() // nothing depends on it
		return
	}
	l.orphans[orphan] = true
	go func() {
		io.Copy(io.Discard, orphan) // any error ends it
		orphan.Close()              // nothing depends on it
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.orphans, orphan)
	}()
}

// release ends every stall permanently.
func (l *listener) release() {
	for _, w := range l.all() {
		w.release()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for orphan := range l.orphans {
		orphan.Close() // nothing depends on it
	}
	l.orphans = nil
}

// drain waits until no connection is left, and cuts those left after d.
func (l *listener) drain(d time.Duration) {
	l.mu.Lock()
	if len(l.conns) == 0 {
		l.mu.Unlock()
		return
	}
	empty := make(chan struct{})
	l.empty = empty
	l.mu.Unlock()
	limit := time.NewTimer(d)
	defer limit.Stop()
	select {
	case <-empty:
	case <-limit.C:
	}
	for _, w := range l.all() {
		w.cut()
	}
}

// wire is a connection that can be stalled and cut. It buffers small writes
// while more will follow, and gives up a peer that does not read.
type wire struct {
	net.Conn
	home *listener

	mu     sync.Mutex
	stream bool          // a Jetstream client, not a plain HTTP request
	gate   chan struct{} // closed while bytes may pass
	gone   chan struct{} // closed when this end has closed

	out       sync.Mutex // keeps writes in order; held while writing
	gathering bool
	gathered  []byte
}

// gatherLimit is the limit of buffered bytes.
const gatherLimit = 64 << 10

type wireKey struct{}

func withWire(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, wireKey{}, c)
}

// wireOf returns the connection of a request.
func wireOf(ctx context.Context) *wire {
	w, _ := ctx.Value(wireKey{}).(*wire)
	return w
}

// pass waits up to limit while the connection is stalled; without a limit if it
// is zero.
func (w *wire) pass(limit time.Duration) error {
	w.mu.Lock()
	gate := w.gate
	w.mu.Unlock()
	if isClosed(gate) {
		return nil
	}
	var until <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		until = timer.C
	}
	select {
	case <-gate:
		return nil
	case <-w.gone:
		return net.ErrClosed
	case <-until:
		return os.ErrDeadlineExceeded
	}
}

// Read returns no bytes that arrive during a stall.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		return n, err
	}
	if err := w.pass(0); err != nil {
		return 0, err
	}
	return n, nil
}

func (w *wire) Write(p []byte) (int, error) {
	w.out.Lock()
	defer w.out.Unlock()
	if w.gathering && len(w.gathered)+len(p) <= gatherLimit {
		w.gathered = append(w.gathered, p...)
		return len(p), nil
	}
	if err := w.push(); err != nil {
		return 0, err
	}
	return w.put(p)
}

// gather buffers small writes until flush, so that thousands of frames of
// history take a handful of system calls.
func (w *wire) gather() {
	w.out.Lock()
	defer w.out.Unlock()
	w.gathering = true
}

func (w *wire) flush() error {
	w.out.Lock()
	defer w.out.Unlock()
	w.gathering = false
	return w.push()
}

// push writes the buffered bytes.
func (w *wire) push() error {
	if len(w.gathered) == 0 {
		return nil
	}
	_, err := w.put(w.gathered)
	w.gathered = w.gathered[:0]
	return err
}

func (w *wire) put(p []byte) (int, error) {
	if err := w.pass(w.home.limit); err != nil {
		return 0, err
	}
	if err := w.SetWriteDeadline(time.Now().Add(w.home.limit)); err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

// Close closes this end. A stalled client is not notified: for the client, the
// host has become silent.
func (w *wire) Close() error {
	w.mu.Lock()
	if isClosed(w.gone) {
		w.mu.Unlock()
		return net.ErrClosed
	}
	close(w.gone)
	stalled := !isClosed(w.gate)
	w.mu.Unlock()
	if stalled {
		if orphan, err := w.orphan(); err == nil {
			w.home.keepOrphan(orphan)
		}
	}
	defer w.home.forget(w)
	return w.Conn.Close()
}

// cut ends the connection for both sides, stalled or not, without a close frame.
func (w *wire) cut() {
	w.mu.Lock()
	if !isClosed(w.gone) {
		close(w.gone)
	}
	w.mu.Unlock()
	w.home.forget(w)
	w.Conn.Close() // it is cut
}

// orphan returns a duplicate of the connection that stays open when this end is
// closed.
func (w *wire) orphan() (net.Conn, error) {
	tcp, ok := w.Conn.(*net.TCPConn)
	if !ok {
		return nil, net.ErrClosed
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer file.Close() // net.FileConn has its own
	return net.FileConn(file)
}

// stall stops all bytes while the connection stays open.
func (w *wire) stall() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if isClosed(w.gate) {
		w.gate = make(chan struct{})
	}
}

func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !isClosed(w.gate) {
		close(w.gate)
	}
}

// opened marks the connection as a Jetstream client's.
func (w *wire) opened() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stream = true
}

func (w *wire) isStream() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stream
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
