package jetstream

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/atproto/syntax"
)

// object decodes an object and calls field for each name, to decode its value.
func (d *decoder) object(path string, field func(name string) error) error {
	if k := d.json.PeekKind(); k != '{' {
		return d.wrongType(path, "an object")
	}
	if _, err := d.json.ReadToken(); err != nil {
		return d.syntax(err)
	}
	for {
		switch d.json.PeekKind() {
		case '}':
			_, err := d.json.ReadToken()
			return d.syntax(err)
		case '"':
			name, err := d.json.ReadValue()
			if err != nil {
				return d.syntax(err)
			}
			word, _ := unquote(name) // an unreadable name is not a known field
			if err := field(word); err != nil {
				return err
			}
		default:
			_, err := d.json.ReadToken() // returns the error
			return d.syntax(err)
		}
	}
}

// text decodes a string into s. s shares the frame's memory if nothing is escaped.
func (d *decoder) text(path string, s *string) error {
	if d.json.PeekKind() != '"' {
		return d.wrongType(path, "a string")
	}
	v, err := d.json.ReadValue()
	if err != nil {
		return d.syntax(err)
	}
	var ok bool
	if *s, ok = unquote(v); !ok {
		return d.refuse("a character that cannot be stored", path, "no NUL and no lone surrogate", string(v))
	}
	return nil
}

// unquote returns the content of a JSON string. It returns false if the content has
// a NUL or a lone surrogate.
func unquote(v jsontext.Value) (string, bool) {
	inside := v[1 : len(v)-1]
	if bytes.IndexByte(inside, '\\') < 0 {
		return alias(inside), true
	}
	b, err := jsontext.AppendUnquote(nil, v)
	return string(b), err == nil && bytes.IndexByte(b, 0) < 0
}

// integer decodes a number without fraction and exponent.
func (d *decoder) integer(path string, n *int64) error {
	if d.json.PeekKind() != '0' {
		return d.wrongType(path, "an integer")
	}
	v, err := d.json.ReadValue()
	if err != nil {
		return d.syntax(err)
	}
	if *n, err = strconv.ParseInt(alias(v), 10, 64); err != nil {
		return d.refuse("not an integer of 64 bits", path, "an integer", string(v))
	}
	return nil
}

func (d *decoder) boolean(path string, b *bool) error {
	t, err := d.json.ReadToken()
	if err != nil {
		return d.syntax(err)
	}
	switch t.Kind() {
	case 't', 'f':
		*b = t.Bool()
		return nil
	}
	return d.refuse("wrong type", path, "true or false", t.Kind().String())
}

// datetime decodes a time in the network's format, or in the looser formats that it
// tolerates.
func (d *decoder) datetime(path string, at *time.Time) error {
	var s string
	if err := d.text(path, &s); err != nil {
		return err
	}
	t, ok := syntax.ParseTime(s)
	if !ok {
		return d.refuse("not a time", path, "a datetime of RFC 3339", s)
	}
	*at = t
	return nil
}

// sameDID checks the DID in a body: it must be the DID of the frame.
func (d *decoder) sameDID(path string, ev *consumer.Event) error {
	var did string
	if err := d.text(path, &did); err != nil {
		return err
	}
	if ev.Author == "" { // the frame's DID comes later, or is missing
		d.repeated, d.repeats = did, true
		return nil
	}
	return d.agree(path, ev.Author, did)
}

func (d *decoder) agree(path, did, repeated string) error {
	if did != repeated {
		return d.refuse("the event names two DIDs", path, did, repeated)
	}
	return nil
}

// value decodes any JSON value, unchanged.
func (d *decoder) value() (jsontext.Value, error) {
	v, err := d.json.ReadValue()
	return v[:len(v):len(v)], d.syntax(err)
}

func (d *decoder) skip() error { return d.syntax(d.json.SkipValue()) }

// wrongType returns the error of a value that has the wrong type or is not JSON.
func (d *decoder) wrongType(path, expected string) error {
	v, err := d.value()
	if err != nil {
		return err
	}
	cause := "wrong type"
	if path == "" {
		cause = "the frame is not an event"
	}
	return d.refuse(cause, path, expected, string(v[:min(len(v), 2*consumer.MaxQuoted)]))
}

func (d *decoder) refuse(cause, path, expected, received string) *consumer.Malformed {
	return &consumer.Malformed{Cause: cause, Path: d.pointer(path), Expected: expected, Received: consumer.Shorten(received), Raw: d.raw}
}

// syntax turns an error of the JSON decoder into a Malformed.
func (d *decoder) syntax(err error) error {
	var wrong *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return &consumer.Malformed{Cause: "the frame is empty", Raw: d.raw}
	case errors.As(err, &wrong):
		cause := fmt.Sprintf("not JSON at byte %d: %v", wrong.ByteOffset, wrong.Err)
		if errors.Is(err, jsontext.ErrDuplicateName) {
			cause = fmt.Sprintf("a name occurs twice in one object, at byte %d", wrong.ByteOffset)
		}
		return &consumer.Malformed{Cause: consumer.Shorten(cause), Path: consumer.Shorten(string(wrong.JSONPointer)), Raw: d.raw}
	}
	return &consumer.Malformed{Cause: consumer.Shorten(err.Error()), Raw: d.raw}
}
