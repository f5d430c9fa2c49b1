// Package frames is the part of the archive that sees the frames of a stream: which of them are archived, as
// what, and how what must be forgotten is taken out of them.
package frames

import (
	"slices"
	"strconv"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/schema"
)

// Scope selects the frames of a stream that are archived.
type Scope string

const (
	ScopeNone       Scope = ""
	ScopeStored     Scope = "stored"     // those with an event that is stored
	ScopeFollowed   Scope = "followed"   // those of the followed accounts
	ScopeEverything Scope = "everything" // all that the server sends
)

// Hook archives the frames of a stream. It is a consumer.FrameHook.
type Hook struct {
	Scope   Scope
	Follows func(did string) bool // reports whether an account is followed; nil: everyone is
	IDsOnly bool                  // what is read is already in the archive: only the ids of its events are recorded
	// OutOfReach: with IDsOnly, even these are not needed, because no server sends the events
	// again.
	OutOfReach bool
}

// Beside reports whether a frame is archived although none of its events is stored. What expires
// is not: only of stored records it is known when they must go.
func (h *Hook) Beside(m *consumer.Message) bool {
	author := m.Identity.Author
	switch {
	case m.ID == (consumer.ID{}) && m.Identity == (consumer.Identity{}), m.ID != (consumer.ID{}) && len(m.Events) == 0,
		slices.ContainsFunc(m.Events, func(ev consumer.Event) bool { return !ev.Expires.IsZero() }):
		return false
	case m.ID != (consumer.ID{}):
		author = m.Events[0].Author
	}
	return h.Scope == ScopeEverything || h.Scope == ScopeFollowed && (h.Follows == nil || h.Follows(author))
}

// Keep returns the unit that the archive keeps of a frame.
func (h *Hook) Keep(wire *consumer.Wire, m *consumer.Message, events []consumer.Event) any {
	if h.OutOfReach {
		return nil
	}
	return unitOf(wire, m, events)
}

// Commit returns what adds a row to the archive.
func (h *Hook) Commit(wire *consumer.Wire, kept []any, writes []schema.Write) schema.CommitHook {
	r := &catalog.Row{Wire: wire.Name, IDsOnly: h.IDsOnly, Units: make([]catalog.Unit, len(kept))}
	if !wire.Shared {
		r.Excerpt = wire.Excerpt
	}
	for i, unit := range kept {
		r.Units[i] = *unit.(*catalog.Unit)
	}
	r.Pack()
	r.Date(writes)
	return r.Queue
}

// unitOf returns the unit that the archive keeps of a frame. events are those that are
// stored. If there are none, the unit has the identity of the frame or, if the frame has an ID,
// of all its events: they may be stored later.
func unitOf(wire *consumer.Wire, m *consumer.Message, events []consumer.Event) *catalog.Unit {
	u := &catalog.Unit{Raw: m.Raw}
	if wire.Compact != nil {
		u.Raw = wire.Compact(m.Raw)
	}
	if at, ok := consumer.RevTime(m.Identity.Revision); ok {
		u.Day = int32(at.Unix() / 86400) // a TID has 53 bits of microseconds
	}
	if len(events) == 0 && m.ID != (consumer.ID{}) {
		events = m.Events
	}
	if len(events) == 0 {
		n := &m.Identity
		made := ""
		if n.Revision == "" {
			made = madeAt(m.At, m.TimeUS)
		}
		u.Events = []catalog.Event{{ID: archive.NewID("frame", n.Kind, n.Operation, n.Author, n.Collection, n.Key, n.Revision, made)}}
		return u
	}
	u.Events = make([]catalog.Event, len(events))
	for i := range events {
		u.Events[i] = catalog.Event{ID: EventID(&events[i]), Part: events[i].Part}
	}
	return u
}

// Units returns the units that make archived records known, and the IDs of the events
// that several streams bring. It makes all events of a record known, even if only some of
// them were stored, and the record itself.
func Units(wire *consumer.Wire, records [][]byte) (units []catalog.Unit, seen [][16]byte) {
	var m consumer.Message
	for _, record := range records {
		wire.Decode(record, time.Time{}, &m) // a zero time: nothing has expired yet
		m.Locate()
		if m.ID != (consumer.ID{}) {
			seen = append(seen, m.ID)
		}
		if m.Identity != (consumer.Identity{}) {
			units = append(units, *unitOf(wire, &m, nil))
		}
		if len(m.Events) > 0 {
			units = append(units, *unitOf(wire, &m, m.Events))
		}
	}
	return units, seen
}

// EventID returns the ID of an event, which is the same on every host. Account and identity
// events have no revision, so their time and their content identify them.
func EventID(ev *consumer.Event) archive.ID {
	switch ev.Kind {
	case consumer.KindCommit:
		return archive.NewID(ev.Author, ev.Collection, ev.Key, ev.Revision, ev.Operation.String())
	case consumer.KindAccount:
		return archive.NewID("account", ev.Author, madeAt(ev.At, ev.TimeUS), ev.StoredStatus())
	case consumer.KindIdentity:
		return archive.NewID("identity", ev.Author, madeAt(ev.At, ev.TimeUS), ev.Handle)
	}
	return archive.NewID("kind "+strconv.Itoa(int(ev.Kind)), ev.Author, ev.Revision)
}

// madeAt returns when an event without a revision was made: the relay's date, which all its
// servers pass on, or else the server's date.
func madeAt(at time.Time, timeUS int64) string {
	if !at.IsZero() {
		timeUS = at.UnixMicro()
	}
	return strconv.FormatInt(timeUS, 10)
}
