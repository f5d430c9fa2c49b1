package consumer

import (
	"sync"
	"time"
)

// A Bucket limits how many things strangers can make a source keep. It allows Size things,
// and one more after every Refill. A nil Bucket allows everything. It is safe for
// concurrent use.
type Bucket struct {
	Size   int
	Refill time.Duration

	mu    sync.Mutex
	used  int
	since time.Time // of the last refill
}

// NewBucket returns a bucket that allows size things, and one more every ten minutes.
func NewBucket(size int) *Bucket { return &Bucket{Size: size, Refill: 10 * time.Minute} }

// Take reports whether n more things are allowed, and counts them if they are.
func (b *Bucket) Take(n int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill()
	if b.used+n > b.Size {
		return false
	}
	b.used += n
	return true
}

// Empty reports whether nothing is allowed now.
func (b *Bucket) Empty() bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fill()
	return b.used >= b.Size
}

// fill adds the things allowed since the last refill. The caller holds the lock.
func (b *Bucket) fill() {
	now := time.Now()
	if b.used == 0 {
		b.since = now
	}
	if n := int(now.Sub(b.since) / b.Refill); n > 0 {
		b.used, b.since = max(0, b.used-n), b.since.Add(time.Duration(n)*b.Refill)
	}
}
