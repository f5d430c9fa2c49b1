package lexicon

import (
	"iter"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

type kind uint8

const (
	nothing kind = iota
	null
	boolean
	integer
	broken // a value that the data model refuses
	str
	array
	object
	bytesKind
	link
	blob
)

// node is one value of a record. The nodes are in the order of the record, so the
// first child of a node is the next node.
type node struct {
	start, end      uint32 // in the source; for a string, without its quotes
	key, keyEnd     uint32 // of a member; for an element, key is its index
	next            uint32 // the node after this one and its children
	parent          uint32
	size            uint32 // members, elements, or bytes of a string or of bytes
	definition      uint32 // 1 + the index of the matched definition in the catalog's names
	kind            kind
	escaped, member bool
	escapedKey      bool
}

type document struct {
	source string
	nodes  []node
	names  []string
}

// text returns the string of a node.
func (d *document) text(at uint32) string {
	n := &d.nodes[at]
	return d.unescape(n.start, n.end, n.escaped)
}

func (d *document) keyOf(at uint32) string {
	n := &d.nodes[at]
	return d.unescape(n.key, n.keyEnd, n.escapedKey)
}

func (d *document) unescape(start, end uint32, escaped bool) string {
	if !escaped {
		return d.source[start:end]
	}
	plain, _ := jsontext.AppendUnquote(nil, d.source[start-1:end+1]) // the scanner has checked it
	return string(plain)
}

// member returns the member of an object, or 0.
func (d *document) member(at uint32, name string) uint32 {
	for child := at + 1; child < d.nodes[at].next; child = d.nodes[child].next {
		if d.keyOf(child) == name {
			return child
		}
	}
	return 0
}

// pointer returns the JSON pointer to a node, cut to maxPath bytes.
func (d *document) pointer(at uint32) string {
	var line []uint32
	for ; at != 0; at = d.nodes[at].parent {
		line = append(line, at)
	}
	var path []byte
	for i := len(line) - 1; i >= 0; i-- {
		path = append(path, '/')
		if n := &d.nodes[line[i]]; n.member {
			path = appendToken(path, d.keyOf(line[i]))
		} else {
			path = strconv.AppendUint(path, uint64(n.key), 10)
		}
		if len(path) > maxPath {
			return cut(string(path), maxPath)
		}
	}
	return string(path)
}

func appendToken(path []byte, key string) []byte {
	if !strings.ContainsAny(key, "~/") {
		return append(path, key...)
	}
	return append(path, strings.NewReplacer("~", "~0", "/", "~1").Replace(key)...)
}

// cut returns s, or its first n bytes and an ellipsis.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

// integerOf returns the value of an integer. The scanner has checked it.
func (d *document) integerOf(at uint32) int64 {
	n := &d.nodes[at]
	value, _ := strconv.ParseInt(d.source[n.start:n.end], 10, 64)
	return value
}

// received describes a node for a problem.
func (d *document) received(at uint32) string {
	n := &d.nodes[at]
	size := strconv.Itoa(int(n.size))
	switch n.kind {
	case null, boolean, integer, broken:
		return cut(d.source[n.start:n.end], maxShown)
	case str:
		return "string " + quote(d.source[n.start:n.end])
	case array:
		return "array of " + size
	case object:
		return "object"
	case bytesKind:
		return size + " bytes"
	case link:
		return "link"
	}
	return "blob"
}

// quote returns a string as a problem shows it.
func quote(s string) string { return `"` + cut(s, maxShown) + `"` }

// A Value is a part of a record. The zero Value is a part that does not exist: its
// methods return zero values too.
type Value struct {
	doc *document
	at  uint32
}

// Exists reports whether the value exists.
func (v Value) Exists() bool { return v.doc != nil }

func (v Value) is(k kind) bool { return v.doc != nil && v.doc.nodes[v.at].kind == k }

// Path returns the JSON pointer to the value.
func (v Value) Path() string {
	if v.doc == nil {
		return ""
	}
	return v.doc.pointer(v.at)
}

// Key returns the name of a member, or "" for any other value.
func (v Value) Key() string {
	if v.doc == nil || !v.doc.nodes[v.at].member {
		return ""
	}
	return v.doc.keyOf(v.at)
}

// Parent returns the object or array that contains the value.
func (v Value) Parent() Value {
	if v.doc == nil || v.at == 0 {
		return Value{}
	}
	return Value{v.doc, v.doc.nodes[v.at].parent}
}

// Field returns a member of an object or a blob.
func (v Value) Field(name string) Value {
	if !v.is(object) && !v.is(blob) {
		return Value{}
	}
	if at := v.doc.member(v.at, name); at != 0 {
		return Value{v.doc, at}
	}
	return Value{}
}

// Len returns the number of elements or members.
func (v Value) Len() int {
	if !v.is(array) && !v.is(object) {
		return 0
	}
	return int(v.doc.nodes[v.at].size)
}

// Items returns the elements of an array, or the values of an object.
func (v Value) Items() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		if v.Len() == 0 {
			return
		}
		i := 0
		for at := v.at + 1; at < v.doc.nodes[v.at].next; at = v.doc.nodes[at].next {
			if !yield(i, Value{v.doc, at}) {
				return
			}
			i++
		}
	}
}

// All returns the value and everything in it, in the order of the record.
func (v Value) All() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.doc == nil {
			return
		}
		for at := v.at; at < v.doc.nodes[v.at].next; at++ {
			if !yield(Value{v.doc, at}) {
				return
			}
		}
	}
}

// Text returns a string.
func (v Value) Text() string {
	if !v.is(str) {
		return ""
	}
	return v.doc.text(v.at)
}

// Int returns an integer, and whether the value is one.
func (v Value) Int() (int64, bool) {
	if !v.is(integer) {
		return 0, false
	}
	return v.doc.integerOf(v.at), true
}

// IsTrue reports whether the value is true.
func (v Value) IsTrue() bool {
	return v.is(boolean) && v.doc.source[v.doc.nodes[v.at].start] == 't'
}

// Definition returns the name of the object definition that the value was validated
// with, such as "com.example.defs#span", or "".
func (v Value) Definition() string {
	if v.doc == nil || v.doc.nodes[v.at].definition == 0 {
		return ""
	}
	return v.doc.names[v.doc.nodes[v.at].definition-1]
}

// Received describes the value for a problem.
func (v Value) Received() string {
	if v.doc == nil {
		return "nothing"
	}
	return v.doc.received(v.at)
}
