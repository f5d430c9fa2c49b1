package workers

import (
	"context"
	"crypto/rand"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

// Calls is the limit of calls to other people's services that all processes
// share, through Postgres.
type Calls struct {
	Pool    *pgxpool.Pool
	Slots   int           // calls at once
	Spacing time.Duration // from the start of one to the start of the next
	TTL     time.Duration // when a slot of a dead process is free again; longer than any call
	Logger  *slog.Logger

	clock  databaseClock
	unrest unrest
}

// late is how much later than reserved a call may start: beyond it the next
// one's distance would suffer, and a new start is reserved.
const late = 4 * time.Millisecond

// margin is added to the distance: for that, and for the way to the service,
// which takes one call longer than the next.
const margin = 10 * time.Millisecond

// worst bounds what unrest adds to the margin.
const worst = 50 * time.Millisecond

// Take waits for the right to make one call. done gives it back. A start that
// this process comes too late for is lost, so that no call crowds the next.
func (c *Calls) Take(ctx context.Context) (done func(), err error) {
	holder := rand.Text()
	for {
		spacing := c.Spacing
		if spacing > 0 {
			spacing += margin + c.unrest.now()
		}
		slot, err := schema.TakeAPISlot(ctx, c.Pool, holder, c.Slots, spacing, c.TTL)
		if err != nil {
			return nil, err
		}
		answered := time.Now()
		at, known := c.clock.moment(slot.Now, answered)
		due := at.Add(slot.Wait)
		err = sleep(ctx, time.Until(due))
		lateness := time.Since(due)
		if known {
			c.unrest.note(max(lateness, answered.Sub(at)))
		}
		if err == nil && slot.Slot != nil && (spacing == 0 || known && lateness <= late) {
			return func() { c.give(ctx, *slot.Slot, holder) }, nil
		}
		if slot.Slot != nil {
			c.give(ctx, *slot.Slot, holder)
		}
		if err != nil {
			return nil, err
		}
	}
}

// unrest is how late things have come in this process of late. Where timers and
// answers are, on a busy machine, a call on its way to the service is too.
type unrest struct{ ns atomic.Int64 }

func (u *unrest) now() time.Duration { return time.Duration(u.ns.Load()) }

// note forgets a tenth of what was, unless it is as bad again.
func (u *unrest) note(lateness time.Duration) {
	u.ns.Store(int64(min(worst, max(lateness, u.now()*9/10))))
}

// databaseClock is what a process knows of the database's clock: by how much the
// answers that tell it come after it, at least. One that comes later than that
// was held up on its way.
type databaseClock struct {
	mu     sync.Mutex
	behind time.Duration
	at     time.Time // when that was known; zero: never
}

// drift is by how much behind may have grown in a second: clocks and ways change.
const drift = time.Millisecond

// moment is when, by this process's clock, the database's was told, in an answer
// that has come now. known is false for the first: nobody knows how long it was
// under way.
func (c *databaseClock) moment(told, now time.Time) (at time.Time, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known = !c.at.IsZero()
	behind := now.Sub(told)
	if known {
		behind = min(behind, c.behind+time.Duration(now.Sub(c.at).Seconds()*float64(drift)))
	}
	held := now.Sub(told) - behind
	c.behind, c.at = behind, now
	return now.Add(-held), known
}

// sleep waits, unless the caller gives up.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Calls) give(ctx context.Context, slot int, holder string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := schema.ReleaseAPISlot(ctx, c.Pool, slot, holder); err != nil {
		c.Logger.Warn("call_slot_not_given_back", "slot", slot, "error", err, "effect", "it is free again after "+c.TTL.String())
	}
}
