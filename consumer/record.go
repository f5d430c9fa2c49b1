package consumer

import "time"

// happened is when an event happened: the server's clock, but never later than
// the event's arrival, so that a server with a wrong clock cannot push the
// stream's position into the future.
func happened(ev *Event) time.Time {
	at := time.UnixMicro(ev.TimeUS)
	if !ev.Arrived.IsZero() && at.After(ev.Arrived) {
		return ev.Arrived
	}
	return at
}

// believed is how far ahead of our own clocks a server's may be.
const believed = 24 * time.Hour

// dated is the time that is stored with what an event says. It is the server's
// word: what is stored is the fold of the stream, though our clocks be wrong. But
// nothing is dated in a future that no step of a clock explains.
func dated(ev *Event) time.Time {
	at := time.UnixMicro(ev.TimeUS)
	if most := ev.Arrived.Add(believed); !ev.Arrived.IsZero() && at.After(most) {
		return most
	}
	return at
}
