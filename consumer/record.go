package consumer

import "time"

// happened is when a frame's events happened: the server's clock, but never
// later than the frame's arrival, so that a server with a wrong clock cannot
// push the stream's position into the future.
func happened(timeUS int64, arrived time.Time) time.Time {
	at := time.UnixMicro(timeUS)
	if !arrived.IsZero() && at.After(arrived) {
		return arrived
	}
	return at
}

func (p *Place) happened() time.Time { return happened(p.TimeUS, p.Arrived) }

// believed is how far ahead of our own clocks a server's may be.
const maxClockSkew = 24 * time.Hour

// dated is the time that is stored with what an event says. It is the server's
// word: what is stored is the fold of the stream, though our clocks be wrong. But
// nothing is dated in a future that no step of a clock explains.
func storedTime(timeUS int64, arrived time.Time) time.Time {
	at := time.UnixMicro(timeUS)
	if most := arrived.Add(maxClockSkew); !arrived.IsZero() && at.After(most) {
		return most
	}
	return at
}

// said is when an event was made, by the relay's clock; never later than the
// event, so that a wrong clock cannot make it final.
func eventTime(made time.Time, timeUS int64, arrived time.Time) time.Time {
	at := storedTime(timeUS, arrived)
	if made.IsZero() || made.After(at) {
		return at
	}
	return made
}
