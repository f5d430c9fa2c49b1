package consumer

import (
	"fmt"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// resume decides where a connection starts reading, and whether what arrives
// shows that nothing was missed. A server silently answers a cursor it cannot
// serve with the live tip or with the oldest event it has, so a stored cursor
// alone proves nothing: the last event committed must be delivered again, or at
// least something older than it.
type resume struct {
	from      schema.Position
	exact     bool // asked for the stored cursor itself; else for an earlier time
	threshold time.Duration
	connected time.Time // when the connection was made; zero: unknown
	settled   bool
}

// verdict is what an event says about the resume.
type verdict uint8

const (
	proceed  verdict = iota // the event is to be processed
	known                   // the event is the anchor: committed already
	mismatch                // the cursor was not honoured: reconnect by time
	missed                  // processed, but the interval before it may be lost
)

// exactFor answers whether a stored position can be asked for as it is.
func exactFor(p schema.Position, host, filterHash string) bool {
	return p.CursorKind != string(CursorNone) && p.Anchor != nil && p.Host == host && p.FilterHash == filterHash
}

// cursor is what to ask the server for.
func (r *resume) cursor(start Cursor, rewind time.Duration) Cursor {
	switch {
	case r.from.CursorKind == string(CursorNone):
		return start
	case r.exact:
		return Cursor{Kind: CursorKind(r.from.CursorKind), Value: r.from.Cursor}
	}
	at := r.from.LastEvent
	if at.IsZero() {
		at = r.from.CaughtUp // no event has come yet
	}
	return Cursor{Kind: CursorTime, Value: at.Add(-rewind).UnixMicro()}
}

// check looks at the first events of a connection until one settles the matter.
func (r *resume) check(ev *Event) verdict {
	switch {
	case r.settled:
		return proceed
	case r.from.CursorKind == string(CursorNone):
		r.settled = true
		return proceed
	}
	same := r.isAnchor(ev)
	at := happened(ev)
	if r.exact {
		switch {
		case same:
			r.settled = true
			return known
		case r.from.CursorKind == string(CursorTime) && at.Before(r.from.LastEvent):
			r.settled = true // an earlier start than asked for covers it
			return proceed
		}
		return mismatch
	}
	r.settled = true
	if same || r.until(ev).Sub(r.covered()) <= r.threshold {
		return proceed
	}
	return missed
}

// until is the end of what a resume that starts with ev may have missed: what
// happened after the connection was made has been delivered.
func (r *resume) until(ev *Event) time.Time {
	at := happened(ev)
	if !r.connected.IsZero() && at.After(r.connected) {
		return r.connected
	}
	return at
}

// covered is the latest moment up to which the stream is known to be complete.
func (r *resume) covered() time.Time {
	if r.from.CaughtUp.After(r.from.LastEvent) {
		return r.from.CaughtUp
	}
	return r.from.LastEvent
}

// gap is the interval before ev that the resume could not cover.
func (r *resume) gap(ev *Event) *schema.Gap {
	return &schema.Gap{
		From: r.covered(),
		To:   r.until(ev),
		Reason: fmt.Sprintf("asked for events since %s, the first one delivered is of %s",
			r.covered().UTC().Format(time.RFC3339), happened(ev).UTC().Format(time.RFC3339)),
	}
}

// isAnchor compares an event with the anchor. Times and sequence numbers are a
// host's own; the rest names the event on every host.
func (r *resume) isAnchor(ev *Event) bool {
	a, got := r.from.Anchor, anchorOf(ev)
	if a == nil {
		return false
	}
	if r.exact {
		return *a == *got
	}
	x, y := *a, *got
	x.Seq, x.TimeUS, y.Seq, y.TimeUS = 0, 0, 0, 0
	return x == y
}

func anchorOf(ev *Event) *schema.Anchor {
	a := &schema.Anchor{Seq: ev.Seq, TimeUS: ev.TimeUS, DID: anchorText(ev.DID)}
	switch ev.Kind {
	case KindCommit:
		a.Kind, a.Operation = "commit", ev.Operation.String()
		a.Collection, a.Rkey, a.Rev = anchorText(ev.Collection), anchorText(ev.Rkey), anchorText(ev.Rev)
	case KindIdentity:
		a.Kind = "identity"
	case KindAccount:
		a.Kind = "account"
	default:
		a.Kind = "other"
	}
	return a
}

// anchorText makes a part of an identity storable: events that are not stored
// are not checked, and may be the anchor all the same. It copies: the anchor
// outlives the frame.
func anchorText(s string) string {
	s = s[:min(len(s), 512)]
	return strings.ReplaceAll(strings.ToValidUTF8(strings.Clone(s), "\uFFFD"), "\x00", "\uFFFD")
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
