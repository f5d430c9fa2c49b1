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
const late = 10 * time.Millisecond

// margin is for the way from here to the server, which takes one call longer
// than the next.
const margin = 20 * time.Millisecond

// Take waits for the right to make one call. done gives it back.
func (c *Calls) Take(ctx context.Context) (done func(), err error) {
	holder := rand.Text()
	for {
		slot, err := schema.TakeCallSlot(ctx, c.Pool, holder, c.Slots, c.Spacing+late+margin, c.TTL)
		if err != nil {
			return nil, err
		}
		due := time.Now().Add(slot.Wait)
		timer := time.NewTimer(slot.Wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			if slot.Slot != nil {
				c.give(ctx, *slot.Slot, holder)
			}
			return nil, ctx.Err()
		case <-timer.C:
		}
		if slot.Slot == nil {
			continue
		}
		if time.Since(due) > late {
			c.give(ctx, *slot.Slot, holder)
			continue
		}
		return func() { c.give(ctx, *slot.Slot, holder) }, nil
	}
}

func (c *Calls) give(ctx context.Context, slot int, holder string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if err := schema.GiveCallSlot(ctx, c.Pool, slot, holder); err != nil {
		c.Logger.Warn("call_slot_not_given_back", "slot", slot, "cause", err, "effect", "it is free again after "+c.TTL.String())
	}
}
