package consumer

import (
	"context"
	"time"

	"github.com/weir-social/weir/schema"
)

// begin commits the starting position of a stream that starts at the live tip because it
// has no position or its position is too old. Otherwise a process that dies before its
// first event would restart at a later tip and lose the events between.
func (c *Consumer) begin(ctx context.Context, s *session, commits *committer) error {
	fresh := commits.position.CursorKind == string(CursorNone)
	if c.cfg.IgnorePosition || s.requested.Kind != CursorNone || !fresh && !s.resume.expired {
		return nil
	}
	at := s.base
	connected := s.clock.earliest(s.connected)
	at.CursorKind, at.Cursor, at.CaughtUp = string(CursorTime), connected.UnixMicro(), connected
	b := &batch{origin: origin{wire: &c.cfg.can.Wire, oldest: s.connected}, progressed: progressed{last: &at}, opened: s.connected}
	if !fresh && s.resume.settle() == missed {
		s.open = b
		s.missed()
		s.open = nil
	}
	s.settled.Store(true)
	return commits.commit(ctx, b)
}

// connect makes the next connection and its session.
func (c *Consumer) connect(ctx context.Context, commits *committer, begins resumeAt) (*session, error) {
	from, filter := commits.position, c.cfg.filterHash()
	if c.expired(from, commits.moved) {
		begins = atStart
	}
	requested := map[string]Cursor{}
	at := func(host string) Cursor {
		requested[host] = c.cfg.plan(from, host, filter, begins).cursor(c.cfg.Start, c.cfg.Rewind)
		return requested[host]
	}
	report := func(a Attempt) { c.connectFailure.Store(&a) }
	conn, err := c.cfg.Source.Connect(ctx, at, report)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	s := &session{
		Consumer: c, conn: conn, connected: now, requested: requested[conn.Host()],
		buf: newBuffer(c.cfg.BufferBytes), resume: c.cfg.plan(from, conn.Host(), filter, begins), commits: make(chan *batch),
		decoding: decoding{counted: map[counted]int{}}, base: schema.Position{Host: conn.Host(), FilterHash: filter},
	}
	s.anchors = newRecentAnchors(&from)
	s.anchors.numbers = c.cfg.can.Anchors > 1
	if !s.resume.exact {
		s.anchors.renumbered()
	}
	s.resume.connected = c.clock.latest(now)
	if s.resume.otherHost && !from.CaughtUp.IsZero() {
		s.base.CaughtUp = from.CaughtUp.Add(-from.Lag()) // the other host may have lagged
	}
	s.settled.Store(s.resume.settled)
	s.past = s.requestedSince(from)
	return s, nil
}

// requestedSince returns the time from which events were requested. The server may have to
// scan its past from there. It is zero at the live tip.
func (s *session) requestedSince(from schema.Position) time.Time {
	oldest := s.clock.latest(s.connected).Add(-maxLookback)
	switch {
	case s.requested.Kind == CursorNone:
		return time.Time{}
	case s.resume.exact:
		return from.LastEvent
	case s.requested.Kind == CursorSeq:
		return oldest
	}
	s.resume.requested = time.UnixMicro(s.requested.Value)
	if s.resume.expired || s.resume.settled { // starts at the configured start
		return later(s.resume.requested, oldest)
	}
	return s.resume.requested
}

// expired reports whether a position is older than deletions are kept, and logs it. A
// resume from there could restore deleted records. Both clocks must agree. moved is when
// this lease last moved the position, or zero: a position that it moved recently is old
// only because the server's past is being read. The position of a source that reads all of
// a server's past never expires, because that source keeps its deletions.
func (c *Consumer) expired(from schema.Position, moved time.Time) bool {
	reading := !moved.IsZero() && time.Since(moved) <= c.cfg.ResumeWithin
	age := c.clock.earliest(time.Now()).Sub(complete(from))
	if from.CursorKind == string(CursorNone) || reading || c.cfg.can.Complete || age <= c.cfg.ResumeWithin {
		return false
	}
	c.log.Error("position_too_old", "age", age, "limit", c.cfg.ResumeWithin, "effect",
		"the stream starts again at the configured start, and the time between is a gap")
	return true
}
