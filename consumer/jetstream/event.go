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
)

// maxTimeUS is the last microsecond of the year 9999, more or less: what
// Postgres and RFC 3339 can both write down.
const maxTimeUS = 253402300799000000

// maxSeq is the highest sequence number: servers take a larger cursor for a time.
const maxSeq = 1e15 - 1

// wireName is stored with dead letters.
const wireName = "jetstream-v1"

// Wire is the v1 wire: a frame is a JSON object and one event, or none. A
// refused frame keeps the place that it names. The strings and bytes of what is
// decoded are parts of the frame, which must not be written to afterwards.
// Records of collections that are not wanted are left out, and the syntax of
// their identity is not checked; nil wants all.
//
// Unknown fields are ignored and an unknown kind is no error, but a name that
// occurs twice in one object is: two readers of it would not read the same.
func Wire(wanted func(collection string) bool) consumer.Wire {
	d := &decoder{wanted: wanted}
	return consumer.Wire{Name: wireName, Decode: d.decode}
}

// decoder reads one event after another. It is used by one goroutine.
type decoder struct {
	wanted func(collection string) bool // nil: every collection is

	json   jsontext.Decoder
	buf    bytes.Buffer
	m      *consumer.Message
	raw    []byte
	kind   string
	body   map[string]jsontext.Value // bodies met before the kind was
	found  bool                      // the body of this kind was read
	record jsontext.Value
	active bool // the account's field active was there

	repeated string // the DID in the body, met before the frame's own
	repeats  bool   // there was one
}

// decode reads data into m, see Wire.
func (d *decoder) decode(data []byte, arrived time.Time, m *consumer.Message) {
	data = data[:len(data):len(data)]
	m.Reset(data, arrived)
	d.m, d.raw, d.kind, d.found, d.record, d.active = m, data, "", false, nil, false
	d.repeated, d.repeats = "", false
	clear(d.body)
	ev := m.Add()
	err := d.frame(ev)
	if err == nil {
		err = d.check(ev)
	}
	if err == nil {
		m.At, m.Identity = ev.At, identity(ev)
		return
	}
	bad, ok := errors.AsType[*consumer.Malformed](err)
	if !ok {
		bad = &consumer.Malformed{Cause: shorten(err.Error()), Raw: data}
	}
	d.refused(bad)
}

// identity names the frame of an event: anchors are made of it.
func identity(ev *consumer.Event) consumer.Identity {
	switch ev.Kind {
	case consumer.KindCommit:
		return consumer.Identity{Kind: "commit", Operation: ev.Operation.String(), Author: ev.Author, Collection: ev.Collection, Key: ev.Key, Revision: ev.Revision}
	case consumer.KindIdentity:
		return consumer.Identity{Kind: "identity", Author: ev.Author}
	case consumer.KindAccount:
		return consumer.Identity{Kind: "account", Author: ev.Author}
	}
	return consumer.Identity{Kind: "other", Author: ev.Author}
}

// refused leaves of a frame where it stands, why it is refused, whose event it
// is and of which record, as far as that can be read.
func (d *decoder) refused(bad *consumer.Malformed) {
	m := d.m
	m.Refuse(bad)
	m.Seq, m.TimeUS = 0, 0
	var did, rkey, rev string
	d.read(d.raw)
	d.object("", func(name string) error { //nolint:errcheck // the frame is refused already
		switch name {
		case "time_us":
			return d.integer("/time_us", &m.TimeUS)
		case "cursor":
			return d.integer("/cursor", &m.Seq)
		case "did":
			return d.text("/did", &did)
		case "commit":
			return d.object("/commit", func(name string) error {
				switch name {
				case "collection":
					return d.text("/commit/collection", &bad.Collection)
				case "rkey":
					return d.text("/commit/rkey", &rkey)
				case "rev":
					return d.text("/commit/rev", &rev)
				}
				return d.skip()
			})
		}
		return d.skip()
	})
	if d.checkTime(consumer.KindCommit) != nil {
		m.Seq, m.TimeUS = 0, 0
	}
	if !utf8.Valid(d.raw) {
		bad.Collection = "" // these are no texts
		return
	}
	if !isDID(did) {
		return
	}
	bad.Author = did
	if isNSID(bad.Collection) && isRecordKey(rkey) {
		bad.Key = rkey
		if isTID(rev) {
			bad.Revision = rev
		}
	}
}

func (d *decoder) frame(ev *consumer.Event) error {
	switch {
	case !utf8.Valid(d.raw):
		return &consumer.Malformed{Cause: "the frame is not UTF-8", Raw: d.raw}
	case tooDeep(d.raw):
		return &consumer.Malformed{Cause: "the frame is nested too deeply", Expected: strconv.Itoa(maxDepth) + " levels in a record at most",
			Received: "more", Raw: d.raw}
	}
	d.read(d.raw)
	if err := d.object("", func(name string) error { return d.envelope(name, ev) }); err != nil {
		return err
	}
	if _, err := d.json.ReadToken(); !errors.Is(err, io.EOF) {
		return &consumer.Malformed{Cause: "something follows the event in its frame", Raw: d.raw}
	}
	if body, ok := d.body[d.kind]; ok && !d.found {
		d.read(body)
		return d.content(d.kind, ev)
	}
	return nil
}

// read starts reading JSON that is known to be UTF-8. Surrogates that stand
// alone pass here: in a record they are replaced, elsewhere refused.
func (d *decoder) read(data []byte) {
	d.buf = *bytes.NewBuffer(data)
	d.json.Reset(&d.buf, jsontext.AllowInvalidUTF8(true))
}

// envelope reads the value of one field of the frame.
func (d *decoder) envelope(name string, ev *consumer.Event) error {
	switch name {
	case "did":
		return d.text("/did", &ev.Author)
	case "time_us":
		return d.integer("/time_us", &d.m.TimeUS)
	case "cursor":
		return d.integer("/cursor", &d.m.Seq)
	case "kind":
		return d.text("/kind", &d.kind)
	case "commit", "identity", "account":
		if name == d.kind {
			return d.content(name, ev)
		}
		body, err := d.value()
		if err == nil && d.kind == "" {
			if d.body == nil {
				d.body = make(map[string]jsontext.Value)
			}
			d.body[name] = body
		}
		return err
	}
	return d.skip()
}

// content reads the object that is named after the event's kind.
func (d *decoder) content(kind string, ev *consumer.Event) error {
	d.found = true
	switch kind {
	case "commit":
		return d.object("/commit", func(name string) error { return d.commit(name, ev) })
	case "identity":
		return d.object("/identity", func(name string) error { return d.identity(name, ev) })
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

// alias is b as a string in the same memory: no frame is written to after it
// was read, neither by its owner nor here.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
