// Package nostr reads the Nostr protocol: events, their ids and signatures, the bech32 names of
// keys and events, and the notepack form of an event. Its input comes from strangers. It uses
// neither the network nor the database.
package nostr

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxCreatedAt is the largest date of an event, in seconds: numbers must survive
// JavaScript.
const MaxCreatedAt = 1<<53 - 1

// MaxKind is the largest kind of an event.
const MaxKind = 1<<16 - 1

// An Event is an event that an author has signed.
type Event struct {
	ID        [32]byte
	PubKey    [32]byte
	Sig       [64]byte
	CreatedAt int64 // seconds since 1970, by the author's clock
	Kind      int
	Tags      [][]string
	Content   string
}

// Invalid says why a text is not an event, or not an event of its author.
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
	d := decoder{json: jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))} // field checks for duplicate names
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
	json   *jsontext.Decoder
	ev     Event
	read   [len(fields)]bool
	values int // of tags
}

// fields are the fields of an event. All others are ignored.
var fields = [...]string{"id", "pubkey", "created_at", "kind", "tags", "content", "sig"}

func (d *decoder) event() error {
	if err := d.begin('{', "", "an object"); err != nil {
		return err
	}
	for d.json.PeekKind() == '"' {
		name, err := d.json.ReadValue()
		if err != nil {
			return err
		}
		if err := d.field(content(name)); err != nil {
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

// content returns the bytes between the quotes of a valid string.
func content(quoted jsontext.Value) []byte {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return quoted[1 : len(quoted)-1]
	}
	text, _ := jsontext.AppendUnquote(nil, quoted) // it has been read, so it is valid
	return text
}

func (d *decoder) field(name []byte) error {
	for i := range fields {
		if string(name) != fields[i] {
			continue
		}
		if d.read[i] {
			return &Invalid{Cause: "a duplicate field", Path: "/" + fields[i]}
		}
		d.read[i] = true
	}
	var err error
	switch string(name) {
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

// Limits of an event's tags. An empty tag takes two bytes on the wire and a hundred in memory;
// follow lists of some ten thousand accounts are the longest real ones.
const (
	maxTags   = 30_000
	maxValues = 4 * maxTags
)

// tags reads an array of arrays of strings.
func (d *decoder) tags() error {
	if err := d.begin('[', "/tags", "an array"); err != nil {
		return err
	}
	d.ev.Tags = make([][]string, 0, 4)
	for d.json.PeekKind() != ']' {
		if len(d.ev.Tags) == maxTags {
			return &Invalid{Cause: "too many tags", Path: "/tags", Expected: fmt.Sprintf("at most %d", maxTags), Received: "more"}
		}
		tag, err := d.tag()
		if invalid, ok := err.(*Invalid); ok { // it is returned as it is
			invalid.Path = "/tags/" + strconv.Itoa(len(d.ev.Tags))
		}
		if err != nil {
			return err
		}
		d.ev.Tags = append(d.ev.Tags, tag)
	}
	_, err := d.json.ReadToken()
	return err
}

func (d *decoder) tag() ([]string, error) {
	if err := d.begin('[', "", "an array"); err != nil {
		return nil, err
	}
	tag := []string{}
	for d.json.PeekKind() != ']' {
		if d.values++; d.values > maxValues {
			return nil, &Invalid{Cause: "too many values of tags", Expected: fmt.Sprintf("at most %d", maxValues), Received: "more"}
		}
		if len(tag) == 0 {
			tag = make([]string, 0, 4)
		}
		s, err := d.text("")
		if err != nil {
			return nil, err
		}
		tag = append(tag, s)
	}
	_, err := d.json.ReadToken()
	return tag, err
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

// hex reads as many lower-case hexadecimal digits as fill to.
func (d *decoder) hex(path string, to []byte) error {
	v, err := d.json.ReadValue()
	if err != nil {
		return err
	}
	if v.Kind() != '"' {
		return &Invalid{Cause: "wrong type", Path: path, Expected: "a string", Received: string(v)}
	}
	if s := content(v); !decodeHex(to, s) {
		return &Invalid{
			Cause: "wrong length or digits", Path: path, Expected: strconv.Itoa(2*len(to)) + " lower-case hexadecimal digits", Received: string(s),
		}
	}
	return nil
}

// decodeHex decodes lower-case hexadecimal digits. They must fill to exactly.
func decodeHex[T string | []byte](to []byte, s T) bool {
	if len(s) != 2*len(to) {
		return false
	}
	for i := range to {
		high, low := hexDigit(s[2*i]), hexDigit(s[2*i+1])
		if high|low > 15 {
			return false
		}
		to[i] = high<<4 | low
	}
	return true
}

// hexDigit returns the value of a digit, or 255 if it is not a digit.
func hexDigit(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}

// number reads an integer from 0 to most, in digits only.
func (d *decoder) number(path string, most int64) (int64, error) {
	v, err := d.json.ReadValue()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil || n < 0 || n > most || v[0] == '-' {
		return 0, &Invalid{
			Cause: "not a valid number", Path: path, Expected: "an integer from 0 to " + strconv.FormatInt(most, 10), Received: string(v),
		}
	}
	return n, nil
}

// ParseKey parses a public key or an id in the form used in events: 64 lower-case hexadecimal
// digits.
func ParseKey(s string) (key [32]byte, ok bool) {
	ok = decodeHex(key[:], s)
	return key, ok
}

// Tag returns the value of the first tag with a name, or false if there is none.
func (e *Event) Tag(name string) (string, bool) {
	for _, tag := range e.Tags {
		if len(tag) > 1 && tag[0] == name {
			return tag[1], true
		}
	}
	return "", false
}
