package simnet

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
)

// contentID is a CID in binary.
type contentID string

var base32Lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

func (c contentID) String() string { return "b" + base32Lower.EncodeToString([]byte(c)) }

// parseCID returns the binary form of a CID.
func parseCID(text string) contentID {
	raw, err := base32Lower.DecodeString(strings.TrimPrefix(text, "b"))
	if err != nil {
		panic(fmt.Sprintf("simnet holds an invalid CID %q: %v", text, err)) // a bug in this package
	}
	return contentID(raw)
}

// cidOfBlock returns the CID of a block of DAG-CBOR.
func cidOfBlock(block []byte) contentID {
	sum := sha256.Sum256(block)
	return contentID("\x01\x71\x12\x20" + string(sum[:]))
}

// recordBlock returns the DAG-CBOR of a record in JSON.
func recordBlock(record json.RawMessage) []byte {
	decoder := json.NewDecoder(bytes.NewReader(record))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		panic(fmt.Sprintf("simnet made an invalid record: %v", err))
	}
	return appendCBOR(nil, v)
}

// object is a map of DAG-CBOR. Its values have types that appendCBOR accepts.
type object map[string]any

// appendCBOR appends a value as DAG-CBOR. It accepts the types that encoding/json
// decodes to, the links and bytes of the network's JSON, and also contentID, []byte
// and int.
func appendCBOR(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return append(b, 0xf6)
	case bool:
		if v {
			return append(b, 0xf5)
		}
		return append(b, 0xf4)
	case string:
		return append(appendHead(b, 3, uint64(len(v))), v...)
	case []byte:
		return append(appendHead(b, 2, uint64(len(v))), v...)
	case verbatim:
		return append(b, v...)
	case contentID:
		b = append(appendHead(b, 6, 42), 0x58, byte(len(v)+1), 0)
		return append(b, v...)
	case int:
		return appendInt(b, int64(v))
	case int64:
		return appendInt(b, v)
	case json.Number:
		return appendNumber(b, v)
	case []any:
		b = appendHead(b, 4, uint64(len(v)))
		for _, one := range v {
			b = appendCBOR(b, one)
		}
		return b
	case object:
		return appendMap(b, v)
	case map[string]any:
		if special, ok := linkOrBytes(v); ok {
			return appendCBOR(b, special)
		}
		return appendMap(b, v)
	}
	panic(fmt.Sprintf("simnet cannot write a %T as CBOR", v)) // a bug in this package
}

// appendHead appends a major type and its number, in the shortest form.
func appendHead(b []byte, major byte, n uint64) []byte {
	major <<= 5
	switch {
	case n < 24:
		return append(b, major|byte(n))
	case n <= math.MaxUint8:
		return append(b, major|24, byte(n))
	case n <= math.MaxUint16:
		return binary.BigEndian.AppendUint16(append(b, major|25), uint16(n))
	case n <= math.MaxUint32:
		return binary.BigEndian.AppendUint32(append(b, major|26), uint32(n))
	}
	return binary.BigEndian.AppendUint64(append(b, major|27), n)
}

func appendInt(b []byte, n int64) []byte {
	if n < 0 {
		return appendHead(b, 1, uint64(-1-n))
	}
	return appendHead(b, 0, uint64(n))
}

// appendNumber appends a number of JSON: an integer, or a float of 64 bits.
func appendNumber(b []byte, n json.Number) []byte {
	if i, err := n.Int64(); err == nil {
		return appendInt(b, i)
	}
	f, err := n.Float64()
	if err != nil {
		panic(fmt.Sprintf("simnet made an invalid number: %v", err))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xfb), math.Float64bits(f))
}

// appendMap appends a map. DAG-CBOR orders names by length first.
func appendMap(b []byte, m map[string]any) []byte {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.SortFunc(names, func(x, y string) int {
		if len(x) != len(y) {
			return len(x) - len(y)
		}
		return strings.Compare(x, y)
	})
	b = appendHead(b, 5, uint64(len(names)))
	for _, name := range names {
		b = appendCBOR(appendCBOR(b, name), m[name])
	}
	return b
}

// linkOrBytes returns the value that {"$link": …} or {"$bytes": …} stands for.
func linkOrBytes(m map[string]any) (any, bool) {
	if len(m) != 1 {
		return nil, false
	}
	if link, ok := m["$link"].(string); ok {
		return parseCID(link), true
	}
	if text, ok := m["$bytes"].(string); ok {
		raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(text, "="))
		return raw, err == nil
	}
	return nil, false
}

// repoBlock is a block of a CAR.
type repoBlock struct {
	cid  contentID
	data []byte
}

// carOf returns a CAR of version 1 whose root is the first block.
func carOf(blocks []repoBlock) []byte {
	header := appendCBOR(nil, object{"version": 1, "roots": []any{blocks[0].cid}})
	b := append(binary.AppendUvarint(nil, uint64(len(header))), header...)
	for _, one := range blocks {
		b = binary.AppendUvarint(b, uint64(len(one.cid)+len(one.data)))
		b = append(append(b, one.cid...), one.data...)
	}
	return b
}
