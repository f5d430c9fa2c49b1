package consumer

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-social/weir/schema"
)

// resume decides where a connection starts reading, and whether what arrives
// shows that nothing was missed. A server silently answers a cursor it cannot
// serve with the live tip or with the oldest event it has, so a stored cursor
// alone proves nothing: an anchor must be delivered again, or else something
// that is no later than the position. Until that is known the resume is open:
// events are stored, and the position stays where it was.
type resume struct {
	from          schema.Position
	exact         bool // asked for the stored cursor itself; else for an earlier time
	expired       bool // asked for the start: the position is too old to go on from
	expectsAnchor bool // the filter lets the last event pass, so an anchor should come
	otherHost     bool // the position is another host's
	requested     time.Time
	can           Capabilities
	threshold     time.Duration
	connected     time.Time // when the connection was made; zero: unknown
	settled       bool
	passed        bool // what comes is after the position that was asked for; else it is known, once settled

	// What the connection has delivered.
	seen    int
	first   time.Time   // when the first frame's events happened
	written []time.Time // the times inside the first revs
	since   time.Time   // when the first frame was decoded
}

// verdict is what a frame says about the resume.
type verdict uint8

const (
	proceed   verdict = iota // the frame is to be processed
	known                    // the frame is committed already
	reprocess                // it is at or before the position: processed once more, and the position stays
	mismatch                 // the cursor was not honoured: reconnect from earlier
	missed                   // processed, but the interval before the first event may be lost
)

// openFor is how many frames without an anchor among them end the wait for one.
const maxFramesToAnchor = 100

// firstRevs is of how many revs the median says when the first events were
// written: one alone may lie.
const firstRevs = 3

// changedWithin is how long a hole may be, and be no gap, where no anchor can be
// expected, since the stream has just been given other accounts: as long as it
// takes to connect anew.
const changedWithin = 30 * time.Second

// exactFor reports whether a stored position can be asked for as it is.
func exactFor(p schema.Position, host, filterHash string) bool {
	return p.CursorKind != string(CursorNone) && p.Anchor != nil && p.Host == host && p.FilterHash == filterHash
}

// plan is how a connection to a host resumes a position. An anew one does not
// ask for the position itself.
func (c *Config) plan(from schema.Position, host, filterHash string, anew, expired bool) *resume {
	r := &resume{from: from, expired: expired, can: c.can, threshold: c.GapThreshold, otherHost: from.Host != host}
	r.settled = from.CursorKind == string(CursorNone)
	r.exact = !anew && !expired && exactFor(from, host, filterHash)
	if a := from.Anchor; a != nil && !expired {
		passes := (c.Follows == nil || c.Follows(a.DID)) && (a.Collection == "" || c.Wanted(a.Collection))
		r.expectsAnchor = from.FilterHash == filterHash || passes
	}
	return r
}

// cursor is what to ask the server for.
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
		at = r.from.CaughtUp // no event has come yet
	}
	back := min(r.from.Lag()+rewind, max(maxLag, rewind))
	return Cursor{Kind: CursorTime, Value: at.Add(-back).UnixMicro()}
}

// exactCursor asks for the anchor, or for an earlier one where the source needs
// several.
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

// open reports whether the next frames have to be checked.
func (r *resume) open() bool { return !r.settled || r.exact && !r.passed }

// check looks at the frames of a connection until the matter is settled.
func (r *resume) check(p *Place) verdict {
	switch {
	case !r.open():
		return proceed
	case r.exact && r.from.Anchor.Seq > 0:
		return r.checkNumber(p)
	case r.exact:
		return r.checkTime(p)
	}
	if r.seen++; r.seen == 1 {
		r.first, r.since = p.happened(), time.Now()
	}
	if at, ok := revTime(p.Identity.Revision); ok && len(r.written) < firstRevs {
		r.written = append(r.written, at)
	}
	switch {
	case r.isAnchor(p):
		r.settled = true
		return proceed
	case r.seen < maxFramesToAnchor && !r.expired:
		return proceed
	}
	return r.settle()
}

// checkNumber looks at what comes after a sequence number was asked for: one of
// the anchors must be delivered, at its number, before anything that is later
// than the position.
func (r *resume) checkNumber(p *Place) verdict {
	until := r.from.Anchor.Seq
	if r.from.CursorKind == string(CursorSeq) {
		until = max(until, r.from.Cursor) // frames that name nothing may follow the anchor
	}
	last := p.Seq == r.from.Anchor.Seq
	switch {
	case last && p.named() && *r.from.Anchor == *p.anchor():
		r.settled, r.passed = true, p.Seq >= until
		return known
	case last || p.Seq < r.exactCursor().Value:
		return mismatch // the numbers now name other frames, or the server begins elsewhere
	}
	for _, a := range r.from.Anchors {
		switch {
		case a.Seq == 0 || a.Seq != p.Seq || a.Seq > until:
		case !p.named() || a.Hash != p.Identity.hash():
			return mismatch
		default:
			r.settled = true
			return known
		}
	}
	switch {
	case p.Seq > until && !r.settled:
		return mismatch
	case p.Seq > until:
		r.passed = true
		return proceed
	case r.settled:
		return known
	}
	return reprocess
}

// checkTime looks at the first frame after the time of the anchor was asked for.
func (r *resume) checkTime(p *Place) verdict {
	switch {
	case *r.from.Anchor == *p.anchor():
		r.settled, r.passed = true, true
		return known
	case p.happened().Before(r.from.LastEvent):
		r.settled, r.passed = true, true // an earlier start than asked for covers it
		return proceed
	}
	return mismatch
}

// isAnchor compares a frame with the anchors. Times and sequence numbers are a
// host's own; the rest names the frame on every host. But one without a revision is
// named by its account alone: one that was said after the position is another.
func (r *resume) isAnchor(p *Place) bool {
	if !p.named() || p.Identity.Revision == "" && eventTime(p.At, p.TimeUS, p.Arrived).After(r.last()) {
		return false
	}
	hash := p.Identity.hash()
	return slices.ContainsFunc(r.from.Anchors[:], func(a schema.AnchorHash) bool { return a.Hash == hash })
}

// last is when the position's last event happened, as its host has dated it.
func (r *resume) last() time.Time {
	if r.from.Anchor == nil {
		return r.from.LastEvent
	}
	return later(r.from.LastEvent, time.UnixMicro(r.from.Anchor.TimeUS))
}

// informal reports whether the dates of this connection must be confirmed by
// revs: another host's clock differs, and nobody asks a server for a time that
// does not know its own.
func (r *resume) needsRevs() bool { return r.otherHost || !r.can.TimeCursor }

// judge settles a resume by time that has delivered no anchor.
func (r *resume) settle() verdict {
	r.settled = true
	from, to := r.interval()
	switch hole := to.Sub(from); {
	case hole <= 0:
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

// interval is what the resume could not show to be covered: nothing where it
// ends no later than it begins. It ends where the first event begins, or with
// the connection: what happened after that has been delivered.
func (r *resume) interval() (from, to time.Time) {
	from, to = r.covered(), r.first
	switch {
	case r.seen == 0:
		to = r.connected
	case !r.needsRevs():
	case len(r.written) > 0:
		// The clocks differ, and one may lag: both the dates and the revs must be no
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

// covered is the latest moment up to which the stream is known to be complete,
// on the host of the connection.
func (r *resume) covered() time.Time {
	at := complete(r.from)
	if r.otherHost {
		at = at.Add(-r.from.Lag())
	}
	return at.Truncate(time.Microsecond)
}

// complete is the latest moment up to which a position's host had nothing more.
func complete(p schema.Position) time.Time { return later(p.CaughtUp, p.LastEvent) }

// gap is the interval that the resume could not cover.
func (r *resume) gap() *schema.Gap {
	from, to := r.interval()
	formatTime := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	reason := "asked for events since " + formatTime(r.requested)
	if !r.can.TimeCursor {
		reason = "asked for the oldest events"
	}
	if r.expired {
		reason = fmt.Sprintf("the position, of %s, is older than deletions are kept: started anew", formatTime(complete(r.from)))
	}
	switch {
	case r.expired && r.seen == 0:
	case r.seen == 0:
		reason += ", and none was delivered"
	default:
		reason += ", the first one delivered is of " + formatTime(r.first)
	}
	if !r.expired && r.needsRevs() && len(r.written) > 0 {
		reason += ", and was written at " + formatTime(r.written[len(r.written)/2])
	}
	return &schema.Gap{From: from, To: to, Reason: reason}
}

// String is the network's word for the operation.
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
