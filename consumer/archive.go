package consumer

import (
	"slices"
	"strconv"
	"time"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
)

// Scope selects the frames of a stream that are archived.
type Scope string

const (
	ScopeNone       Scope = ""
	ScopeStored     Scope = "stored"     // those with an event that is stored
	ScopeFollowed   Scope = "followed"   // those of the followed accounts
	ScopeEverything Scope = "everything" // all that the server sends
)

// archivesBeside reports whether a frame is archived although none of its events is stored.
// What expires is not: only of stored records it is known when they must go.
func (c *Config) archivesBeside(m *Message) bool {
	author := m.Identity.Author
	switch {
	case m.ID == (ID{}) && !m.named(), m.ID != (ID{}) && len(m.Events) == 0, slices.ContainsFunc(m.Events, func(ev Event) bool { return !ev.Expires.IsZero() }):
		return false
	case m.ID != (ID{}):
		author = m.Events[0].Author
	}
	return c.Archive == ScopeEverything || c.Archive == ScopeFollowed && (c.Follows == nil || c.Follows(author))
}

// archiveUnit returns the unit that the archive keeps of a frame. events are those that are
// stored. If there are none, the unit has the identity of the frame or, if the frame has an ID,
// of all its events: they may be stored later.
func archiveUnit(wire *Wire, m *Message, events []Event) *catalog.Unit {
	u := &catalog.Unit{Raw: m.Raw}
	if wire.Archived != nil {
		u.Raw = wire.Archived(m.Raw)
	}
	if at, ok := revTime(m.Identity.Revision); ok {
		u.Day = int32(at.Unix() / 86400) //nolint:gosec // a TID has 53 bits of microseconds
	}
	if len(events) == 0 && m.ID != (ID{}) {
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

// ArchivedUnits returns the units that make archived records known, and the IDs of the events
// that several streams bring. It makes all events of a record known, even if only some of
// them were stored, and the record itself.
func ArchivedUnits(wire *Wire, records [][]byte) (units []catalog.Unit, seen [][16]byte) {
	var m Message
	for _, record := range records {
		wire.Decode(record, time.Time{}, &m) // a zero time: nothing has expired yet
		m.locate()
		if m.ID != (ID{}) {
			seen = append(seen, m.ID)
		}
		if m.named() {
			units = append(units, *archiveUnit(wire, &m, nil))
		}
		if len(m.Events) > 0 {
			units = append(units, *archiveUnit(wire, &m, m.Events))
		}
	}
	return units, seen
}

// EventID returns the ID of an event, which is the same on every host. Account and identity
// events have no revision, so their time and their content identify them.
func EventID(ev *Event) archive.ID {
	switch ev.Kind {
	case KindCommit:
		return archive.NewID(ev.Author, ev.Collection, ev.Key, ev.Revision, ev.Operation.String())
	case KindAccount:
		return archive.NewID("account", ev.Author, madeAt(ev.At, ev.TimeUS), status(ev))
	case KindIdentity:
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

// archiveRow returns the row that the batch adds to the archive, or nil if it adds nothing.
func (b *batch) archiveRow() *catalog.Row {
	if len(b.units) == 0 {
		return nil
	}
	r := &catalog.Row{Wire: b.wire.Name, Known: b.known, Units: make([]catalog.Unit, len(b.units))}
	if !b.wire.Shared {
		r.Excerpt = b.wire.Excerpt
	}
	for i, u := range b.units {
		r.Units[i] = *u
	}
	r.Pack()
	return r
}

// unitsOf returns the archive units of some frames.
func unitsOf(frames []batchFrame) []*catalog.Unit {
	var units []*catalog.Unit
	for i := range frames {
		if u := frames[i].unit; u != nil {
			units = append(units, u)
		}
	}
	return units
}
