package consumer

import (
	"time"

	"github.com/weir-social/weir/schema"
)

// farthestStart is how far back a server is taken to reach that was asked for
// its oldest event.
const maxLookback = 72 * time.Hour

// patience is how long a connection that answers pings must be silent to count
// as having nothing unread. A server that looks through its past for events of a
// narrow filter is silent too: where nothing recent has arrived, silence counts
// when it has lasted a thirtieth of what there was to look through.
func (s *session) silenceThreshold() time.Duration {
	switch {
	case s.past.IsZero() || s.recent.Load():
		return s.cfg.QuietAfter
	case !s.cfg.can.Filters:
		return s.cfg.SilentFor // it sends whatever it has
	}
	at := later(s.past, time.UnixMicro(s.reached.Load()))
	return max(s.cfg.SilentFor, s.clock.latest(s.connected).Sub(at)/30)
}

// caughtUp is the latest moment at which nothing was left unread, by the clock
// that is behind: a connection that has been idle and has answered a ping since.
// Zero while frames flow, while the server may still be looking through its
// past, while it is open whether the resume missed anything, and while the answer,
// or anything else that was read, is not committed.
func (s *session) caughtUp() time.Time {
	if !s.settled.Load() || s.pending.Load() > 0 {
		return time.Time{}
	}
	return s.clock.earliest(s.silentUntil())
}

// silentUntil is the latest moment up to which the silence of the connection
// says that nothing is left unread; zero: it does not.
func (s *session) silentUntil() time.Time {
	proven := s.conn.Proven()
	if proven.Sub(s.lastFrame.At()) < s.silenceThreshold() || s.buf.size() > 0 {
		return time.Time{}
	}
	return proven
}

// state is the stream's state in one word, and its detail.
func (s *session) state() (state, detail string) {
	behind := time.Duration(s.lag.Load()) >= liveWithin
	switch {
	case s.overflowed.Load():
		return schema.StateDraining, errOverflow.Error()
	case !s.caughtUp().IsZero():
		return schema.StateQuiet, ""
	case (behind || !s.begun.Load()) && s.conn.Proven().Sub(s.lastFrame.At()) >= s.cfg.QuietAfter:
		return schema.StateCatchingUp, schema.DetailScanning
	case !s.begun.Load():
		return schema.StateConnecting, "" // accepted, and nothing heard yet
	case behind:
		return schema.StateCatchingUp, ""
	}
	return schema.StateLive, ""
}
