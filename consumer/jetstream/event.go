package jetstream

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"time"
	"unicode/utf8"
	"unsafe"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// maxTimeUS is about the last microsecond of the year 9999: Postgres and RFC 3339
// can both represent it.
const maxTimeUS = 253402300799000000

// maxSeq is the highest sequence number: servers treat a larger cursor as a time.
const maxSeq = 1e15 - 1

// WireName is stored with dead letters and kept frames.
const WireName = "jetstream"

// Wire returns the format of frames, which is a JSON object with one event, or none.
// It has two forms, of /subscribe and of subscribeEvents, and a frame says itself
// which form it has: a stream may change between them. A malformed frame keeps its place
// if the place is readable. Strings and bytes of decoded messages are parts of the
// frame, which must not be modified afterwards. For collections that are not wanted,
// the record is omitted and the syntax of its identity is not checked. If wanted is
// nil, all are wanted.
//
// Unknown fields and unknown kinds are ignored. A duplicate name in an object is an
// error, because two decoders could read it differently.
func Wire(wanted func(collection string) bool) consumer.Wire {
	d := &decoder{wanted: wanted}
	return consumer.Wire{Name: WireName, Decode: d.decode}
}

// decoder decodes one event after another. It is used by one goroutine.
type decoder struct {
	wanted func(collection string) bool // nil: all are wanted

	json jsontext.Decoder
	buf  bytes.Buffer
	m    *consumer.Message
	raw  []byte
	body map[string]jsontext.Value // values that came before the kind
	seen                           // of the frame
}

// seen is what a decoder has read of a frame.
type seen struct {
	kind   string
	found  bool // the body of the kind was read
	record jsontext.Value
	active bool // the account has the field active

	repeated string // the DID in a body that came before the frame's DID
	repeats  bool   // a body has a DID

	events    bool   // the frame has the form of subscribeEvents
	typed     bool   // it has an unknown $type
	frame     string // $type
	inside    bool   // the payload was read
	prefix    string // of the paths in errors
	time      time.Time
	witnessed time.Time
	notice    *notice // instead of an event
}

// decode decodes data into m, see Wire.
func (d *decoder) decode(data []byte, arrived time.Time, m *consumer.Message) {
	data = data[:len(data):len(data)]
	m.Reset(data, arrived)
	d.m, d.raw = m, data
	ev := m.Add()
	err := d.event(ev, isEvents(data))
	if errors.Is(err, errEvents) {
		m.Reset(data, arrived)
		ev = m.Add()
		err = d.event(ev, true)
	}
	if err == nil {
		m.At, m.Identity = ev.At, identity(ev)
		return
	}
	bad, ok := errors.AsType[*consumer.Malformed](err)
	if !ok {
		bad = &consumer.Malformed{Cause: consumer.Shorten(err.Error()), Raw: data}
	}
	d.refused(bad)
}

// event decodes the frame in one of the two forms.
func (d *decoder) event(ev *consumer.Event, events bool) error {
	d.seen = seen{events: events}
	clear(d.body)
	if err := d.readFrame(ev); err != nil {
		return err
	}
	return d.check(ev)
}

// identity returns the identity of an event's frame, from which anchors are made.
func identity(ev *consumer.Event) consumer.Identity {
	switch ev.Kind {
	case consumer.KindCommit:
		return consumer.Identity{
			Kind: "commit", Operation: ev.Operation.String(), Author: ev.Author, Collection: ev.Collection, Key: ev.Key, Revision: ev.Revision,
		}
	case consumer.KindIdentity:
		return consumer.Identity{Kind: "identity", Author: ev.Author}
	case consumer.KindAccount:
		return consumer.Identity{Kind: "account", Author: ev.Author}
	case consumer.KindSync:
		return consumer.Identity{Kind: "sync", Author: ev.Author, Revision: ev.Revision}
	}
	if ev.Author == "" { // a notice, which is neither an anchor nor archived
		return consumer.Identity{}
	}
	return consumer.Identity{Kind: "other", Author: ev.Author}
}

// refused reduces a malformed frame to its place, the error and, if they are
// readable, the account and the record.
func (d *decoder) refused(bad *consumer.Malformed) {
	m := d.m
	m.Refuse(bad)
	m.Seq, m.TimeUS = 0, 0
	var did, rkey, rev string
	d.read(d.raw)
	record := func(name string) error {
		switch name {
		case "collection":
			return d.text("/commit/collection", &bad.Collection)
		case "rkey":
			return d.text("/commit/rkey", &rkey)
		case "rev":
			return d.text("/commit/rev", &rev)
		}
		return d.skip()
	}
	event := func(name string) error {
		switch {
		case name == "did":
			return d.text("/did", &did)
		case name == "commit" && !d.events:
			return d.object("/commit", record)
		case d.events && (name == "collection" || name == "rkey" || name == "rev"):
			return record(name)
		}
		return d.place(name)
	}
	d.time, d.witnessed = time.Time{}, time.Time{}
	d.object("", func(name string) error { // the frame is malformed anyway
		switch {
		case !d.events:
			return event(name)
		case name == "payload":
			return d.object("/payload", event)
		}
		return d.skip()
	})
	d.setTime()
	if d.checkTime(consumer.KindCommit) != nil {
		m.Seq, m.TimeUS = 0, 0
	}
	if !utf8.Valid(d.raw) {
		bad.Collection = "" // they are not valid strings
		return
	}
	if !syntax.IsDID(did) {
		return
	}
	bad.Author = did
	if syntax.IsNSID(bad.Collection) && syntax.IsRecordKey(rkey) {
		bad.Key = rkey
		if syntax.IsTID(rev) {
			bad.Revision = rev
		}
	}
}

func (d *decoder) readFrame(ev *consumer.Event) error {
	switch {
	case !utf8.Valid(d.raw):
		return &consumer.Malformed{Cause: "the frame is not UTF-8", Raw: d.raw}
	case tooDeep(d.raw):
		return &consumer.Malformed{Cause: "the frame is nested too deeply", Expected: strconv.Itoa(maxDepth) + " levels in a record at most",
			Received: "more", Raw: d.raw}
	}
	d.read(d.raw)
	envelope := d.envelope
	if d.events {
		envelope = d.message
	}
	if err := d.object("", func(name string) error { return envelope(name, ev) }); err != nil {
		return err
	}
	if _, err := d.json.ReadToken(); !errors.Is(err, io.EOF) {
		return &consumer.Malformed{Cause: "the frame has data after the event", Raw: d.raw}
	}
	if d.events {
		return d.readKept(ev)
	}
	if body, ok := d.body[d.kind]; ok && !d.found {
		d.read(body)
		return d.content(d.kind, ev)
	}
	return nil
}

// read starts decoding JSON that is known to be UTF-8. Lone surrogates are accepted
// here: in a record they are replaced later, elsewhere they are rejected.
func (d *decoder) read(data []byte) {
	d.buf = *bytes.NewBuffer(data)
	d.json.Reset(&d.buf, jsontext.AllowInvalidUTF8(true))
}

// envelope decodes one field of the frame.
func (d *decoder) envelope(name string, ev *consumer.Event) error {
	switch name {
	case "did":
		return d.text("/did", &ev.Author)
	case "kind":
		return d.text("/kind", &d.kind)
	case "$type":
		return d.otherForm()
	case "commit", "identity", "account", "sync":
		if name == d.kind {
			return d.content(name, ev)
		}
		return d.keep(name)
	}
	return d.place(name)
}

// place decodes one field of the frame's place.
func (d *decoder) place(name string) error {
	switch {
	case d.events:
		return d.eventPlace(name)
	case name == "time_us":
		return d.integer("/time_us", &d.m.TimeUS)
	case name == "cursor":
		return d.integer("/cursor", &d.m.Seq)
	}
	return d.skip()
}

// keep reads a value, to decode it when the kind is known.
func (d *decoder) keep(name string) error {
	body, err := d.value()
	if err == nil && d.kind == "" {
		if d.body == nil {
			d.body = make(map[string]jsontext.Value)
		}
		d.body[name] = body
	}
	return err
}

// content decodes the object named after the event's kind.
func (d *decoder) content(kind string, ev *consumer.Event) error {
	d.found = true
	switch kind {
	case "commit":
		return d.object("/commit", func(name string) error { return d.commit(name, ev) })
	case "identity":
		return d.object("/identity", func(name string) error { return d.identity(name, ev) })
	case "sync":
		return d.object("/sync", func(name string) error { return d.sync(name, ev) })
	}
	return d.object("/account", func(name string) error { return d.account(name, ev) })
}

func (d *decoder) commit(name string, ev *consumer.Event) error {
	switch name {
	case "rev":
		return d.text("/commit/rev", &ev.Revision)
	case "operation":
		var word string
		err := d.text("/commit/operation", &word)
		ev.Operation = operation(word)
		return err
	case "collection":
		return d.text("/commit/collection", &ev.Collection)
	case "rkey":
		return d.text("/commit/rkey", &ev.Key)
	case "cid":
		return d.text("/commit/cid", &ev.CID)
	case "record":
		var err error
		d.record, err = d.value()
		return err
	}
	return d.skip()
}

func (d *decoder) identity(name string, ev *consumer.Event) error {
	switch name {
	case "did":
		return d.sameDID("/identity/did", ev)
	case "handle":
		return d.text("/identity/handle", &ev.Handle)
	case "time":
		return d.datetime("/identity/time", &ev.At)
	}
	return d.skip()
}

func (d *decoder) account(name string, ev *consumer.Event) error {
	switch name {
	case "did":
		return d.sameDID("/account/did", ev)
	case "active":
		d.active = true
		return d.boolean("/account/active", &ev.Active)
	case "status":
		return d.text("/account/status", &ev.Status)
	case "time":
		return d.datetime("/account/time", &ev.At)
	}
	return d.skip()
}

// sync decodes an event that no server sends on this wire: archives have it.
func (d *decoder) sync(name string, ev *consumer.Event) error {
	switch name {
	case "did":
		return d.sameDID("/sync/did", ev)
	case "rev":
		return d.text("/sync/rev", &ev.Revision)
	}
	return d.skip()
}

func operation(word string) consumer.Operation {
	switch word {
	case "create":
		return consumer.Create
	case "update":
		return consumer.Update
	case "delete":
		return consumer.Delete
	}
	return 0
}

// alias returns b as a string that shares its memory: frames are never modified.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
