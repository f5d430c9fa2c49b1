package negentropy

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
)

const fingerprintSize = 16

// fingerprint returns a hash of the sum of all ids, and of their number.
func fingerprint(items []Item) [fingerprintSize]byte {
	var sum [4]uint64 // little-endian, modulo 2^256
	for i := range items {
		var carry uint64
		for word := range sum {
			sum[word], carry = bits.Add64(sum[word], binary.LittleEndian.Uint64(items[i].ID[8*word:]), carry)
		}
	}
	var b []byte
	for _, word := range sum {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	hash := sha256.Sum256(appendVarint(b, uint64(len(items))))
	return [fingerprintSize]byte(hash[:])
}

// writer writes the ranges of a message. It omits skipped ranges unless another range
// follows.
type writer struct {
	buf     []byte
	last    uint64 // the date of the last bound
	skipped *bound
}

func (w *writer) ids(to bound, items []Item) {
	w.head(to, modeIDs)
	w.buf = appendVarint(w.buf, uint64(len(items)))
	for i := range items {
		w.buf = append(w.buf, items[i].ID[:]...)
	}
}

func (w *writer) fingerprint(to bound, items []Item) {
	f := fingerprint(items)
	w.head(to, modeFingerprint)
	w.buf = append(w.buf, f[:]...)
}

// head writes the part before the contents of a range.
func (w *writer) head(to bound, mode uint64) {
	if w.skipped != nil {
		w.bound(*w.skipped, modeSkip)
		w.skipped = nil
	}
	w.bound(to, mode)
}

// bound writes a bound. The date is relative to that of the previous bound; 0 is infinity.
func (w *writer) bound(b bound, mode uint64) {
	since := uint64(0)
	if b.at != math.MaxUint64 {
		since = b.at - w.last + 1
	}
	w.last = b.at
	w.buf = appendVarint(w.buf, since)
	w.buf = appendVarint(w.buf, uint64(len(b.prefix)))
	w.buf = append(w.buf, b.prefix...)
	w.buf = appendVarint(w.buf, mode)
}

// appendVarint appends a number in groups of seven bits, the highest first.
func appendVarint(b []byte, n uint64) []byte {
	for shift := 63; shift > 0; shift -= 7 {
		if n>>shift > 0 {
			b = append(b, byte(n>>shift)|0x80) // the other bits are not needed
		}
	}
	return append(b, byte(n&0x7f))
}

var errTruncated = errors.New("the relay's message ends too early, or has a number that is too large")

// reader reads the ranges of a message.
type reader struct {
	buf  []byte
	last uint64 // the date of the last bound
}

func (r *reader) byte() (byte, bool) {
	if len(r.buf) == 0 {
		return 0, false
	}
	b := r.buf[0]
	r.buf = r.buf[1:]
	return b, true
}

func (r *reader) bytes(n int) ([]byte, error) {
	if n > len(r.buf) {
		return nil, errTruncated
	}
	b := r.buf[:n]
	r.buf = r.buf[n:]
	return b, nil
}

func (r *reader) varint() (n uint64, err error) {
	for {
		b, ok := r.byte()
		if !ok || n > math.MaxUint64>>7 {
			return 0, errTruncated
		}
		n = n<<7 | uint64(b&0x7f)
		if b < 0x80 {
			return n, nil
		}
	}
}

// rangeEnd reads the end of a range, and the mode of its contents.
func (r *reader) rangeEnd() (to bound, mode uint64, err error) {
	since, err := r.varint()
	if err != nil {
		return bound{}, 0, err
	}
	switch {
	case since == 0 || r.last == math.MaxUint64:
		to.at = math.MaxUint64
	case since-1 > math.MaxUint64-r.last:
		return bound{}, 0, errTruncated
	default:
		to.at = r.last + since - 1
	}
	r.last = to.at
	size, err := r.varint()
	if err == nil && size > 32 {
		err = errors.New("the relay sends a bound that is longer than an id")
	}
	if err != nil {
		return bound{}, 0, err
	}
	if to.prefix, err = r.bytes(int(size)); err != nil { // at most 32
		return bound{}, 0, err
	}
	mode, err = r.varint()
	return to, mode, err
}
