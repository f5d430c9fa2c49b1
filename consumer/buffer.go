package consumer

import "sync"

// buffer holds the frames that were read and not yet decoded, bounded in bytes.
// One goroutine puts, one takes. A put never waits: the reader must get back to
// the socket, or the server drops it.
type buffer struct {
	limit int64
	ready chan struct{} // holds a token when frames wait or the buffer is closed
	room  chan struct{} // holds a token when bytes were given back

	mu     sync.Mutex
	frames []Frame
	bytes  int64 // of the frames waiting and of those taken but not released
	closed bool
}

func newBuffer(limit int64) *buffer {
	return &buffer{limit: limit, ready: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

// put adds a frame, or answers false when it does not fit. A single frame
// larger than the limit fits an empty buffer.
func (b *buffer) put(f Frame) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := int64(len(f.Data))
	if b.closed || (b.bytes > 0 && b.bytes+size > b.limit) {
		return false
	}
	b.frames = append(b.frames, f)
	b.bytes += size
	leave(b.ready)
	return true
}

// close says that no frame will follow; what is in the buffer stays.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	leave(b.ready)
}

// leave puts a token into a channel that does not have one.
func leave(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take answers every frame that waits, reusing the memory of spent for later
// frames, and whether more may follow. It does not wait: ready says when to
// call it.
func (b *buffer) take(spent []Frame) (frames []Frame, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	clear(spent)
	frames, b.frames = b.frames, spent[:0]
	return frames, !b.closed
}

// release gives the bytes of a decoded frame back.
func (b *buffer) release(f Frame) {
	b.mu.Lock()
	b.bytes -= int64(len(f.Data))
	b.mu.Unlock()
	leave(b.room)
}

// size is the number of bytes held.
func (b *buffer) size() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}
