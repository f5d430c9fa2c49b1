package simnet

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// listener knows its connections, so that faults can be done to them.
type listener struct {
	net.Listener
	limit time.Duration // how long a write may take

	mu     sync.Mutex
	conns  map[*wire]bool
	ghosts map[net.Conn]bool // stalled connections that the server has given up; nil when stalls are over
	empty  chan struct{}     // closed with the last connection; nil while nobody waits
}

func listen(address string, limit time.Duration) (*listener, error) {
	inner, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("start the simulated network: %w", err)
	}
	return &listener{Listener: inner, limit: limit, conns: map[*wire]bool{}, ghosts: map[net.Conn]bool{}}, nil
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

// haunt keeps a connection that the server has given up open, without a word,
// until its client leaves or the stall ends.
func (l *listener) haunt(ghost net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ghosts == nil {
		ghost.Close() //nolint:errcheck // it is over
		return
	}
	l.ghosts[ghost] = true
	go func() {
		io.Copy(io.Discard, ghost) //nolint:errcheck // either end of it is an end
		ghost.Close()              //nolint:errcheck // it is over
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.ghosts, ghost)
	}()
}

// release ends every stall, for good.
func (l *listener) release() {
	for _, w := range l.all() {
		w.release()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for ghost := range l.ghosts {
		ghost.Close() //nolint:errcheck // it is over
	}
	l.ghosts = nil
}

// drain waits until no connection is left, and cuts off those left after d.
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

// wire is a connection that can be stalled and cut, that gathers small writes
// while more are sure to follow, and that gives up a peer who does not read.
type wire struct {
	net.Conn
	home *listener

	mu     sync.Mutex
	stream bool          // a Jetstream client, not a plain request
	gate   chan struct{} // closed while bytes may pass
	gone   chan struct{} // closed when this end has closed

	out       sync.Mutex // keeps writes in order; held while writing
	gathering bool
	gathered  []byte
}

// gatherLimit is how many bytes are held back at most.
const gatherLimit = 64 << 10

type wireKey struct{}

func withWire(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, wireKey{}, c)
}

// wireOf is the connection of a request.
func wireOf(ctx context.Context) *wire {
	w, _ := ctx.Value(wireKey{}).(*wire)
	return w
}

// pass waits while the connection is stalled, as long as limit; for ever when
// that is zero.
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

// Read hands over nothing that arrives during a stall.
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

// gather holds small writes back until flush: thousands of frames of history
// in a handful of system calls.
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

// push writes what was gathered.
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

// Close closes this end. A stalled client is not told: to it, the host has
// fallen silent.
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
		if ghost, err := w.ghost(); err == nil {
			w.home.haunt(ghost)
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
	w.Conn.Close() //nolint:errcheck // it is cut
}

// ghost is the connection once more, which stays when this end of it is closed.
func (w *wire) ghost() (net.Conn, error) {
	tcp, ok := w.Conn.(*net.TCPConn)
	if !ok {
		return nil, net.ErrClosed
	}
	file, err := tcp.File()
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // net.FileConn has its own
	return net.FileConn(file)
}

// stall stops all bytes, while the connection stays open.
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

// opened marks the connection as one of a Jetstream client.
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
