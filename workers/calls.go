package workers

import (
	"context"
	"crypto/rand"
	"log/slog"
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

	shortest atomic.Int64 // ns: see usual
}

// late is how much later than reserved a call may start: beyond it the next
// one's distance would suffer, and a new start is reserved.
const late = 3 * time.Millisecond

// margin is added to the distance: for that, and for the way to the service,
// which takes one call longer than the next.
const margin = 12 * time.Millisecond

// patient is how many starts in a row may be lost before more is allowed.
const patient = 4

// Take waits for the right to make one call. done gives it back. A start that
// this process comes too late for is lost, so that no call crowds the next; but
// a database that has become slow delays calls and does not stop them.
func (c *Calls) Take(ctx context.Context) (done func(), err error) {
	holder := rand.Text()
	allowed := late
	for lost := 0; ; {
		slot, due, err := c.reserve(ctx, holder)
		if err != nil {
			return nil, err
		}
		err = sleep(ctx, time.Until(due))
		switch {
		case slot.Slot == nil && err == nil:
			continue
		case slot.Slot == nil:
			return nil, err
		case err == nil && (c.Spacing == 0 || time.Since(due)+slot.Way-c.usual() <= allowed):
			return func() { c.give(ctx, *slot.Slot, holder) }, nil
		}
		c.give(ctx, *slot.Slot, holder)
		if err != nil {
			return nil, err
		}
		if lost++; lost >= patient {
			allowed *= 2
			c.shortest.Store(int64(slot.Way)) // it may be longer for good
		}
	}
}

// reserve asks for a start, and answers when it is, or somewhat later.
func (c *Calls) reserve(ctx context.Context, holder string) (slot schema.CallSlot, due time.Time, err error) {
	spacing := c.Spacing
	if spacing > 0 {
		spacing += margin
	}
	err = c.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		var err error
		slot, err = schema.TakeCallSlot(ctx, conn.Conn(), holder, c.Slots, spacing, c.TTL)
		due = time.Now().Add(slot.Wait)
		return err
	})
	if err == nil && slot.Way < c.usual() {
		c.shortest.Store(int64(slot.Way))
	}
	return slot, due, err
}

// usual is the shortest way to the database and back, as far as is known. All
// calls are late by that, which leaves their distances as they are.
func (c *Calls) usual() time.Duration {
	if known := c.shortest.Load(); known > 0 {
		return time.Duration(known)
	}
	return time.Millisecond
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
	if err := schema.GiveCallSlot(ctx, c.Pool, slot, holder); err != nil {
		c.Logger.Warn("call_slot_not_given_back", "slot", slot, "cause", err, "effect", "it is free again after "+c.TTL.String())
	}
}
