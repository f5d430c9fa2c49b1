package consumer

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-social/weir/schema"
)

// resume decides where a connection starts reading, and whether the events that
// arrive prove that nothing was missed. If a server cannot honour a cursor, it
// silently starts at the live tip or at its oldest event, so a stored cursor proves
// nothing. The proof is an anchor that is delivered again, or an event that is no
// later than the position. Until then the resume is open: events are stored, but
// the position stays.
type resume struct {
	from          schema.Position
	exact         bool // the stored cursor was requested; else an earlier time
	expired       bool // the position is too old: the configured start was requested
	expectsAnchor bool // the filter passes the last event, so an anchor should come
	otherHost     bool // the position was made on another host
	requested     time.Time
	can           Capabilities
	threshold     time.Duration
	connected     time.Time // when the connection was made; zero: unknown
	settled       bool
	passed        bool // frames now come after the position; until then, a settled resume skips them

	// What the connection has delivered.
	seen    int
	first   time.Time   // when the first frame's events happened
	written []time.Time // the times in the first revs
	since   time.Time   // when the first frame was decoded
}

// resumeOutcome is what to do with a frame of an open resume.
type resumeOutcome uint8

const (
	proceed          resumeOutcome = iota // process the frame
	alreadyCommitted                      // skip it: it is committed already
	reprocess                             // process it again, without moving the position: it is not after the position
	mismatch                              // reconnect from earlier: the cursor was not honoured
	missed                                // process it, and record a gap before the first event
)

// maxFramesToAnchor is how many frames may arrive before the wait for an anchor
// ends.
const maxFramesToAnchor = 100

// firstRevs is how many revs the median of the first events' times needs: a single
// one may be wrong.
const firstRevs = 3

// changedWithin is the longest hole that does not count as a gap after the stream's
// accounts have changed: no anchor can be expected then. It covers the time of a
// reconnect.
const changedWithin = 30 * time.Second

// exactFor reports whether the stored cursor of a position can be requested.
func exactFor(p schema.Position, host, filterHash string) bool {
	return p.CursorKind != string(CursorNone) && p.Anchor != nil && p.Host == host && p.FilterHash == filterHash
}

// resumeAt is where a resume begins.
type resumeAt uint8

const (
	atCursor resumeAt = iota // at the stored cursor, if the host can be asked for it
	earlier                  // before the position: its cursor was not honoured
	atStart                  // at the configured start: the position is too old
)

// plan returns how a connection to a host resumes a position.
func (c *Config) plan(from schema.Position, host, filterHash string, begins resumeAt) *resume {
	r := &resume{from: from, expired: begins == atStart, can: c.can, threshold: c.GapThreshold, otherHost: from.Host != host}
	r.settled = from.CursorKind == string(CursorNone)
	r.exact = begins == atCursor && exactFor(from, host, filterHash)
	if a := from.Anchor; a != nil && !r.expired {
		passes := (c.Follows == nil || c.Follows(a.DID)) && (a.Collection == "" || c.Wanted(a.Collection))
		r.expectsAnchor = from.FilterHash == filterHash || passes
	}
	return r
}

// cursor returns the cursor to request from the server.
func (r *resume) cursor(start Cursor, rewind time.Duration) Cursor {
	switch {
	case r.from.CursorKind == string(CursorNone), r.expired:
		return start
	case r.exact:
		return r.exactCursor()
	case !r.can.TimeCursor:
		return Cursor{Kind: CursorSeq} // the oldest event the server has
	}
	at := r.from.LastEvent
	if at.IsZero() {
		at = r.from.CaughtUp // no event yet
	}
	back := min(r.from.Lag()+rewind, max(maxLag, rewind))
	return Cursor{Kind: CursorTime, Value: at.Add(-back).UnixMicro()}
}

// exactCursor returns the cursor of the last anchor, or of an earlier one if the
// source needs several.
func (r *resume) exactCursor() Cursor {
	at := Cursor{Kind: CursorTime, Value: r.from.Anchor.TimeUS}
	if seq := r.from.Anchor.Seq; seq > 0 {
		at = Cursor{Kind: CursorSeq, Value: seq}
		for _, a := range r.from.Anchors[:min(r.can.Anchors, maxAnchors)] {
			if a.Seq > 0 {
				at.Value = min(at.Value, a.Seq)
			}
		}
	}
	if r.can.Exclusive {
		at.Value--
	}
	return at
}

// open reports whether the next frames must be checked.
func (r *resume) open() bool { return !r.settled || r.exact && !r.passed }

// check returns what to do with the next frame.
func (r *resume) check(p *FramePosition) resumeOutcome {
	if !r.open() {
		return proceed
	}
	if r.seen++; r.seen == 1 {
		r.first, r.since = p.happened(), time.Now()
	}
	switch {
	case r.exact && r.from.Anchor.Seq > 0:
		return r.checkNumber(p)
	case r.exact:
		return r.checkTime(p)
	}
	if at, ok := RevTime(p.Identity.Revision); ok && len(r.written) < firstRevs {
		r.written = append(r.written, at)
	}
	switch {
	case r.isAnchor(p):
		r.settled = true
		return proceed
	case r.seen < maxFramesToAnchor && !r.expired && !r.can.Complete:
		return proceed
	}
	return r.settle()
}

// checkNumber checks a frame after a request by sequence number: one of the anchors
// must arrive, with its number, before anything later than the position.
func (r *resume) checkNumber(p *FramePosition) resumeOutcome {
	until := r.from.Anchor.Seq
	if r.from.CursorKind == string(CursorSeq) {
		until = max(until, r.from.Cursor) // unnamed frames may follow the anchor
	}
	last := p.Seq == r.from.Anchor.Seq
	switch {
	case last && p.named() && *r.from.Anchor == *p.anchor():
		r.settled, r.passed = true, p.Seq >= until
		return alreadyCommitted
	case last || p.Seq < r.exactCursor().Value:
		return mismatch // the server renumbered its frames, or began elsewhere
	}
	for _, a := range r.from.Anchors {
		switch {
		case a.Seq == 0 || a.Seq != p.Seq || a.Seq > until:
		case !p.named() || a.Hash != p.Identity.hash():
			return mismatch
		default:
			r.settled = true
			return alreadyCommitted
		}
	}
	switch {
	case p.Seq > until && !r.settled:
		return mismatch
	case p.Seq > until:
		r.passed = true
		return proceed
	case r.settled:
		return alreadyCommitted
	}
	return reprocess
}

// checkTime checks the first frame after a request for the time of the anchor.
func (r *resume) checkTime(p *FramePosition) resumeOutcome {
	switch {
	case *r.from.Anchor == *p.anchor():
		r.settled, r.passed = true, true
		return alreadyCommitted
	case p.happened().Before(r.from.LastEvent):
		r.settled, r.passed = true, true // an earlier start than requested covers it
		return proceed
	}
	return mismatch
}

// isAnchor reports whether a frame is one of the anchors. It compares names only,
// because times and sequence numbers differ between hosts. A frame without a
// revision is named by its account alone: one made after the position is a
// different frame.
func (r *resume) isAnchor(p *FramePosition) bool {
	if !p.named() || p.Identity.Revision == "" && eventTime(p.At, p.TimeUS, p.Arrived).After(r.last()) {
		return false
	}
	hash := p.Identity.hash()
	return slices.ContainsFunc(r.from.Anchors[:], func(a schema.AnchorHash) bool { return a.Hash == hash })
}

// last returns the time of the position's last event, as its host dated it.
func (r *resume) last() time.Time {
	if r.from.Anchor == nil {
		return r.from.LastEvent
	}
	return later(r.from.LastEvent, time.UnixMicro(r.from.Anchor.TimeUS))
}

// needsRevs reports whether revs must confirm the dates of this connection. They must
// if the position is from another host, whose clock may differ; if the server has no
// time cursors; or if dates are informal.
func (r *resume) needsRevs() bool { return r.otherHost || !r.can.TimeCursor || r.can.Informal }

// settle ends a resume by time for which no anchor has arrived.
func (r *resume) settle() resumeOutcome {
	r.settled = true
	from, to := r.interval()
	switch hole := to.Sub(from); {
	case hole <= 0, r.can.Complete && !r.expired:
		return proceed
	case r.expired:
		return missed
	case r.from.Quiet && hole <= r.threshold:
		return proceed
	case !r.expectsAnchor && hole <= min(changedWithin, r.threshold):
		return proceed
	}
	return missed
}

// interval returns the interval that the resume could not prove to be covered. There
// is none if to is not after from. The interval ends at the first event, or at the
// time of the connection, because everything later has been delivered.
func (r *resume) interval() (from, to time.Time) {
	from, to = r.covered(), r.first
	switch {
	case r.seen == 0:
		to = r.connected
	case !r.needsRevs():
	case len(r.written) > 0:
		// The clocks differ, and one may lag: neither the dates nor the revs may be
		// later than the position.
		slices.SortFunc(r.written, time.Time.Compare)
		written := r.written[len(r.written)/2]
		if r.first.After(complete(r.from).Truncate(time.Microsecond)) || written.After(from) {
			to = later(r.first, written)
		} else {
			to = from
		}
	}
	if !r.connected.IsZero() && to.After(r.connected) {
		to = r.connected
	}
	return from, to.Truncate(time.Microsecond)
}

// covered returns the time up to which the stream is known to be complete on the
// host of the connection.
func (r *resume) covered() time.Time {
	at := complete(r.from)
	if r.otherHost {
		at = at.Add(-r.from.Lag())
	}
	return at.Truncate(time.Microsecond)
}

// complete returns the time up to which a position's host had nothing more.
func complete(p schema.Position) time.Time { return later(p.CaughtUp, p.LastEvent) }

// gap returns the gap that the resume leaves.
func (r *resume) gap() *schema.Gap {
	from, to := r.interval()
	formatTime := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	reason := "requested events since " + formatTime(r.requested)
	if !r.can.TimeCursor {
		reason = "requested the oldest events"
	}
	if r.expired {
		reason = fmt.Sprintf("the position, of %s, is older than the kept deletions: restarted at the configured start",
			formatTime(complete(r.from)))
	}
	switch {
	case r.expired && r.seen == 0:
	case r.seen == 0:
		reason += ", and none arrived"
	default:
		reason += ", the first to arrive is of " + formatTime(r.first)
	}
	if !r.expired && r.needsRevs() && len(r.written) > 0 {
		reason += ", and was written at " + formatTime(r.written[len(r.written)/2])
	}
	return &schema.Gap{From: from, To: to, Reason: reason}
}

// String returns the network's name of the operation.
func (o Operation) String() string {
	switch o {
	case Create:
		return "create"
	case Update:
		return "update"
	case Delete:
		return "delete"
	}
	return ""
}
