package consumer

import (
	"bytes"
	"strconv"
)

// networkBytes returns the size of a record in CBOR, which is what the network
// limits. A control character takes one byte there and six in JSON. The result is
// never too large, so no valid record is rejected for its JSON encoding. The record
// must be valid JSON.
func networkBytes(record []byte) (size int) {
	key := "" // the name of the next value
	for i := 0; i < len(record); {
		switch c := record[i]; {
		case c == '"':
			end := i + 1
			for ; record[end] != '"'; end++ {
				if record[end] == '\\' {
					end++
				}
			}
			text := record[i+1 : end]
			i = end + 1
			if rest := bytes.TrimLeft(record[i:], " \t\r\n"); len(rest) > 0 && rest[0] == ':' {
				key = string(text[:min(len(text), len("$bytes")+1)])
				if key != "$link" && key != "$bytes" {
					size += textBytes(text)
				}
				continue
			}
			switch key {
			case "$link": // base32 of a CID
				size += len(text) / 2
			case "$bytes": // base64
				size += len(text) / 4 * 3
			default:
				size += textBytes(text)
			}
		case c == '{', c == '[', c == 't', c == 'f', c == 'n':
			size++
			for i++; i < len(record) && record[i] >= 'a' && record[i] <= 'z'; i++ {
			}
		case c == '-', c >= '0' && c <= '9':
			start := i
			for i++; i < len(record) && bytes.IndexByte([]byte("0123456789+-.eE"), record[i]) >= 0; i++ {
			}
			size += numberBytes(record[start:i])
		case c == ',':
			key = ""
			i++
		default:
			i++
		}
	}
	return size
}

// textBytes returns the length of a JSON string's content in CBOR. An escaped
// U+FFFD counts as one byte: it may replace a NUL, see Event.Replaced.
func textBytes(text []byte) int {
	n := 0
	for i := 0; i < len(text); {
		switch {
		case text[i] != '\\':
			n++
			i++
		case text[i+1] != 'u':
			n++
			i += 2
		default:
			unit, _ := strconv.ParseUint(string(text[i+2:i+6]), 16, 16) // four hexadecimal digits
			switch {
			case unit < 0x80, unit == 0xFFFD:
				n++
			case unit < 0x800, unit >= 0xD800 && unit <= 0xDFFF: // a pair of surrogates is four bytes
				n += 2
			default:
				n += 3
			}
			i += 6
		}
	}
	return n + headerBytes(uint64(n))
}

// numberBytes returns the length of a JSON number in CBOR.
func numberBytes(text []byte) int {
	n, err := strconv.ParseInt(string(text), 10, 64)
	switch {
	case err != nil:
		return min(9, len(text))
	case n < 0:
		return headerBytes(uint64(-1 - n))
	}
	return headerBytes(uint64(n))
}

// headerBytes returns the length of the CBOR header that encodes n.
func headerBytes(n uint64) int {
	switch {
	case n < 24:
		return 1
	case n < 1<<8:
		return 2
	case n < 1<<16:
		return 3
	case n < 1<<32:
		return 5
	}
	return 9
}
