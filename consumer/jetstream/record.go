package jetstream

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/consumer"
)

// maxDepth limits the nesting of a record, in levels.
const maxDepth = 200

// tooDeep reports whether a record in the frame is nested deeper than maxDepth.
// Most frames have too few brackets for that, which is a fast check.
func tooDeep(frame []byte) bool {
	const above = 2 // the levels of the frame and its commit
	if bytes.Count(frame, []byte("{"))+bytes.Count(frame, []byte("[")) <= maxDepth+above {
		return false
	}
	depth := 0
	for i := 0; i < len(frame); i++ {
		switch frame[i] {
		case '"':
			for i++; i < len(frame) && frame[i] != '"'; i++ {
				if frame[i] == '\\' {
					i++
				}
			}
		case '{', '[':
			if depth++; depth > maxDepth+above {
				return true
			}
		case '}', ']':
			depth--
		}
	}
	return false
}

// maxExponent limits the exponents of a record's numbers to the range of a double.
// Postgres accepts larger ones, but writes such numbers out in full: a record of 60
// kB becomes a gigabyte when it is read.
const maxExponent = 324

// takeRecord sets the event's record, without the characters that jsonb rejects.
func (d *decoder) takeRecord(ev *consumer.Event) error {
	if n := absurdNumber(d.record); n != nil {
		return d.refuse("a number is out of the range of a double", "/commit/record", "exponents up to "+strconv.Itoa(maxExponent),
			string(n[:min(len(n), 2*consumer.MaxQuoted)]))
	}
	ev.Record = d.record
	if !bytes.Contains(d.record, []byte(`\u`)) {
		return nil
	}
	ev.Record, ev.Replaced = replaced(d.record)
	if ev.Replaced == 0 {
		return nil
	}
	// Names that differed only in replaced characters may now be equal.
	if !jsontext.Value(ev.Record).IsValid() {
		return d.refuse("two names differ only in characters that cannot be stored", "/commit/record", "names that differ", "the same name twice")
	}
	return nil
}

// absurdNumber returns the first number of a record whose exponent is beyond
// maxExponent, starting at its "e". It skips strings, which are most of a record.
func absurdNumber(record []byte) []byte {
	for i := 0; i < len(record); i++ {
		switch c := record[i]; {
		case c == '"':
			i = closing(record, i)
		case c|0x20 == 'e' && record[i-1] <= '9': // not the e of true and false
			exponent, n := record[i+1:], 0
			if exponent[0] == '+' || exponent[0] == '-' {
				exponent = exponent[1:]
			}
			for _, digit := range exponent {
				if digit < '0' || digit > '9' {
					break
				}
				if n = 10*n + int(digit-'0'); n > maxExponent {
					return record[i:]
				}
			}
		}
	}
	return nil
}

// closing returns the index of the end of the string that begins at i.
func closing(record []byte, i int) int {
	for {
		length := bytes.IndexByte(record[i+1:], '"')
		if length < 0 {
			return len(record)
		}
		i += 1 + length
		escapes := 0
		for record[i-1-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
	}
}

// replaced replaces every escaped NUL and every escaped lone surrogate by U+FFFD,
// and returns their number. If there are none, it returns the record itself,
// otherwise a copy.
func replaced(record []byte) ([]byte, int) {
	out, n := record, 0
	replace := func(at int) {
		if n == 0 {
			out = slices.Clone(record)
		}
		copy(out[at:], `\ufffd`)
		n++
	}
	for i := 0; i < len(record); {
		next := bytes.IndexByte(record[i:], '\\')
		if next < 0 {
			break
		}
		i += next
		if record[i+1] != 'u' {
			i += 2 // the escaped character may be a backslash
			continue
		}
		switch unit := hex4(record[i+2:]); {
		case unit == 0, unit >= 0xDC00 && unit <= 0xDFFF:
			replace(i)
		case unit >= 0xD800 && unit <= 0xDBFF:
			if rest := record[i+6:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
				if low := hex4(rest[2:]); low >= 0xDC00 && low <= 0xDFFF {
					i += 12
					continue
				}
			}
			replace(i)
		}
		i += 6
	}
	return out, n
}

// hex4 decodes the four hexadecimal digits of a valid escape.
func hex4(b []byte) rune {
	var r rune
	for _, c := range b[:4] {
		switch {
		case c <= '9':
			r = r<<4 | rune(c-'0')
		default:
			r = r<<4 | rune(c|0x20-'a'+10)
		}
	}
	return r
}
