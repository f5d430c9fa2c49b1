package nostr

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/nostr"
)

// WireName is stored with dead letters and kept frames.
const WireName = "nostr"

// Wire returns the wire of a relay's messages. Only EVENT messages have events. The input of a dead
// letter may begin with the number of its event in the message, on a line of its own. An event may
// also be alone, in its compact form, notepack. relays are the addresses of the
// relays read: a request to vanish takes effect if it names one of them, or all relays. If relays
// is nil, it always takes effect. The events are of any kind: the consumer knows which are stored.
func Wire(verifier *Verifier, relays []string) consumer.Wire {
	d := &decoder{verifier: verifier, relays: relays}
	return consumer.Wire{Name: WireName, Excerpt: excerpt, Shared: true, Compact: compact, JSON: toJSON, Says: d.says, Resends: true,
		Decode: func(input []byte, arrived time.Time, m *consumer.Message) {
			number, frame, numbered := bytes.Cut(input, []byte("\n"))
			part, err := strconv.Atoi(string(number))
			if !numbered || err != nil {
				d.decode(input, arrived, m)
				return
			}
			d.decode(frame, arrived, m)
			m.Events = slices.DeleteFunc(m.Events, func(ev consumer.Event) bool { return ev.Part != part })
		}}
}

// excerpt returns the input of one event of a frame.
func excerpt(frame []byte, part int) []byte { return fmt.Appendf(nil, "%d\n%s", part, frame) }

// compact returns the event of a message in the notepack form, or the message itself if it has no
// event.
func compact(frame []byte) []byte {
	msg, err := parse(frame)
	if err != nil || msg.kind != "EVENT" {
		return frame
	}
	e, err := nostr.Decode(msg.event)
	if err != nil {
		return frame
	}
	return e.AppendNotepack(make([]byte, 0, len(frame)))
}

// toJSON returns the JSON of an event in the notepack form.
func toJSON(frame []byte) []byte {
	e, err := nostr.DecodeNotepack(frame)
	if err != nil {
		return frame
	}
	return e.AppendJSON(nil)
}

// says returns the author's date of an event in the notepack form, and what it says. Requests to vanish must never be
// forgotten. Requests for deletions are forgotten only with their author.
func (d *decoder) says(frame []byte) (at time.Time, said []consumer.Event) {
	e, err := nostr.DecodeNotepack(frame)
	if err != nil || e.Kind == nostr.KindVanish || e.CheckID() != nil {
		return at, nil
	}
	at, said = time.Unix(e.CreatedAt, 0), []consumer.Event{{Author: nostr.DID(e.PubKey)}}
	if e.Kind == nostr.KindDeletion {
		return at, said
	}
	var m consumer.Message
	d.decode(frame, time.Time{}, &m) // at the zero time, nothing has expired
	if len(m.Events) == 1 {
		said[0] = m.Events[0]
		if nostr.DeletedByID(e.Kind) {
			byID := said[0]
			byID.Collection = nostr.AnyKind
			said = append(said, byID)
		}
	}
	return at, said
}

// decoder decodes events.
type decoder struct {
	relays   []string // a request to vanish must name one of them, see Wire
	verifier *Verifier
}

// decode decodes a message that may be an EVENT.
func (d *decoder) decode(frame []byte, arrived time.Time, m *consumer.Message) {
	m.Reset(frame, arrived)
	if e, err := nostr.DecodeNotepack(frame); err == nil {
		d.decoded(e, arrived, arrived, m)
		return
	}
	msg, err := parse(frame)
	if err != nil {
		d.refuse(m, &nostr.Invalid{Cause: "not a message of a relay: " + err.Error()}, causeUnreadable)
		return
	}
	if msg.kind == "EVENT" {
		d.event(&msg, arrived, arrived, m)
	}
}

// event adds the events of an EVENT message, and returns the message's event if that is readable
// and its id is right. The event has expired if it has at earliest: a clock that is ahead must not
// delete the versions that the event replaced.
func (d *decoder) event(msg *message, arrived, earliest time.Time, m *consumer.Message) *nostr.Event {
	e, err := nostr.Decode(msg.event)
	if err != nil {
		d.refuse(m, err, causeUnreadable)
		return nil
	}
	return d.decoded(e, arrived, earliest, m)
}

// decoded adds the events of a readable event, and returns it if its id is right.
func (d *decoder) decoded(e *nostr.Event, arrived, earliest time.Time, m *consumer.Message) *nostr.Event {
	if err := e.CheckID(); err != nil {
		d.refuse(m, err, causeID)
		return nil
	}
	m.TimeUS, m.ID = arrived.UnixMicro(), consumer.ID(e.ID[:16])
	m.Proof = &proof{verifier: d.verifier, event: e}
	if e.Republishes() {
		d.refuse(m, &nostr.Invalid{Cause: "a repost with a protected event in it", Path: "/content", Expected: "no content"}, causeProtected)
		return e
	}
	if nostr.ClassOf(e.Kind) == nostr.Ephemeral {
		return e
	}
	expires, ok := expiry(e)
	if ok && !expires.After(earliest) {
		expired(e, m)
		return e
	}
	switch e.Kind {
	case nostr.KindDeletion:
		if !d.deletions(e, m) {
			return e
		}
	case nostr.KindVanish:
		if !demanded(e, d.relays) { // the relay that the request names may send it later, so it does not count as seen
			return e
		}
		vanish(e, m)
	}
	record(e, m).Expires = expires
	return e
}

// expired adds the deletions that an expired event causes: of the older versions that it replaced.
func expired(e *nostr.Event, m *consumer.Message) {
	if class := nostr.ClassOf(e.Kind); class == nostr.Replaceable || class == nostr.Addressable {
		commit(e, m, consumer.Delete, e.Record().Collection, e.Record().Key, nostr.Revision(e.CreatedAt, e.ID)).Lasting = true
	}
}

// refuse counts an event that cannot be read or has a wrong id. It becomes a dead letter, unless
// there were too many.
func (d *decoder) refuse(m *consumer.Message, err error, cause string) {
	bad := &consumer.Malformed{Cause: err.Error(), Raw: m.Raw}
	if invalid, ok := err.(*nostr.Invalid); ok { // it is returned as it is
		bad.Cause, bad.Path, bad.Expected, bad.Received = invalid.Cause, invalid.Path, invalid.Expected, consumer.Shorten(invalid.Received)
	}
	bad.Cause = consumer.Shorten(bad.Cause)
	bad.Drop = !d.verifier.keeps(cause)
	m.Malformed = append(m.Malformed, bad)
}

// record adds the event as a record.
func record(e *nostr.Event, m *consumer.Message) *consumer.Event {
	ev := commit(e, m, consumer.Create, e.Record().Collection, e.Record().Key, nostr.Revision(e.CreatedAt, e.ID))
	ev.Written = time.Unix(min(e.CreatedAt, maxTime), 0)
	ev.Record, ev.Replaced = recordJSON(e)
	return ev
}

// maxTime is the last second of the year 9999: Postgres and RFC 3339 can both represent it.
const maxTime = 253402300799

// recordJSON returns the JSON to store, and how many NULs it replaced. Postgres cannot store a NUL.
func recordJSON(e *nostr.Event) ([]byte, int) {
	nuls := strings.Count(e.Content, "\x00")
	for _, tag := range e.Tags {
		for _, s := range tag {
			nuls += strings.Count(s, "\x00")
		}
	}
	stored := *e
	if nuls > 0 {
		storable := func(s string) string { return strings.ReplaceAll(s, "\x00", "\uFFFD") }
		stored.Content, stored.Tags = storable(e.Content), make([][]string, len(e.Tags))
		for i, tag := range e.Tags {
			stored.Tags[i] = make([]string, len(tag))
			for j, s := range tag {
				stored.Tags[i][j] = storable(s)
			}
		}
	}
	return stored.AppendJSON(make([]byte, 0, 512+len(e.Content)+len(e.Content)/4)), nuls
}

// commit adds a change of a record of the event's author.
func commit(e *nostr.Event, m *consumer.Message, op consumer.Operation, collection, key, revision string) *consumer.Event {
	ev := m.Add()
	ev.Kind, ev.Author, ev.Operation = consumer.KindCommit, nostr.DID(e.PubKey), op
	ev.Collection, ev.Key, ev.Revision = collection, key, revision
	return ev
}

// lastID makes a revision the last one of its date.
const lastID = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"

// everyRevision is the revision of a deletion by id: it sorts after all others.
const everyRevision = "~"

// maxDeletions is how many records one request may name, because each leaves a tombstone for ever.
// Relays refuse events with more tags; strfry, for example, refuses more than 2,000.
const maxDeletions = 2000

// deletions adds the deletions that a request asks for: of the events in its e tags, of any kind,
// and of the addresses in its a tags up to its date. The request may arrive before them. One that
// names too many is refused.
func (d *decoder) deletions(e *nostr.Event, m *consumer.Message) (ok bool) {
	author := nostr.DID(e.PubKey)
	named := 0
	for _, tag := range e.Tags {
		if len(tag) < 2 {
			continue
		}
		switch tag[0] {
		case "e":
			// A record's name contains its author's key, so nobody else's event is deleted.
			if _, ok := nostr.ParseKey(tag[1]); !ok {
				continue
			}
			commit(e, m, consumer.Delete, nostr.AnyKind, tag[1], everyRevision).Lasting = true
		case "a":
			kind, key, ok := address(tag[1], author) // of any kind: the record may be stored later
			if !ok {
				continue
			}
			commit(e, m, consumer.Delete, nostr.Collection(kind), key, nostr.RevisionDate(e.CreatedAt)+lastID).Lasting = true
		default:
			continue
		}
		if named++; named > maxDeletions {
			m.Events, m.ID, m.Proof = m.Events[:0], consumer.ID{}, nil
			d.refuse(m, &nostr.Invalid{Cause: "a deletion request names too many events: none was deleted", Path: "/tags",
				Expected: fmt.Sprintf("at most %d", maxDeletions), Received: "more"}, causeDeletions)
			return false
		}
	}
	return true
}

// vanish adds the erasure that an author requests.
func vanish(e *nostr.Event, m *consumer.Message) {
	ev := m.Add()
	ev.Kind, ev.Author, ev.Revision = consumer.KindErasure, nostr.DID(e.PubKey), nostr.RevisionDate(e.CreatedAt)+lastID
	ev.Written = time.Unix(min(e.CreatedAt, maxTime), 0)
}

// demanded reports whether a request to vanish names one of the relays, or all relays. If relays is
// nil, it returns true.
func demanded(e *nostr.Event, relays []string) bool {
	return slices.ContainsFunc(e.Tags, func(tag []string) bool {
		return len(tag) > 1 && tag[0] == "relay" &&
			(relays == nil || tag[1] == "ALL_RELAYS" || slices.ContainsFunc(relays, func(relay string) bool { return sameRelay(relay, tag[1]) }))
	})
}

// sameRelay compares two addresses of relays. An address has several spellings.
func sameRelay(a, b string) bool {
	one, ok := nostr.ParseRelay(a)
	other, also := nostr.ParseRelay(b)
	return a == b || ok && also && one == other
}

// address parses the address of an author's replaceable events.
func address(s, author string) (kind int, key string, ok bool) {
	kind, r, ok := nostr.ParseAddress(s)
	return kind, r.Key, ok && r.DID == author
}

// expiry returns when an event expires, see NIP-40. It returns false if the event does not expire.
func expiry(e *nostr.Event) (time.Time, bool) {
	text, ok := e.Tag("expiration")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if !ok || err != nil || seconds < 0 {
		return time.Time{}, false
	}
	return time.Unix(min(seconds, maxTime), 0), true
}
