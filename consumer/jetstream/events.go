package jetstream

import (
	"bytes"
	"errors"
	"strconv"
	"strings"

	"github.com/weir-social/weir/consumer"
)

// A frame of subscribeEvents is {"$type":"message","payload":{"$type":"…#commit",…}}, or
// {"$type":"error",…} before the server closes the connection.

// eventTypes is how the types of payloads begin.
const eventTypes = "network.bsky.jetstream.subscribeEvents#"

// errEvents means that a frame has the form of subscribeEvents.
var errEvents = errors.New("a frame of subscribeEvents")

// isEvents reports whether a frame begins like those of subscribeEvents. If its fields have
// another order, otherForm finds it out.
func isEvents(frame []byte) bool {
	return bytes.HasPrefix(frame, []byte(`{"$type":"message"`)) || bytes.HasPrefix(frame, []byte(`{"$type":"error"`))
}

// otherForm decodes the field $type, which a frame of /subscribe does not have.
func (d *decoder) otherForm() error {
	if d.json.PeekKind() != '"' {
		return d.skip()
	}
	var name string
	err := d.text("/$type", &name)
	if name == "message" || name == "error" {
		return errEvents
	}
	d.typed = err == nil
	return err
}

// noted returns the notice of the frame.
func (d *decoder) noted() *notice {
	if d.notice == nil {
		d.notice = &notice{}
	}
	return d.notice
}

// message decodes one field of the frame.
func (d *decoder) message(name string, ev *consumer.Event) error {
	switch {
	case name == "$type":
		return d.text("/$type", &d.frame)
	case name == "payload" && d.frame == "message":
		return d.payload(ev)
	case d.frame == "":
		return d.keep(name)
	case name == "error" && d.frame == "error":
		return d.text("/error", &d.noted().name)
	case name == "message" && d.frame == "error":
		return d.text("/message", &d.noted().message)
	}
	return d.skip()
}

// eventFields are the fields of events, in the order in which those are decoded that came before
// the type.
var eventFields = [...]string{"seq", "did", "time", "witnessedAt", "rev", "operation", "collection", "rkey", "cid", "record",
	"identity", "account", "sync", "name", "message"}

// readKept decodes the fields that came before the types.
func (d *decoder) readKept(ev *consumer.Event) error {
	for _, name := range []string{"payload", "error", "message"} {
		if body, ok := d.body[name]; ok && !d.inside {
			d.read(body)
			if err := d.message(name, ev); err != nil {
				return err
			}
		}
	}
	d.prefix = "/payload"
	if len(d.body) == 0 {
		return nil
	}
	for _, name := range eventFields {
		if body, ok := d.body[name]; ok && d.kind != "" {
			d.read(body)
			if err := d.eventField(name, ev); err != nil {
				return err
			}
		}
	}
	return nil
}

// payload decodes the event.
func (d *decoder) payload(ev *consumer.Event) error {
	d.inside = true
	clear(d.body) // of the fields beside the payload
	return d.object("/payload", func(name string) error {
		d.prefix = "/payload"
		switch {
		case name == "$type":
			var named string
			err := d.text("/$type", &named)
			var ours bool
			if d.kind, ours = strings.CutPrefix(named, eventTypes); !ours {
				d.kind = "#" + named // of no known kind
			}
			switch d.kind {
			case "commit":
				d.found = true
			case "info":
				d.noted()
			}
			return err
		case d.kind == "":
			return d.keep(name)
		}
		return d.eventField(name, ev)
	})
}

// eventField decodes one field of an event whose kind is known.
func (d *decoder) eventField(name string, ev *consumer.Event) error {
	switch {
	case name == "did":
		return d.text("/did", &ev.Author)
	case name == "seq", name == "time", name == "witnessedAt":
		return d.eventPlace(name)
	case d.kind == "commit":
		return d.commit(name, ev)
	case name == d.kind && (name == "identity" || name == "account" || name == "sync"):
		return d.content(name, ev)
	case d.kind == "info" && name == "name":
		return d.text("/name", &d.noted().name)
	case d.kind == "info" && name == "message":
		return d.text("/message", &d.noted().message)
	}
	return d.skip()
}

// eventPlace decodes one field of the frame's place.
func (d *decoder) eventPlace(name string) error {
	switch name {
	case "seq":
		return d.integer("/seq", &d.m.Seq)
	case "time":
		return d.datetime("/time", &d.time)
	case "witnessedAt":
		return d.datetime("/witnessedAt", &d.witnessed)
	}
	return d.skip()
}

// setTime sets the time of the frame. An operator may have imported another time than that at
// which the server saw the event, but a cursor by time refers to the latter.
func (d *decoder) setTime() {
	if !d.events {
		return
	}
	at := d.witnessed
	if at.IsZero() {
		at = d.time
	}
	if !at.IsZero() {
		d.m.TimeUS = at.UnixMicro()
	}
}

// pointer returns the path of a field of /subscribe in the form of the frame.
func (d *decoder) pointer(path string) string {
	if d.prefix == "" || path == "" {
		return path
	}
	if rest, commit := strings.CutPrefix(path, "/commit"); commit {
		path = rest
	}
	return d.prefix + path
}

// checkUnknown checks a frame that has no kind.
func (d *decoder) checkUnknown() error {
	switch {
	case d.typed, d.events && d.frame != "message" && d.frame != "error":
		d.m.Seq, d.m.TimeUS = 0, 0
		return nil
	case d.frame == "error":
		d.noted().fatal = true
		return nil
	case d.events && !d.inside:
		d.prefix = ""
		return d.refuse("the frame has no event", "/payload", "an object", "nothing")
	case d.events:
		return d.refuse("the kind is missing", "/$type", eventTypes+"commit, …#identity, …#account or …#sync", "nothing")
	}
	return d.refuse("the kind is missing", "/kind", "commit, identity or account", "nothing")
}

// checkEventPlace rejects numbers and times that would corrupt the stream's position. A notice,
// and an event of an unknown kind, may have none, and then do not move it.
func (d *decoder) checkEventPlace(kind consumer.Kind) error {
	m := d.m
	switch {
	case kind == consumer.KindOther && (d.kind == "info" || m.Seq == 0 || m.TimeUS == 0):
		m.Seq, m.TimeUS = 0, 0
	case m.Seq <= 0 || m.Seq > maxSeq:
		return d.refuse("not a sequence number", "/seq", "a number from 1, below 1e15", strconv.FormatInt(m.Seq, 10))
	case m.TimeUS <= 0 || m.TimeUS > maxTimeUS:
		received := strconv.FormatInt(m.TimeUS, 10)
		return d.refuse("the time is missing or out of range", "/time", "a datetime of RFC 3339, from 1970 to 9999", received)
	}
	return nil
}
