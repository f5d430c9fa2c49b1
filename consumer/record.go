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
