package firehose

import (
	"strconv"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// decoder decodes one frame after another. It is used by one goroutine. After decode
// it keeps the last frame, so that it can be checked further.
type decoder struct {
	wanted   func(collection string) bool // nil: all are wanted
	verifier *Verifier                    // nil: signatures are not checked

	reader
	frame
	ops    []operation
	blocks blocks
	signed commit

	json     transcoder
	arena    []byte // the rest of a chunk, see room
	excerpts int    // bytes of this frame's dead letters
}

// frame is the header and the body of a frame, or the parts of them that could be
// read. Strings share its memory.
type frame struct {
	op   int64
	kind string // the type of the message

	seq  int64
	did  string
	date string
	time time.Time // zero: the date cannot be read

	rev, since       string
	commit, prevData digest
	named, inductive bool // commit and prevData were read
	car              []byte
	checked          bool // the signed commit was read
	tooBig           bool

	handle, status string
	active, stated bool // stated: active was read

	name, message string // of a notice
}

// The kinds of frames, as op in the header names them.
const (
	opMessage = 1
	opError   = -1
)

// decode decodes a frame into m, see Wire. It returns the notice if the frame is
// one.
func (d *decoder) decode(data []byte, arrived time.Time, m *consumer.Message) *Notice {
	data = data[:len(data):len(data)]
	m.Reset(data, arrived)
	bad := d.read(data)
	if bad == nil && (d.op == opError || d.op == opMessage && d.kind == typeInfo) {
		return &Notice{Name: consumer.Shorten(d.name), Message: consumer.Shorten(d.message), Fatal: d.op == opError}
	}
	if misplaced := d.place(m); bad == nil {
		bad = misplaced
	}
	if bad == nil {
		bad = d.events(m)
	}
	switch {
	case bad != nil:
		d.refuse(m, bad)
	case d.verifier != nil && d.kind == typeCommit:
		if d.verifier.cfg.Chained {
			d.addChained(m)
		}
		if len(m.Events) > 0 {
			m.Proof = d.verifier.prove(d, len(m.Events))
		}
	}
	return nil
}

// decodeBeginning decodes the beginning of a frame that is too long: its place, if
// that is in it.
func (d *decoder) decodeBeginning(data []byte, arrived time.Time, m *consumer.Message) {
	m.Reset(data, arrived)
	d.read(data) // the frame ends too early
	d.place(m)   // as above
	d.refuse(m, &consumer.Malformed{
		Cause: "the frame is too long", Expected: "at most " + strconv.Itoa(maxFrame) + " bytes", Received: "more",
	})
}

// position returns the number and the time of a frame, or of its beginning; 0 if they
// are unreadable.
func (d *decoder) position(data []byte) (seq int64, at time.Time) {
	var m consumer.Message
	d.read(data) // the rest of the frame does not matter here
	d.place(&m)  // as above
	return m.Seq, m.At
}

// read reads the header and the body. The CAR stays unread.
func (d *decoder) read(data []byte) *consumer.Malformed {
	d.frame, d.ops, d.excerpts = frame{}, d.ops[:0], 0
	d.reader = reader{data: data}
	bad := d.object(d.headerField)
	switch {
	case bad != nil:
		bad = within("/header", bad)
	case d.op == 0:
		bad = &consumer.Malformed{Cause: "the kind of the frame is missing", Path: "/header/op", Expected: "1 or -1", Received: "nothing"}
	case d.known():
		bad = d.object(d.bodyField())
	case d.op == opMessage:
		d.object(d.placeField) // the message is ignored anyway
	}
	if t, ok := syntax.ParseTime(d.date); ok {
		d.time = t
	}
	switch {
	case len(data) > maxFrame:
		return &consumer.Malformed{
			Cause: "the frame is too long", Expected: "at most " + strconv.Itoa(maxFrame) + " bytes", Received: strconv.Itoa(len(data)) + " bytes",
		}
	case bad == nil && d.known() && d.rest() > 0:
		return &consumer.Malformed{Cause: "the frame has data after its message", Received: strconv.Itoa(d.rest()) + " bytes"}
	}
	return bad
}

// known reports whether the type of the message is known.
func (d *decoder) known() bool {
	switch d.kind {
	case typeCommit, typeSync, typeIdentity, typeAccount, typeInfo:
		return d.op == opMessage || d.op == opError
	}
	return d.op == opError
}

func (d *decoder) headerField(name []byte) *consumer.Malformed {
	switch string(name) {
	case "op":
		return d.integer(&d.op)
	case "t":
		return d.text(&d.kind)
	}
	return d.skip()
}

// bodyField returns the function that reads the fields of a known message.
func (d *decoder) bodyField() func(name []byte) *consumer.Malformed {
	switch {
	case d.op == opError, d.kind == typeInfo:
		return d.noticeField
	case d.kind == typeCommit:
		return d.commitField
	case d.kind == typeSync:
		return d.syncField
	}
	return d.accountField
}

// placeField reads the fields that every message except #info has.
func (d *decoder) placeField(name []byte) *consumer.Malformed {
	switch string(name) {
	case "seq":
		return d.integer(&d.seq)
	case "time":
		return d.text(&d.date)
	case "did":
		return d.text(&d.did)
	}
	return d.skip()
}

func (d *decoder) commitField(name []byte) *consumer.Malformed {
	switch string(name) {
	case "repo":
		return d.text(&d.did)
	case "did":
		return d.skip()
	case "ops":
		return d.operations()
	case "commit":
		d.named = true
		return d.link(&d.commit)
	case "since":
		if d.null() {
			return nil
		}
		return d.text(&d.since)
	case "prevData":
		if d.null() {
			return nil
		}
		d.inductive = true
		return d.link(&d.prevData)
	case "tooBig":
		return d.boolean(&d.tooBig)
	}
	return d.syncField(name)
}

func (d *decoder) syncField(name []byte) *consumer.Malformed {
	switch string(name) {
	case "rev":
		return d.text(&d.rev)
	case "blocks":
		var bad *consumer.Malformed
		d.car, bad = d.content(majorBytes)
		return bad
	}
	return d.placeField(name)
}

func (d *decoder) accountField(name []byte) *consumer.Malformed {
	switch string(name) {
	case "handle":
		return d.optional(&d.handle)
	case "active":
		d.stated = true
		return d.boolean(&d.active)
	case "status":
		return d.optional(&d.status)
	}
	return d.placeField(name)
}

func (d *decoder) noticeField(name []byte) *consumer.Malformed {
	switch string(name) {
	case "name", "error":
		return d.text(&d.name)
	case "message":
		return d.optional(&d.message)
	}
	return d.skip()
}

// optional reads a string that may be null.
func (r *reader) optional(s *string) *consumer.Malformed {
	if r.null() {
		return nil
	}
	return r.text(s)
}

// place sets the place of the message. A frame of a kind that no version of the
// protocol describes may have none.
func (d *decoder) place(m *consumer.Message) *consumer.Malformed {
	timeUS := d.time.UnixMicro()
	valid := timeUS > 0 && timeUS <= maxTimeUS
	if d.seq > 0 && d.seq <= maxSeq && valid {
		m.Seq, m.TimeUS, m.At = d.seq, timeUS, d.time
		return nil
	}
	switch {
	case !d.known():
		return nil
	case !valid:
		return &consumer.Malformed{
			Cause: "the time is missing or out of range", Path: "/time", Expected: "a datetime of RFC 3339, from 1970 to 9999",
			Received: consumer.Shorten(d.date),
		}
	}
	return &consumer.Malformed{
		Cause: "not a sequence number", Path: "/seq", Expected: "a number from 1, below 2^53", Received: strconv.FormatInt(d.seq, 10),
	}
}

// events decodes the message of a frame whose place is known.
func (d *decoder) events(m *consumer.Message) *consumer.Malformed {
	switch {
	case !d.known():
		m.Add()
		return nil
	case d.kind == typeCommit:
		return d.commitEvents(m)
	case !syntax.IsDID(d.did):
		return &consumer.Malformed{Cause: "not a DID", Path: "/did", Expected: "a DID", Received: consumer.Shorten(d.did)}
	case d.kind == typeSync:
		m.Identity = consumer.Identity{Kind: "sync", Author: d.did, Revision: d.rev}
		bad := d.readSigned()
		if bad == nil && d.verifier != nil {
			ev := m.Add()
			ev.Kind, ev.Author, ev.Revision = consumer.KindSync, d.did, d.rev
		}
		return bad
	}
	ev := m.Add()
	ev.Author, ev.At = d.did, d.time
	if d.kind == typeIdentity {
		if d.verifier != nil {
			d.verifier.keys.forget(d.did)
		}
		ev.Kind, ev.Handle = consumer.KindIdentity, d.handle
		m.Identity = consumer.Identity{Kind: "identity", Author: d.did}
		if d.handle != "" && !syntax.IsHandle(d.handle) {
			ev.Handle = consumer.InvalidHandle
		}
		return nil
	}
	ev.Kind, ev.Active, ev.Status = consumer.KindAccount, d.active, d.status
	m.Identity = consumer.Identity{Kind: "account", Author: d.did}
	return d.checkStatus()
}

// maxStatus limits an account's status, in bytes: the known ones are single words.
const maxStatus = 64

func (d *decoder) checkStatus() *consumer.Malformed {
	switch {
	case !d.stated:
		return &consumer.Malformed{Cause: "the account's state is missing", Path: "/active", Expected: "true or false", Received: "nothing"}
	case len(d.status) > maxStatus, !storable(d.status):
		return &consumer.Malformed{Cause: "not a status", Path: "/status", Expected: "a word", Received: consumer.Shorten(d.status)}
	}
	return nil
}

// refuse reduces a frame that cannot be read to its place, the error and, if it is
// readable, the account. A commit with a single operation also names its record.
func (d *decoder) refuse(m *consumer.Message, bad *consumer.Malformed) {
	m.Refuse(bad)
	bad.Raw = m.Raw
	if !syntax.IsDID(d.did) {
		return
	}
	bad.Author = d.did
	if len(d.ops) == 1 {
		d.ops[0].claim(bad, d.rev)
	}
	if d.kind == typeCommit || d.kind == typeSync {
		d.lost(bad)
	}
}

// lost marks the account of a failed proof: it must be compared with its repository.
// Without a verifier, relays are trusted, and nothing is compared.
func (d *decoder) lost(bad *consumer.Malformed) *consumer.Malformed {
	if bad.Lost = d.verifier != nil; bad.Lost && bad.Revision == "" && syntax.IsTID(d.rev) {
		bad.Revision = d.rev
	}
	return bad
}
