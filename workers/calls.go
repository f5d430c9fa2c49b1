package workers

import (
	"context"
	"crypto/rand"
	"log/slog"
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
}

// late is how much later than reserved a call may start: beyond it the next
// one's distance would suffer, and a new start is reserved.
const late = 3 * time.Millisecond

// margin is added to the distance: for that, and for the way to the service,
// which takes one call longer than the next.
const margin = 14 * time.Millisecond

// Take waits for the right to make one call. done gives it back. A start that
// this process comes too late for is lost, so that no call crowds the next; each
// loss doubles what is too late, for a slow database must not stop the calls.
func (c *Calls) Take(ctx context.Context) (done func(), err error) {
	holder := rand.Text()
	for allowed := late; ; {
		slot, due, err := c.reserve(ctx, holder)
		if err != nil {
			return nil, err
		}
		err = sleep(ctx, slot.Wait)
		switch {
		case slot.Slot == nil && err == nil:
			continue
		case slot.Slot == nil:
			return nil, err
		case err == nil && (c.Spacing == 0 || time.Since(due) <= allowed):
			return func() { c.give(ctx, *slot.Slot, holder) }, nil
		}
		c.give(ctx, *slot.Slot, holder)
		if err != nil {
			return nil, err
		}
		allowed *= 2
	}
}

// reserve asks for a start, and answers the earliest moment, by this process's
// clock, at which it can be: the answer's way back is not known, only that of
// both ways together.
func (c *Calls) reserve(ctx context.Context, holder string) (slot schema.CallSlot, due time.Time, err error) {
	spacing := c.Spacing
	if spacing > 0 {
		spacing += margin
	}
	err = c.Pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		asked := time.Now()
		var err error
		slot, err = schema.TakeCallSlot(ctx, conn, holder, c.Slots, spacing, c.TTL)
		due = asked.Add(slot.Took + slot.Wait)
		return err
	})
	return slot, due, err
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
