package consumer

import (
	"context"
	"sync"
	"time"
	"unsafe"
)

// chunkFrames is how many frames are taken from the buffer at once, at most:
// those that were taken and decoded stay in memory until the next ones are taken.
const chunkFrames = 256

// frameBytes is what a frame takes besides its data.
const frameBytes = int64(unsafe.Sizeof(Frame{}))

// buffer holds the frames that were read and not yet decoded, bounded in bytes.
// One goroutine puts, one takes. A put never waits, and a wait for room is bounded:
// the reader must get back to the socket, or the server drops it.
type buffer struct {
	limit int64
	ready chan struct{} // holds a token when frames wait or the buffer is closed
	space chan struct{} // holds a token when a sixteenth of the limit is free

	mu     sync.Mutex
	chunks [][]Frame // in order; none is empty
	spare  []Frame   // for the next chunk
	bytes  int64     // of the frames waiting and of those taken but not released
	closed bool
}

func newBuffer(limit int64) *buffer {
	return &buffer{limit: limit, ready: make(chan struct{}, 1), space: make(chan struct{}, 1)}
}

// put adds a frame, or reports false when it does not fit. A single frame
// larger than the limit fits an empty buffer.
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

// putWithin adds a frame, and waits for room where there is none. After a wait a
// sixteenth of the limit is free, or as much as the frame needs: so the reader
// takes much from the socket after each wait. It reports false when there is no
// room within the time, or ctx ends.
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

// roomy reports whether a sixteenth of the limit is free: a token may be old.
func (b *buffer) hasSpace() bool { return b.size() <= b.limit-b.limit/16 }

// close says that no frame will follow; what is in the buffer stays.
func (b *buffer) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	signal(b.ready)
}

// leave puts a token into a channel that does not have one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take returns the next frames, reusing the memory of spent for later frames,
// and reports whether more may follow. It does not wait: ready says when to
// call it.
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

// release gives the bytes of a decoded frame back.
func (b *buffer) release(f Frame) {
	b.mu.Lock()
	b.bytes -= frameSize(f)
	hasSpace := b.bytes <= b.limit-b.limit/16
	b.mu.Unlock()
	if hasSpace {
		signal(b.space)
	}
}

// size is the number of bytes held.
func (b *buffer) size() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes
}
