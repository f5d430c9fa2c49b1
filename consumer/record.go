package consumer

import (
	"time"

	"github.com/weir-social/weir/schema"
)

// happened returns when a frame's events happened: the server's time, but never
// later than the frame's arrival. A server with a wrong clock therefore cannot move
// the stream's position into the future.
func happened(timeUS int64, arrived time.Time) time.Time {
	at := time.UnixMicro(timeUS)
	if !arrived.IsZero() && at.After(arrived) {
		return arrived
	}
	return at
}

func (p *FramePosition) happened() time.Time { return happened(p.TimeUS, p.Arrived) }

// storedTime returns the time to store for an event: the server's time, even if our
// clocks are wrong, because the tables are the fold of the stream. A time beyond
// schema.MaxServerAhead in the future is cut off.
func storedTime(timeUS int64, arrived time.Time) time.Time {
	at := time.UnixMicro(timeUS)
	if most := arrived.Add(schema.MaxServerAhead); !arrived.IsZero() && at.After(most) {
		return most
	}
	return at
}

// eventTime returns when an event was made, by the relay's clock, but never later
// than its stored time: an event with a later date would outlive all newer events.
func eventTime(made time.Time, timeUS int64, arrived time.Time) time.Time {
	at := storedTime(timeUS, arrived)
	if made.IsZero() || made.After(at) {
		return at
	}
	return made
}
