// Package negentropy finds the events that a relay has and we lack, by comparing ranges of
// two sorted sets (NIP-77, protocol version 1). For ranges that are equal on both sides, only
// fingerprints are sent.
package negentropy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Item is an event: its date in seconds, and its id.
type Item struct {
	At int64
	ID [32]byte
}

func (a Item) compare(b Item) int {
	return cmp.Or(cmp.Compare(a.At, b.At), bytes.Compare(a.ID[:], b.ID[:]))
}

const (
	version = 0x61 // of the protocol

	buckets  = 16  // parts into which a range is divided
	idList   = 32  // maximum number of items of a range that are sent as ids
	leftOver = 200 // bytes of a message reserved for the end, and for a skipped range
)

// The modes of a range.
const (
	modeSkip        = 0
	modeFingerprint = 1
	modeIDs         = 2
)

// Session compares a set with a relay's set. One goroutine uses it.
type Session struct {
	items   []Item
	frame   int // maximum number of bytes of a message that it sends
	most    int // maximum number of ids to find
	missing [][32]byte
}

// ErrMany means that the relay has more events that we lack than the maximum.
var ErrMany = errors.New("too many events are missing")

// New begins a comparison of the events that we have, which it sorts. frame is the maximum
// number of bytes of a message, at least 4096. most is the maximum number of missing events
// to find.
func New(have []Item, frame, most int) *Session {
	slices.SortFunc(have, Item.compare)
	return &Session{items: slices.Compact(have), frame: max(4096, frame), most: most}
}

// Begin returns the first message.
func (s *Session) Begin() []byte {
	w := writer{buf: []byte{version}}
	w.split(s.items, infinity)
	return w.buf
}

// Missing returns the ids that the relay has named so far and that we lack, in no particular
// order. An id may occur more than once.
func (s *Session) Missing() [][32]byte { return s.missing }

// Answer reads a message of the relay and returns the reply. A nil reply means that the
// comparison is complete.
func (s *Session) Answer(message []byte) (reply []byte, err error) {
	r := reader{buf: message}
	if v, ok := r.byte(); !ok || v != version {
		return nil, fmt.Errorf("the relay does not speak version 1 of the protocol: its message begins with %x", message[:min(1, len(message))])
	}
	w := writer{buf: []byte{version}}
	var from bound
	lower := 0
	for len(r.buf) > 0 {
		to, mode, err := r.rangeEnd()
		if err != nil {
			return nil, err
		}
		if to.compare(from) < 0 {
			return nil, errors.New("the relay's ranges are not in order")
		}
		before := w
		ours := s.items[lower:]
		ours = ours[:below(ours, to)]
		switch mode {
		case modeSkip:
			w.skipped = &to
		case modeFingerprint:
			theirs, err := r.bytes(fingerprintSize)
			if err != nil {
				return nil, err
			}
			if same := fingerprint(ours); bytes.Equal(theirs, same[:]) {
				w.skipped = &to
			} else {
				w.split(ours, to)
			}
		case modeIDs:
			if err := s.read(&r, ours); err != nil {
				return nil, err
			}
			w.skipped = &to
		default:
			return nil, fmt.Errorf("the relay sends a range of the unknown mode %d", mode)
		}
		if len(w.buf) > s.frame-leftOver { // the relay asks for the rest in its next message
			w = before
			w.fingerprint(infinity, s.items[lower:])
			return w.buf, nil
		}
		from, lower = to, lower+len(ours)
	}
	if len(w.buf) == 1 {
		return nil, nil
	}
	return w.buf, nil
}

// below returns how many items are before a bound.
func below(items []Item, to bound) int {
	at, _ := slices.BinarySearchFunc(items, to, func(i Item, b bound) int {
		if i.before(b) {
			return -1
		}
		return 1
	})
	return at
}

// read reads the ids of a range, and keeps those that our part of the range lacks.
func (s *Session) read(r *reader, part []Item) error {
	count, err := r.varint()
	if err != nil || count > uint64(len(r.buf)/32) {
		return errTruncated
	}
	ours := map[[32]byte]bool{}
	for _, i := range part {
		ours[i.ID] = true
	}
	for range count {
		id, err := r.bytes(32)
		if err != nil {
			return err
		}
		if ours[[32]byte(id)] {
			continue
		}
		if len(s.missing) == s.most {
			return ErrMany
		}
		s.missing = append(s.missing, [32]byte(id))
	}
	return nil
}

// split writes a range as its ids or, if there are too many, as the fingerprints of its
// parts.
func (w *writer) split(items []Item, to bound) {
	if len(items) < idList {
		w.ids(to, items)
		return
	}
	for i := range buckets {
		size := len(items) / (buckets - i)
		if len(items)%(buckets-i) > 0 { // the first parts are larger
			size++
		}
		until := to
		if i < buckets-1 {
			until = between(items[size-1], items[size])
		}
		w.fingerprint(until, items[:size])
		items = items[size:]
	}
}

// bound is the end of a range. Items before it belong to the range.
type bound struct {
	at     uint64
	prefix []byte // prefix of ids, as if zeros followed
}

// infinity is a bound after all items.
var infinity = bound{at: math.MaxUint64}

func (b bound) compare(other bound) int {
	return cmp.Or(cmp.Compare(b.at, other.at), bytes.Compare(bytes.TrimRight(b.prefix, "\x00"), bytes.TrimRight(other.prefix, "\x00")))
}

func (a Item) before(b bound) bool {
	at := uint64(max(0, a.At)) // not negative
	return at < b.at || at == b.at && bytes.Compare(a.ID[:], b.prefix) < 0
}

// between returns the shortest bound between one item and the next.
func between(last, next Item) bound {
	b := bound{at: uint64(max(0, next.At))} // not negative
	if last.At != next.At {
		return b
	}
	same := 0
	for last.ID[same] == next.ID[same] {
		same++
	}
	b.prefix = next.ID[:same+1]
	return b
}
