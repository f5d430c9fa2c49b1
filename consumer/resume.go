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
	from      schema.Position
	exact     bool // asked for the stored cursor itself; else for an earlier time
	expired   bool // asked for the start: the position is too old to go on from
	expects   bool // the filter lets the last event pass, so an anchor should come
	elsewhere bool // the position is another host's
	asked     time.Time
	threshold time.Duration
	connected time.Time // when the connection was made; zero: unknown
	settled   bool

	// What the connection has delivered.
	seen    int
	first   time.Time   // when the first event happened
	written []time.Time // the times inside the first revs
	since   time.Time   // when the first event was decoded
}

// verdict is what an event says about the resume.
type verdict uint8

const (
	proceed  verdict = iota // the event is to be processed
	known                   // the event is the anchor: committed already
	mismatch                // the cursor was not honoured: reconnect by time
	missed                  // processed, but the interval before the first event may be lost
)

// openFor is how many events without an anchor among them end the wait for one.
const openFor = 100

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

// plan is how a connection to a host resumes a position.
func (c *Config) plan(from schema.Position, host, filterHash string, byTime, expired bool) *resume {
	r := &resume{from: from, expired: expired, threshold: c.GapThreshold, elsewhere: from.Host != host}
	r.settled = from.CursorKind == string(CursorNone)
	r.exact = !byTime && !expired && exactFor(from, host, filterHash)
	if a := from.Anchor; a != nil && !expired {
		passes := (c.Follows == nil || c.Follows(a.DID)) && (a.Collection == "" || c.Wanted(a.Collection))
		r.expects = from.FilterHash == filterHash || passes
	}
	return r
}

// cursor is what to ask the server for.
func (r *resume) cursor(start Cursor, rewind time.Duration) Cursor {
	switch {
	case r.from.CursorKind == string(CursorNone), r.expired:
		return start
	case r.exact:
		return Cursor{Kind: CursorKind(r.from.CursorKind), Value: r.from.Cursor}
	}
	at := r.from.LastEvent
	if at.IsZero() {
		at = r.from.CaughtUp // no event has come yet
	}
	back := min(r.from.Lag()+rewind, max(farthestLag, rewind))
	return Cursor{Kind: CursorTime, Value: at.Add(-back).UnixMicro()}
}

// check looks at the events of a connection until the matter is settled.
func (r *resume) check(ev *Event) verdict {
	switch {
	case r.settled:
		return proceed
	case r.exact:
		return r.checkExact(ev)
	}
	if r.seen++; r.seen == 1 {
		r.first, r.since = happened(ev), time.Now()
	}
	if at, ok := revTime(ev.Rev); ok && len(r.written) < firstRevs {
		r.written = append(r.written, at)
	}
	switch {
	case r.isAnchor(ev):
		r.settled = true
		return proceed
	case r.seen < openFor && !r.expired:
		return proceed
	}
	return r.judge()
}

// checkExact looks at the first event after the cursor itself was asked for.
func (r *resume) checkExact(ev *Event) verdict {
	switch {
	case *r.from.Anchor == *anchorOf(ev):
		r.settled = true
		return known
	case r.from.CursorKind == string(CursorTime) && happened(ev).Before(r.from.LastEvent):
		r.settled = true // an earlier start than asked for covers it
		return proceed
	}
	return mismatch
}

// isAnchor compares an event with the anchors. Times and sequence numbers are a
// host's own; the rest names the event on every host. But one that is no commit is
// named by its account alone: one that was said after the position is another.
func (r *resume) isAnchor(ev *Event) bool {
	if ev.Kind != KindCommit && said(ev).After(r.last()) {
		return false
	}
	return slices.Contains(r.from.Anchors[:], nameOf(ev).hash())
}

// last is when the position's last event happened, as its host has dated it.
func (r *resume) last() time.Time {
	if r.from.Anchor == nil {
		return r.from.LastEvent
	}
	return later(r.from.LastEvent, time.UnixMicro(r.from.Anchor.TimeUS))
}

// judge settles a resume by time that has delivered no anchor.
func (r *resume) judge() verdict {
	r.settled = true
	from, to := r.interval()
	switch hole := to.Sub(from); {
	case hole <= 0:
		return proceed
	case r.expired:
		return missed
	case r.from.Quiet && hole <= r.threshold:
		return proceed
	case !r.expects && hole <= min(changedWithin, r.threshold):
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
	case !r.elsewhere:
	case len(r.written) > 0:
		// The clocks of two hosts differ, and one may lag: both the dates and the
		// revs must be no later than the position.
		slices.SortFunc(r.written, time.Time.Compare)
		written := r.written[len(r.written)/2]
		if r.first.After(from.Add(r.from.Lag())) || written.After(from) {
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
	if r.elsewhere {
		at = at.Add(-r.from.Lag())
	}
	return at.Truncate(time.Microsecond)
}

// complete is the latest moment up to which a position's host had nothing more.
func complete(p schema.Position) time.Time { return later(p.CaughtUp, p.LastEvent) }

// gap is the interval that the resume could not cover.
func (r *resume) gap() *schema.Gap {
	from, to := r.interval()
	moment := func(at time.Time) string { return at.UTC().Format(time.RFC3339) }
	reason := "asked for events since " + moment(r.asked)
	if r.expired {
		reason = fmt.Sprintf("the position, of %s, is older than deletions are kept: started anew", moment(complete(r.from)))
	}
	switch {
	case r.expired && r.seen == 0:
	case r.seen == 0:
		reason += ", and none was delivered"
	default:
		reason += ", the first one delivered is of " + moment(r.first)
	}
	if !r.expired && r.elsewhere && len(r.written) > 0 {
		reason += ", and was written at " + moment(r.written[len(r.written)/2])
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
