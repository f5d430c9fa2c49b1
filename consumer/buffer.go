package consumer

import (
	"context"
	"sync"
	"time"
	"unsafe"
)

// chunkFrames is the maximum number of frames taken from the buffer at once.
// Decoded frames stay in memory until the next chunk is taken.
const chunkFrames = 256

// frameBytes is the memory of a frame besides its data.
const frameBytes = int64(unsafe.Sizeof(Frame{}))

// buffer holds frames that were read and not yet decoded, bounded in bytes. One
// goroutine puts and one takes. put never blocks, and putWithin waits for a bounded
// time: the reader must return to the socket, or the server drops the connection.
type buffer struct {
	limit int64
	ready chan struct{} // has a token when frames wait or the buffer is closed
	space chan struct{} // has a token when a sixteenth of the limit is free

	mu     sync.Mutex
	chunks [][]Frame // in order; none is empty
	spare  []Frame   // reused for the next chunk
	bytes  int64     // of frames that wait or are not released yet
	closed bool
}

func newBuffer(limit int64) *buffer {
	return &buffer{limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// put adds a frame, or returns false if it does not fit. An empty buffer accepts a
// frame of any size.
func (b *buffer) put(f Frame) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	size := frameSize(f)
	if b.closed || (b.bytes > 0 && b.bytes+size > b.limit) {
		return false
	}
	last := len(b.chunks) - 1
	if last < 0 || len(b.chunks[last]) == chunkFrames {
		b.chunks = append(b.chunks, b.spare)
		b.spare = nil
		last++
	}
	b.chunks[last] = append(b.chunks[last], f)
	b.bytes += size
	signal(b.ready)
	return true
}

func frameSize(f Frame) int64 { return int64(len(f.Data)) + frameBytes }

// putWithin adds a frame, and waits for space if there is none. After a wait at
// least a sixteenth of the limit is free, so the reader can take many frames from
// the socket. It returns false if the time runs out or ctx ends.
func (b *buffer) putWithin(ctx context.Context, f Frame, within time.Duration) bool {
	if b.put(f) {
		return true
	}
	timer := time.NewTimer(within)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return false
		case <-b.space:
		}
		if b.hasSpace() && b.put(f) {
			return true
		}
	}
}

// hasSpace reports whether a sixteenth of the limit is free. A token does not prove
// it: it may be old.
func (b *buffer) hasSpace() bool { return b.size() <= b.limit-b.limit/16 }

// close marks the end of the frames. Frames in the buffer stay.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	signal(b.ready)
}

// signal puts a token into a channel unless it has one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take returns the next frames and whether more may follow. It reuses the memory of
// spent and does not block: wait on ready before a call.
func (b *buffer) take(spent []Frame) (frames []Frame, more bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if spent != nil {
		clear(spent)
		b.spare = spent[:0]
	}
	if len(b.chunks) > 0 {
		frames = b.chunks[0]
		b.chunks[0] = nil
		if b.chunks = b.chunks[1:]; len(b.chunks) > 0 {
			signal(b.ready)
			return frames, true
		}
		b.chunks = nil
	}
	return frames, !b.closed
}

// release frees the bytes of a decoded frame.
func (b *buffer) release(f Frame) {
	b.mu.Lock()
	b.bytes -= frameSize(f)
	hasSpace := b.bytes <= b.limit-b.limit/16
	b.mu.Unlock()
	if hasSpace {
		signal(b.space)
	}
}

// size returns the number of bytes in the buffer.
func (b *buffer) size() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}
