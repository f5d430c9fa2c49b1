// Package archive defines the format of the archive: what a segment is, what its
// manifest contains, and what a store of segments must do. It uses no database and no
// network; the folders below it are stores.
//
// A segment is a sequence of zstd frames. Each contains about 1 MiB of whole records
// and has a checksum. A seek table follows, which every zstd decoder skips. Any zstd
// decoder decompresses a segment to
//
//	(length of the record as a little-endian u32, record)*
//
// A segment has no header. Its manifest describes it: a JSON object that is stored
// beside it.
package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
)

// MaxRecord is the size of the largest record. A longer record means corruption.
const MaxRecord = 16 << 20

// frameBytes is the raw size at which a frame is closed.
const frameBytes = 1 << 20

// maxFrame is the raw size of the largest frame: a frame that the largest record
// closes.
const maxFrame = frameBytes + 4 + MaxRecord

// ErrCorrupt is wrapped by the error of every decoder that refuses its input.
var ErrCorrupt = errors.New("corrupt")

func corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// AppendRecord appends a record and its length to raw.
func AppendRecord(raw, record []byte) []byte {
	raw = binary.LittleEndian.AppendUint32(raw, uint32(len(record))) // at most MaxRecord
	return append(raw, record...)
}

// Records yields the records in raw. An error ends the sequence: raw is cut off, or a
// length is impossible.
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

// NewID returns the ID of the event that these parts identify: the first half of their
// SHA-256. To make two events with one ID takes 2^64 attempts, and the only effect is
// that one of the attacker's own events is not archived. IDs are stored: do not change
// the function.
func NewID(parts ...string) ID {
	var room [256]byte
	b := room[:0]
	for _, part := range parts {
		b = binary.LittleEndian.AppendUint32(b, uint32(len(part))) // far below 4 GiB
		b = append(b, part...)
	}
	sum := sha256.Sum256(b)
	return ID(sum[:16])
}
