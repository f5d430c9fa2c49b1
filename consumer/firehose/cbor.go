package firehose

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"strconv"
	"unsafe"

	"github.com/weir-social/weir/consumer"
)

// The major types of CBOR.
const (
	majorUnsigned = iota
	majorNegative
	majorBytes
	majorText
	majorArray
	majorMap
	majorTag
	majorSimple
)

// Whole items of major type 7.
const (
	cborFalse   = 0xf4
	cborTrue    = 0xf5
	cborNull    = 0xf6
	cborFloat64 = 0xfb
)

// reader reads DAG-CBOR. Nothing that it reads is longer than what remains of the
// data, so no length from the network allocates memory.
//
// It accepts keys in any order and lengths that are longer than necessary: servers
// send them, they have only one meaning, and hashes are computed from the bytes. It
// refuses what two readers could understand differently: indefinite lengths, and a
// name that occurs twice in a map.
type reader struct {
	data []byte
	at   int
}

func (r *reader) rest() int { return len(r.data) - r.at }

// head reads the type of an item and its argument.
func (r *reader) head() (major byte, n uint64, bad *consumer.Malformed) {
	if r.at >= len(r.data) {
		return 0, 0, r.ends()
	}
	major, info := r.data[r.at]>>5, r.data[r.at]&31
	if info < 24 {
		r.at++
		return major, uint64(info), nil
	}
	if info > 27 {
		received := "a reserved one"
		if info == 31 {
			received = "an indefinite one"
		}
		return 0, 0, &consumer.Malformed{Cause: "not DAG-CBOR", Expected: "a length", Received: received}
	}
	size := 1 << (info - 24)
	if r.rest() < 1+size {
		return 0, 0, r.ends()
	}
	from := r.data[r.at+1:]
	switch size {
	case 1:
		n = uint64(from[0])
	case 2:
		n = uint64(binary.BigEndian.Uint16(from))
	case 4:
		n = uint64(binary.BigEndian.Uint32(from))
	case 8:
		n = binary.BigEndian.Uint64(from)
	}
	r.at += 1 + size
	return major, n, nil
}

// expect reads the head of an item of one type.
func (r *reader) expect(major byte) (uint64, *consumer.Malformed) {
	start := r.at
	got, n, bad := r.head()
	if bad != nil {
		return 0, bad
	}
	if got != major {
		r.at = start
		return 0, r.wrongType(majorName(major))
	}
	return n, nil
}

// content reads a text or byte string.
func (r *reader) content(major byte) ([]byte, *consumer.Malformed) {
	n, bad := r.expect(major)
	if bad != nil {
		return nil, bad
	}
	if n > uint64(r.rest()) {
		return nil, r.ends()
	}
	start := r.at
	r.at += int(n)
	return r.data[start:r.at:r.at], nil
}

// text reads a string, which shares memory with the data and may be invalid UTF-8.
func (r *reader) text(s *string) *consumer.Malformed {
	b, bad := r.content(majorText)
	*s = alias(b)
	return bad
}

// count reads the head of an array or a map. Each item takes a byte at least, so
// the count is bounded.
func (r *reader) count(major byte) (int, *consumer.Malformed) {
	n, bad := r.expect(major)
	if bad != nil {
		return 0, bad
	}
	size := uint64(1)
	if major == majorMap {
		size = 2
	}
	if n > uint64(r.rest())/size {
		return 0, r.ends()
	}
	return int(n), nil
}

func (r *reader) integer(i *int64) *consumer.Malformed {
	start := r.at
	major, n, bad := r.head()
	switch {
	case bad != nil:
		return bad
	case major > majorNegative:
		r.at = start
		return r.wrongType(majorName(majorUnsigned))
	case n > math.MaxInt64:
		return hugeInteger(major, n)
	}
	*i = int64(n)
	if major == majorNegative {
		*i = -1 - *i
	}
	return nil
}

func hugeInteger(major byte, n uint64) *consumer.Malformed {
	received := strconv.FormatUint(n, 10)
	if major == majorNegative {
		received = "-1 - " + received
	}
	return &consumer.Malformed{Cause: "not an integer of 64 bits", Expected: "-2^63 to 2^63-1", Received: received}
}

func (r *reader) boolean(b *bool) *consumer.Malformed {
	if r.at < len(r.data) && (r.data[r.at] == cborFalse || r.data[r.at] == cborTrue) {
		*b = r.data[r.at] == cborTrue
		r.at++
		return nil
	}
	return r.wrongType("true or false")
}

// null reads a null if it is next.
func (r *reader) null() bool {
	if r.at < len(r.data) && r.data[r.at] == cborNull {
		r.at++
		return true
	}
	return false
}

// skip skips an item of any type, without recursion.
func (r *reader) skip() *consumer.Malformed {
	for left := uint64(1); left > 0; left-- { // bounded by the square of the data's length
		major, n, bad := r.head()
		if bad != nil {
			return bad
		}
		switch major {
		case majorBytes, majorText:
			if n > uint64(r.rest()) {
				return r.ends()
			}
			r.at += int(n)
		case majorMap, majorArray:
			items := n
			if major == majorMap {
				items *= 2
			}
			if n > uint64(r.rest()) || items > uint64(r.rest()) {
				return r.ends()
			}
			left += items
		case majorTag:
			left++
		}
	}
	return nil
}

// object reads a map and calls field for each name, to read its value. It continues
// after an error that leaves the structure readable, so that a refused frame keeps
// its place, and returns the first error.
func (r *reader) object(field func(name []byte) *consumer.Malformed) *consumer.Malformed {
	n, first := r.count(majorMap)
	if first != nil {
		return first
	}
	start, sorted := r.at, true
	var last []byte
	for i := range n {
		name, bad := r.content(majorText)
		if bad != nil {
			return cmp.Or(first, bad)
		}
		sorted = sorted && (i == 0 || less(last, name))
		last = name
		value := r.at
		if bad := field(name); bad != nil {
			first = cmp.Or(first, within("/"+string(name[:min(len(name), 2*consumer.MaxQuoted)]), bad))
			r.at = value
			if r.skip() != nil {
				return first
			}
		}
	}
	if !sorted && first == nil {
		return r.unique(start, n)
	}
	return first
}

// less reports whether a comes before b in a map of canonical CBOR, where no name
// occurs twice.
func less(a, b []byte) bool {
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return bytes.Compare(a, b) < 0
}

// unique returns an error if a map of n fields, read before, has a name twice.
func (r *reader) unique(start, n int) *consumer.Malformed {
	again := reader{data: r.data, at: start}
	seen := make(map[string]bool, min(n, 64))
	for range n {
		name, bad := again.content(majorText)
		if bad == nil {
			bad = again.skip()
		}
		if bad != nil {
			return bad
		}
		if seen[alias(name)] {
			return duplicate(name)
		}
		seen[alias(name)] = true
	}
	return nil
}

func duplicate(name []byte) *consumer.Malformed {
	return &consumer.Malformed{
		Cause: "a name occurs twice in one object", Path: "/" + consumer.Shorten(string(name[:min(len(name), 2*consumer.MaxQuoted)])),
	}
}

func (r *reader) ends() *consumer.Malformed {
	return &consumer.Malformed{Cause: "the CBOR ends within a value", Received: strconv.Itoa(len(r.data)) + " bytes"}
}

// wrongType returns the error for the item that is next.
func (r *reader) wrongType(expected string) *consumer.Malformed {
	if r.at >= len(r.data) {
		return r.ends()
	}
	return &consumer.Malformed{Cause: "wrong type", Expected: expected, Received: itemName(r.data[r.at])}
}

func majorName(major byte) string {
	return [...]string{"an integer", "an integer", "bytes", "a string", "an array", "an object", "a link", "a simple value"}[major]
}

// itemName names an item by its first byte.
func itemName(first byte) string {
	switch first {
	case cborFalse, cborTrue:
		return "true or false"
	case cborNull:
		return "null"
	case 0xf7:
		return "undefined"
	case 0xf9:
		return "a float of 16 bits"
	case 0xfa:
		return "a float of 32 bits"
	case cborFloat64:
		return "a float"
	}
	return majorName(first >> 5)
}

// within puts the path of an enclosing value in front of the error's path.
func within(path string, bad *consumer.Malformed) *consumer.Malformed {
	bad.Path = consumer.Shorten(path) + bad.Path
	if len(bad.Path) > 4*consumer.MaxQuoted { // the path of a deep record
		bad.Path = consumer.Shorten(bad.Path)
	}
	return bad
}

// alias returns b as a string that shares its memory: frames are never modified.
func alias(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
