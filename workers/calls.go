package workers

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

// Calls limits the calls to external services. All processes share the limit
// through Postgres.
type Calls struct {
	Pool    *pgxpool.Pool
	Slots   int           // calls at once
	Spacing time.Duration // between the starts of two calls
	TTL     time.Duration // when a dead process's slot becomes free again; longer than any call
	Logger  *slog.Logger

	clock  databaseClock
	jitter jitter
}

// late is how much later than reserved a call may start. A later call would
// start too close to the next one, so it reserves a new start.
const late = 4 * time.Millisecond

// margin is added to the spacing: it covers late starts and the different
// network delays of two calls.
const margin = 10 * time.Millisecond

// maxJitter limits what the measured jitter adds to the margin.
const maxJitter = 50 * time.Millisecond

// Take waits for permission to make one call; done releases the slot. If this
// process misses a reserved start, it takes a new one, so that no call follows
// another too closely.
func (c *Calls) Take(ctx context.Context) (done func(), err error) {
	holder := rand.Text()
	for {
		spacing := c.Spacing
		if spacing > 0 {
			spacing += margin + c.jitter.now()
		}
		slot, err := schema.TakeAPISlot(ctx, c.Pool, holder, c.Slots, spacing, c.TTL)
		if err != nil {
			return nil, err
		}
		received := time.Now()
		at, read := c.clock.localTime(slot.Now, received)
		due := at.Add(slot.Wait)
		err = retry.Sleep(ctx, time.Until(due))
		lateness := time.Since(due)
		if read {
			c.jitter.record(max(lateness, received.Sub(at)))
		}
		if err == nil && slot.Slot != nil && (spacing == 0 || read && lateness <= late) {
			return func() { c.release(ctx, *slot.Slot, holder) }, nil
		}
		if slot.Slot != nil {
			c.release(ctx, *slot.Slot, holder)
		}
		if err != nil {
			return nil, err
		}
	}
}

// jitter is the recent lateness of timers and replies in this process. On a busy
// machine calls to the service are late in the same way.
type jitter struct{ ns atomic.Int64 }

func (u *jitter) now() time.Duration { return time.Duration(u.ns.Load()) }

// record decays the stored lateness by a tenth, unless the new one is greater.
func (u *jitter) record(lateness time.Duration) {
	u.ns.Store(int64(min(maxJitter, max(lateness, u.now()*9/10))))
}

// databaseClock is this process's estimate of the database's clock: the shortest
// known delay between a reading and the arrival of its reply. A reply with a
// longer delay was held up on its way.
type databaseClock struct {
	mu     sync.Mutex
	behind time.Duration
	at     time.Time // time of the estimate; zero: none yet
}

// drift is how much behind may grow per second, because clocks and network paths
// change.
const drift = time.Millisecond

// localTime returns the local time of a reading of the database's clock whose
// reply has arrived now. ok is false for the first reading, because its delay
// is unknown.
func (c *databaseClock) localTime(reading, now time.Time) (at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ok = !c.at.IsZero()
	behind := now.Sub(reading)
	if ok {
		behind = min(behind, c.behind+time.Duration(now.Sub(c.at).Seconds()*float64(drift)))
	}
	held := now.Sub(reading) - behind
	c.behind, c.at = behind, now
	return now.Add(-held), ok
}

func (c *Calls) release(ctx context.Context, slot int, holder string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := schema.ReleaseAPISlot(ctx, c.Pool, slot, holder); err != nil {
		c.Logger.Warn("api_slot_release_failed", "slot", slot, "error", err, "effect", "it is free again after "+c.TTL.String())
	}
}
