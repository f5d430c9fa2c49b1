package frames

import (
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/archive"
)

// Strip returns a Strip for the frames of a wire, for one goroutine. If an event must be removed
// from a frame, one excerpt remains for each other event.
func Strip(wire consumer.Wire) archive.Strip {
	if wire.Says != nil {
		return stripWhole(wire)
	}
	var message consumer.Message
	return func(m archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
		wire.Decode(record, m.LastAt, &message)
		at := sentAt(&message, m)
		var stays []int
		gone := false
		for i := range message.Events {
			ev := &message.Events[i]
			if mayGo(ev) && goes(saidBy(ev, at)) {
				gone = true
				continue
			}
			stays = append(stays, ev.Part)
		}
		for _, bad := range message.Malformed { // their content is unknown
			gone = bad.Author != "" && goes(archive.Said{Author: bad.Author, At: at}) || gone
		}
		if n := &message.Identity; len(message.Events)+len(message.Malformed) == 0 && n.Author != "" {
			gone = goes(archive.Said{Author: n.Author, At: at})
		}
		switch {
		case !gone:
			return [][]byte{record}
		case len(stays) == 0:
			return nil
		case wire.Excerpt == nil:
			return [][]byte{record}
		}
		var rest [][]byte
		for _, part := range stays {
			rest = append(rest, wire.Excerpt(record, part))
		}
		return rest
	}
}

// stripWhole returns a Strip for a wire whose frames stay or go as a whole.
func stripWhole(wire consumer.Wire) archive.Strip {
	return func(_ archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
		at, said := wire.Says(record)
		for i := range said {
			if goes(saidBy(&said[i], at)) {
				return nil
			}
		}
		return [][]byte{record}
	}
}

// mayGo reports whether an event has data to forget. It must stay known which record was
// deleted, and that an account was deleted.
func mayGo(ev *consumer.Event) bool {
	switch ev.Kind {
	case consumer.KindAccount, consumer.KindErasure:
		return false
	case consumer.KindCommit:
		return ev.Operation != consumer.Delete
	}
	return true
}

// saidBy returns the content of an event in the form that the archive compares.
func saidBy(ev *consumer.Event, at time.Time) archive.Said {
	s := archive.Said{Author: ev.Author, At: at}
	if ev.Kind == consumer.KindCommit {
		s.Collection, s.Key, s.Revision = ev.Collection, ev.Key, ev.Revision
	}
	return s
}

// sentAt returns when the server sent a frame. A frame without a time is as old as its
// segment.
func sentAt(message *consumer.Message, m archive.Manifest) time.Time {
	if message.TimeUS == 0 {
		return m.FirstAt
	}
	return time.UnixMicro(message.TimeUS)
}
