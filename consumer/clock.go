package consumer

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock combines two wall clocks, because either may be wrong: that of this process
// and that of the database, which every heartbeat reads. Between heartbeats it uses
// monotonic time, so a step of this process's clock does not affect the database's
// time.
type clock struct {
	mu           sync.Mutex
	databaseTime time.Time // as the database last reported it
	at           time.Time // when it was reported; zero: never
}

// set records the time that the database has just reported.
func (c *clock) set(databaseTime time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.databaseTime, c.at = databaseTime, time.Now()
}

// between converts a time of this process, which must have a monotonic reading, to
// the clock that is behind and to the one that is ahead.
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

// earliest returns a time by the clock that is behind. Use it for claims of this
// process, such as how far it has caught up.
func (c *clock) earliest(at time.Time) time.Time {
	earliest, _ := c.between(at)
	return earliest
}

// latest returns a time by the clock that is ahead. Use it to check the claims of
// servers: a slow clock of ours must not make a server seem ahead.
func (c *clock) latest(at time.Time) time.Time {
	_, latest := c.between(at)
	return latest
}

// MonotonicTime is a time that goroutines share and that steps of the wall clock do
// not change. The zero value is unset.
type MonotonicTime struct {
	once  sync.Once
	base  time.Time
	since atomic.Int64 // nanoseconds from base; 0: never
}

// Set sets the time.
func (m *MonotonicTime) Set(at time.Time) {
	m.once.Do(func() { m.base = at.Add(-1) })
	m.since.Store(int64(at.Sub(m.base)))
}

// At returns the time by the current wall clock; zero if unset.
func (m *MonotonicTime) At() time.Time {
	since := m.since.Load()
	if since == 0 {
		return time.Time{}
	}
	now := time.Now()
	return now.Add(time.Duration(since) - now.Sub(m.base))
}
