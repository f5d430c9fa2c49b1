package app

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/nostr"
	"github.com/weir-social/weir/schema"
)

// strip returns how what must be forgotten is taken out of a segment's records, in one
// goroutine.
func strip(m archive.Manifest) (archive.Strip, error) {
	if m.Wire == schema.WireSnapshot {
		return stripSnapshot, nil
	}
	s, known := sourceOf(m.Wire)
	if !known {
		return nil, fmt.Errorf("segment %s: this version of Weir does not know the wire %s", m.Name, m.Wire)
	}
	return s.strip(), nil
}

// stripFrames returns a Strip for the frames of repositories. If an event must be removed
// from a frame, one excerpt remains for each other event.
func stripFrames(wire consumer.Wire) archive.Strip {
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

// stripNostr returns a Strip for Nostr events, by the dates of their authors. Requests to
// vanish stay. Requests for deletions stay too, unless their author has vanished.
func stripNostr() archive.Strip {
	wires := map[int]consumer.Wire{}
	var message consumer.Message
	return func(m archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
		e, err := protocol.DecodeNotepack(record)
		if err != nil || e.Kind == protocol.KindVanish || e.CheckID() != nil {
			return [][]byte{record}
		}
		said := archive.Said{Author: protocol.DID(e.PubKey), At: time.Unix(e.CreatedAt, 0)}
		wire, ok := wires[e.Kind]
		if !ok {
			wire = nostr.Wire([]int{e.Kind}, nil, nil)
			wires[e.Kind] = wire
		}
		if e.Kind != protocol.KindDeletion {
			wire.Decode(record, time.Time{}, &message) // at the zero time, nothing has expired
			if len(message.Events) == 1 {
				said = saidBy(&message.Events[0], said.At)
			}
		}
		if goes(said) {
			return nil
		}
		return [][]byte{record}
	}
}

// stripSnapshot removes the names of forgotten accounts from a snapshot of the accounts.
// Which accounts Weir followed stays.
func stripSnapshot(m archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
	part, err := schema.ParseSnapshotPart(record)
	if err != nil || part.Table != schema.SnapshotOfAccounts {
		return [][]byte{record}
	}
	names, gone := []string{"handle", "display_name", "avatar"}, false
	for i, row := range part.Rows {
		var account map[string]json.RawMessage
		var did string
		if json.Unmarshal(row, &account) != nil || json.Unmarshal(account["did"], &did) != nil {
			continue
		}
		named := false
		for _, name := range names {
			named = named || account[name] != nil && string(account[name]) != "null"
		}
		if !named || !goes(archive.Said{Author: did, At: m.FirstAt}) {
			continue
		}
		gone = true
		for _, name := range names {
			account[name] = json.RawMessage("null")
		}
		if part.Rows[i], err = json.Marshal(account); err != nil {
			return nil
		}
	}
	if !gone {
		return [][]byte{record}
	}
	b, err := json.Marshal(part)
	if err != nil {
		return nil
	}
	return [][]byte{b}
}
