// Package nostr reads the Nostr protocol: events, their ids and signatures, the
// bech32 names of keys and events, and the notepack form of an event. What it reads
// comes from strangers. It knows neither the network nor the database.
package nostr

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxCreatedAt is the largest date of an event, in seconds: numbers must survive
// JavaScript.
const MaxCreatedAt = 1<<53 - 1

// MaxKind is the largest kind of an event.
const MaxKind = 1<<16 - 1

// An Event is what an author has signed.
type Event struct {
	ID        [32]byte
	PubKey    [32]byte
	Sig       [64]byte
	CreatedAt int64 // seconds since 1970, by the author's clock
	Kind      int
	Tags      [][]string
	Content   string
}

// Invalid is why a text is no event, or no event of its author.
type Invalid struct {
	Cause    string // in English
	Path     string // where: a JSON pointer; may be ""
	Expected string // may be ""
	Received string // may be ""; not shortened
}

func (e *Invalid) Error() string {
	s := e.Cause
	if e.Path != "" {
		s += " at " + e.Path
	}
	if e.Expected != "" {
		s += ": expected " + e.Expected + ", received " + e.Received
	}
	return s
}

// Decode reads the JSON of an event. Unknown fields are dropped, because neither the
// id nor the signature covers them. Text that is not UTF-8 and lone surrogates are
// refused: their id cannot be computed. An error is an *Invalid.
func Decode(data []byte) (*Event, error) {
	d := decoder{json: jsontext.NewDecoder(bytes.NewBuffer(data))}
	if err := d.event(); err != nil {
		invalid, ok := errors.AsType[*Invalid](err)
		if !ok {
			invalid = &Invalid{Cause: "not the JSON of an event: " + err.Error()}
		}
		return nil, invalid
	}
	return &d.ev, nil
}

// decoder decodes one event.
type decoder struct {
	json *jsontext.Decoder
	ev   Event
	read [len(fields)]bool
}

// fields are the fields of an event; nothing else in the object counts.
var fields = [...]string{"id", "pubkey", "created_at", "kind", "tags", "content", "sig"}

func (d *decoder) event() error {
	if err := d.begin('{', "", "an object"); err != nil {
		return err
	}
	for d.json.PeekKind() == '"' {
		name, err := d.json.ReadToken()
		if err != nil {
			return err
		}
		if err := d.field(name.String()); err != nil {
			return err
		}
	}
	if _, err := d.json.ReadToken(); err != nil { // the end of the object
		return err
	}
	for i, read := range d.read {
		if !read {
			return &Invalid{Cause: "a field is missing", Path: "/" + fields[i], Expected: "a value", Received: "nothing"}
		}
	}
	if _, err := d.json.ReadToken(); !errors.Is(err, io.EOF) {
		return &Invalid{Cause: "text follows the event"}
	}
	return nil
}

func (d *decoder) field(name string) error {
	for i := range fields {
		d.read[i] = d.read[i] || fields[i] == name
	}
	var err error
	switch name {
	case "id":
		return d.hex("/id", d.ev.ID[:])
	case "pubkey":
		return d.hex("/pubkey", d.ev.PubKey[:])
	case "sig":
		return d.hex("/sig", d.ev.Sig[:])
	case "created_at":
		d.ev.CreatedAt, err = d.number("/created_at", MaxCreatedAt)
	case "kind":
		var kind int64
		kind, err = d.number("/kind", MaxKind)
		d.ev.Kind = int(kind)
	case "tags":
		return d.tags()
	case "content":
		d.ev.Content, err = d.text("/content")
	default:
		return d.json.SkipValue()
	}
	return err
}

// tags reads an array of arrays of strings.
func (d *decoder) tags() error {
	if err := d.begin('[', "/tags", "an array"); err != nil {
		return err
	}
	d.ev.Tags = [][]string{}
	for d.json.PeekKind() != ']' {
		path := "/tags/" + strconv.Itoa(len(d.ev.Tags))
		if err := d.begin('[', path, "an array"); err != nil {
			return err
		}
		tag := []string{}
		for d.json.PeekKind() != ']' {
			s, err := d.text(path)
			if err != nil {
				return err
			}
			tag = append(tag, s)
		}
		if _, err := d.json.ReadToken(); err != nil {
			return err
		}
		d.ev.Tags = append(d.ev.Tags, tag)
	}
	_, err := d.json.ReadToken()
	return err
}

// begin reads the beginning of an object or an array.
func (d *decoder) begin(kind jsontext.Kind, path, expected string) error {
	t, err := d.json.ReadToken()
	if err != nil {
		return err
	}
	if t.Kind() != kind {
		return &Invalid{Cause: "wrong type", Path: path, Expected: expected, Received: t.String()}
	}
	return nil
}

func (d *decoder) text(path string) (string, error) {
	t, err := d.json.ReadToken()
	if err != nil {
		return "", err
	}
	if t.Kind() != '"' {
		return "", &Invalid{Cause: "wrong type", Path: path, Expected: "a string", Received: t.String()}
	}
	return t.String(), nil
}

// hex reads lower-case hexadecimal digits that fill to.
func (d *decoder) hex(path string, to []byte) error {
	s, err := d.text(path)
	if err != nil {
		return err
	}
	if !decodeHex(to, s) {
		return &Invalid{Cause: "wrong length or digits", Path: path, Expected: strconv.Itoa(2*len(to)) + " lower-case hexadecimal digits", Received: s}
	}
	return nil
}

// decodeHex decodes lower-case hexadecimal digits that fill to exactly.
func decodeHex(to []byte, s string) bool {
	if len(s) != 2*len(to) || !lowerHex(s) {
		return false
	}
	_, err := hex.Decode(to, []byte(s))
	return err == nil
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// number reads an integer from 0 to most, written with digits only.
func (d *decoder) number(path string, most int64) (int64, error) {
	v, err := d.json.ReadValue()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 0 || n > most || v[0] == '-' {
		return 0, &Invalid{Cause: "not a valid number", Path: path, Expected: "an integer from 0 to " + strconv.FormatInt(most, 10), Received: string(v)}
	}
	return n, nil
}

// ParseKey reads a public key or an id as events write it: 64 lower-case hexadecimal
// digits.
func ParseKey(s string) (key [32]byte, ok bool) {
	ok = decodeHex(key[:], s)
	return key, ok
}

// Tag returns the value of the first tag with a name; false if there is none.
func (e *Event) Tag(name string) (string, bool) {
	for _, tag := range e.Tags {
		if len(tag) > 1 && tag[0] == name {
			return tag[1], true
		}
	}
	return "", false
}
