package consumer

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock tells the time by two wall clocks, for either may be wrong: this
// process's, and the database's, which a beat tells. What is between two beats
// is measured without a wall clock, so that a step of this process's is
// never taken for the database's.
type clock struct {
	mu           sync.Mutex
	databaseTime time.Time // by the database
	at           time.Time // when that was; zero: never
}

// set takes over what the database has just told.
func (c *clock) set(databaseTime time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.databaseTime, c.at = databaseTime, time.Now()
}

// between is a moment of this process, which has a monotonic reading, as the
// clock that is behind tells it, and as the one that is ahead does.
func (c *clock) between(at time.Time) (earliest, latest time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if at.IsZero() || c.at.IsZero() {
		return at, at
	}
	other := c.databaseTime.Add(at.Sub(c.at))
	if other.Before(at.Round(0)) { // by the wall clocks
		return other, at
	}
	return at, other
}

// earliest is for what this process claims to know: it must not claim too much.
func (c *clock) earliest(at time.Time) time.Time {
	earliest, _ := c.between(at)
	return earliest
}

// latest is for what others claim to know: a server is not ahead because one of
// our clocks is behind.
func (c *clock) latest(at time.Time) time.Time {
	_, latest := c.between(at)
	return latest
}

// Moment is a moment that goroutines share. What lies between two of them is not
// changed by a step of the wall clock. The zero Moment is none.
type MonotonicTime struct {
	once  sync.Once
	base  time.Time
	since atomic.Int64 // nanoseconds from base; 0: never
}

// Set makes it another moment.
func (m *MonotonicTime) Set(at time.Time) {
	m.once.Do(func() { m.base = at.Add(-1) })
	m.since.Store(int64(at.Sub(m.base)))
}

// At is the moment as the clock tells it now; the zero time: none.
func (m *MonotonicTime) At() time.Time {
	since := m.since.Load()
	if since == 0 {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(time.Duration(since) - now.Sub(m.base))
}
