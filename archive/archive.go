// Package archive is the format of the archive: what a segment is, what its manifest
// says, and what a store of segments must do. It knows no database and no network;
// the folders below it are stores.
//
// A segment is a run of zstd frames of about 1 MiB of whole records each, with
// checksums, and a seek table that every zstd decoder skips. Decompressed by any of
// them it is
//
//	(length of the record as a little-endian u32, record)*
//
// A segment has no header. What is known about it is in its manifest, a JSON object
// that is stored beside it.
package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// MaxRecord is the size of the largest record. A longer one is corruption.
const MaxRecord = 16 << 20

// frameBytes is the raw size at which a frame is closed.
const frameBytes = 1 << 20

// maxFrame is the raw size of the largest frame: one that is closed by the largest
// record.
const maxFrame = frameBytes + 4 + MaxRecord

// ErrCorrupt is in the error of every decoder that refuses its input.
var ErrCorrupt = errors.New("corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// AppendRecord appends a record and its length to raw.
func AppendRecord(raw, record []byte) []byte {
	raw = binary.LittleEndian.AppendUint32(raw, uint32(len(record))) //nolint:gosec // at most MaxRecord
	return append(raw, record...)
}

// Records yields the records in raw. An error ends it: raw is cut off, or a length is
// impossible.
func Records(raw []byte) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for len(raw) > 0 {
			if len(raw) < 4 {
				yield(nil, corrupt("%d bytes after the last record", len(raw)))
				return
			}
			n := binary.LittleEndian.Uint32(raw)
			if raw = raw[4:]; n > MaxRecord || int(n) > len(raw) {
				yield(nil, corrupt("a record of %d bytes, and %d bytes are left", n, len(raw)))
				return
			}
			if !yield(raw[:n:n], nil) {
				return
			}
			raw = raw[n:]
		}
	}
}

// An ID names an event on every server of its network.
type ID [16]byte

// NewID returns the ID of an event that these parts identify: the first half of their
// SHA-256. Whoever wants two events with one ID needs 2^64 tries, and gains that one of
// his own events is not archived. IDs are stored: do not change the function.
func NewID(parts ...string) ID {
	var room [256]byte
	b := room[:0]
	for _, part := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part))) //nolint:gosec // far below 4 GiB
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return ID(sum[:16])
}
