package consumer

import (
	"time"

	"github.com/weir-social/weir/schema"
)

// maxLookback is how far into the past a server is assumed to reach if its oldest
// event was requested.
const maxLookback = 72 * time.Hour

// silenceThreshold returns how long a connection that answers pings must be silent
// before nothing counts as unread. A server that scans its past for a narrow filter is
// silent, too: until a recent event has arrived, the threshold is a thirtieth of the
// time to scan. A server that sends everything does not scan, but may take long to
// send its first event.
func (s *session) silenceThreshold() time.Duration {
	switch {
	case s.past.IsZero() || s.recent.Load():
		return s.cfg.QuietAfter
	case !s.cfg.can.Filters && !s.begun.Load():
		return s.cfg.BeginWithin
	case !s.cfg.can.Filters:
		return s.cfg.SilentFor
	}
	at := later(s.past, time.UnixMicro(s.reached.Load()))
	return max(s.cfg.SilentFor, s.clock.latest(s.connected).Sub(at)/30)
}

// caughtUp returns the latest time at which nothing was unread, by the clock that
// is behind: the connection was idle, and has answered a ping since. It is zero
// while frames flow, while the server may be scanning its past, while the resume is
// open, and while a batch is not committed.
func (s *session) caughtUp() time.Time {
	if !s.settled.Load() || s.pending.Load() > 0 {
		return time.Time{}
	}
	return s.clock.earliest(s.silentUntil())
}

// silentUntil returns the time up to which the connection's silence proves that
// nothing is unread; zero if it proves nothing.
func (s *session) silentUntil() time.Time {
	proven := s.conn.Proven()
	if proven.Sub(s.lastFrame.At()) < s.silenceThreshold() || s.buf.size() > 0 {
		return time.Time{}
	}
	return proven
}

// state returns the stream's state and its detail.
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
		return schema.StateConnecting, "" // accepted, no frame yet
	case behind:
		return schema.StateCatchingUp, ""
	}
	return schema.StateLive, ""
}
