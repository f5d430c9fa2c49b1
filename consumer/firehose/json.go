package firehose

import (
	"bytes"
	"encoding/base64"
	"math"
	"slices"
	"strconv"

	"github.com/weir-social/weir/consumer"
)

// maxDepth limits the nesting of a record, in levels, to what Jetstream reads.
// Without a limit, a record that is a megabyte of arrays overflows the stack, which
// ends the process.
const maxDepth = 128

// keepBuffer is how much memory a buffer keeps between records.
const keepBuffer = 256 << 10

// transcoder writes records as JSON, in Jetstream's form: names in the order of
// their bytes, <, > and & escaped, a link as {"$link"}, bytes as {"$bytes"}.
//
// What jsonb rejects becomes U+FFFD and is counted: NUL, and each byte of invalid
// UTF-8. A float of 64 bits becomes a number. Other floats, integers beyond 64 bits,
// undefined and other tags than links are refused.
type transcoder struct {
	reader
	out      []byte
	replaced int
	fields   []field // of the maps that are open
	spare    []byte  // for sorting a map
}

// field is a field of a map.
type field struct {
	name       []byte // as received
	start, end int    // of the name and the value in the output
	colon      int
}

// transcode appends a record as JSON to dst. It returns how many characters were
// replaced.
func (t *transcoder) transcode(dst, record []byte) (out []byte, replaced int, bad *consumer.Malformed) {
	t.reader, t.out, t.replaced, t.fields = reader{data: record}, dst, 0, t.fields[:0]
	switch {
	case len(record) == 0 || record[0]>>5 != majorMap:
		bad = t.wrongType("an object")
	default:
		bad = t.writeValue(0)
	}
	if bad == nil && t.rest() > 0 {
		bad = &consumer.Malformed{Cause: "the record has data after its end", Received: strconv.Itoa(t.rest()) + " bytes"}
	}
	if cap(t.spare) > keepBuffer {
		t.spare = nil
	}
	if cap(t.fields) > keepBuffer/64 {
		t.fields = nil
	}
	out, t.out = t.out, nil
	return out, t.replaced, bad
}

// writeValue writes the next item, which is nested inside depth others.
func (t *transcoder) writeValue(depth int) *consumer.Malformed {
	if t.at >= len(t.data) {
		return t.ends()
	}
	switch major := t.data[t.at] >> 5; major {
	case majorUnsigned, majorNegative:
		var i int64
		bad := t.integer(&i)
		t.out = strconv.AppendInt(t.out, i, 10)
		return bad
	case majorText:
		s, bad := t.content(majorText)
		if bad == nil {
			t.writeText(s)
		}
		return bad
	case majorBytes:
		b, bad := t.content(majorBytes)
		t.out = append(t.out, `{"$bytes":"`...)
		t.out = append(base64.RawStdEncoding.AppendEncode(t.out, b), `"}`...)
		return bad
	case majorTag:
		return t.writeLink()
	case majorSimple:
		return t.writeSimple()
	case majorArray:
		return t.writeArray(depth + 1)
	}
	return t.writeObject(depth + 1)
}

func (t *transcoder) writeLink() *consumer.Malformed {
	cid, bad := t.anyLink()
	t.out = append(t.out, `{"$link":"`...)
	t.out = append(appendCID(t.out, cid), `"}`...)
	return bad
}

func (t *transcoder) writeSimple() *consumer.Malformed {
	switch t.data[t.at] {
	case cborFalse:
		t.out = append(t.out, "false"...)
	case cborTrue:
		t.out = append(t.out, "true"...)
	case cborNull:
		t.out = append(t.out, "null"...)
	case cborFloat64:
		return t.writeFloat()
	default:
		return t.wrongType("a value of the network's data model")
	}
	t.at++
	return nil
}

// writeFloat writes a number in the shortest form, as JavaScript and Go do.
func (t *transcoder) writeFloat() *consumer.Malformed {
	_, bits, bad := t.head()
	if bad != nil {
		return bad
	}
	f := math.Float64frombits(bits)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return &consumer.Malformed{Cause: "not a number", Expected: "a finite float", Received: strconv.FormatFloat(f, 'g', -1, 64)}
	}
	if size := math.Abs(f); size != 0 && (size < 1e-6 || size >= 1e21) {
		t.out = strconv.AppendFloat(t.out, f, 'e', -1, 64)
		if n := len(t.out); t.out[n-4] == 'e' && t.out[n-3] == '-' && t.out[n-2] == '0' { // e-09 is e-9
			t.out = append(t.out[:n-2], t.out[n-1])
		}
		return nil
	}
	t.out = strconv.AppendFloat(t.out, f, 'f', -1, 64)
	return nil
}

func (t *transcoder) writeArray(depth int) *consumer.Malformed {
	n, bad := t.count(majorArray)
	if bad == nil && depth > maxDepth {
		bad = tooDeep()
	}
	if bad != nil {
		return bad
	}
	t.out = append(t.out, '[')
	for i := range n {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		if bad := t.writeValue(depth); bad != nil {
			return within("/"+strconv.Itoa(i), bad)
		}
	}
	t.out = append(t.out, ']')
	return nil
}

func tooDeep() *consumer.Malformed {
	return &consumer.Malformed{
		Cause: "the record is nested too deeply", Expected: strconv.Itoa(maxDepth) + " levels at most", Received: "more",
	}
}

func (t *transcoder) writeObject(depth int) *consumer.Malformed {
	n, bad := t.count(majorMap)
	if bad == nil && depth > maxDepth {
		bad = tooDeep()
	}
	if bad != nil {
		return bad
	}
	t.out = append(t.out, '{')
	outer, start, renamed := len(t.fields), len(t.out), false
	for i := range n {
		name, bad := t.content(majorText)
		if bad != nil {
			return bad
		}
		if i > 0 {
			t.out = append(t.out, ',')
		}
		f, replaced := field{name: name, start: len(t.out)}, t.replaced
		t.writeText(name)
		renamed = renamed || t.replaced > replaced
		f.colon = len(t.out)
		t.out = append(t.out, ':')
		if bad := t.writeValue(depth); bad != nil {
			return within("/"+string(name[:min(len(name), 2*consumer.MaxQuoted)]), bad)
		}
		f.end = len(t.out)
		t.fields = append(t.fields, f)
	}
	if renamed {
		bad = t.distinct(t.fields[outer:])
	}
	if bad == nil {
		bad = t.sort(t.fields[outer:], start)
	}
	t.fields = t.fields[:outer]
	t.out = append(t.out, '}')
	return bad
}

// distinct returns an error if two names are written the same. They may have been
// different before characters were replaced.
func (t *transcoder) distinct(fields []field) *consumer.Malformed {
	seen := make(map[string]bool, len(fields))
	for _, f := range fields {
		written := string(t.out[f.start:f.colon])
		if seen[written] {
			return duplicate(f.name)
		}
		seen[written] = true
	}
	return nil
}

// sort sorts the fields of a map, which are written from start on. CBOR sorts short
// names first.
func (t *transcoder) sort(fields []field, start int) *consumer.Malformed {
	sorted := true
	for i := 1; i < len(fields) && sorted; i++ {
		sorted = bytes.Compare(fields[i-1].name, fields[i].name) < 0
	}
	if sorted {
		return nil
	}
	slices.SortFunc(fields, func(a, b field) int { return bytes.Compare(a.name, b.name) })
	for i := 1; i < len(fields); i++ {
		if bytes.Equal(fields[i-1].name, fields[i].name) {
			return duplicate(fields[i].name)
		}
	}
	t.spare = append(t.spare[:0], t.out[start:]...)
	t.out = t.out[:start]
	for i, f := range fields {
		if i > 0 {
			t.out = append(t.out, ',')
		}
		t.out = append(t.out, t.spare[f.start-start:f.end-start]...)
	}
	return nil
}
