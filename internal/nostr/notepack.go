package nostr

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"unicode/utf8"
)

// notepackVersion is the first byte of the form. The specification's text omits it,
// but its code writes it.
const notepackVersion = 1

var errNotepack = errors.New("not the canonical notepack of an event")

// AppendNotepack appends the event in the binary form notepack. Of the variants that
// the form allows, it always writes the same one. The event must be valid, as Decode
// returns it.
func (e *Event) AppendNotepack(b []byte) []byte {
	b = append(b, notepackVersion)
	b = append(b, e.ID[:]...)
	b = append(b, e.PubKey[:]...)
	b = append(b, e.Sig[:]...)
	b = binary.AppendUvarint(b, uint64(e.CreatedAt)) // not negative
	b = binary.AppendUvarint(b, uint64(e.Kind))      // not negative
	b = binary.AppendUvarint(b, uint64(len(e.Content)))
	b = append(b, e.Content...)
	b = binary.AppendUvarint(b, uint64(len(e.Tags)))
	for _, tag := range e.Tags {
		b = binary.AppendUvarint(b, uint64(len(tag)))
		for _, s := range tag {
			if packable(s) {
				b = binary.AppendUvarint(b, uint64(len(s)/2)<<1|1)
				b, _ = hex.AppendDecode(b, []byte(s)) // s consists of digits
				continue
			}
			b = binary.AppendUvarint(b, uint64(len(s))<<1)
			b = append(b, s...)
		}
	}
	return b
}

// packable reports whether notepack writes an element of a tag as bytes, that is,
// whether it consists of pairs of lower-case hexadecimal digits.
func packable(s string) bool { return s != "" && len(s)%2 == 0 && lowerHex(s) }

// DecodeNotepack decodes the output of AppendNotepack. It refuses every other variant,
// so that an event has only one form.
func DecodeNotepack(data []byte) (*Event, error) {
	p := packed{rest: data}
	e := &Event{}
	if v := p.take(1); p.bad || v[0] != notepackVersion {
		return nil, errNotepack
	}
	copy(e.ID[:], p.take(len(e.ID)))
	copy(e.PubKey[:], p.take(len(e.PubKey)))
	copy(e.Sig[:], p.take(len(e.Sig)))
	e.CreatedAt, e.Kind = int64(p.number(MaxCreatedAt)), int(p.number(MaxKind)) // bounded
	e.Content = p.text(p.number(uint64(len(p.rest))))
	e.Tags = make([][]string, 0, p.count())
	for range cap(e.Tags) {
		tag := make([]string, 0, p.count())
		for range cap(tag) {
			tag = append(tag, p.element())
		}
		e.Tags = append(e.Tags, tag)
	}
	if p.bad || len(p.rest) > 0 {
		return nil, errNotepack
	}
	return e, nil
}

// packed is the unread rest of a notepack. After the first error it yields nothing.
type packed struct {
	rest []byte
	bad  bool
}

func (p *packed) take(n int) []byte {
	if p.bad || n > len(p.rest) {
		p.bad, p.rest = true, nil
		return nil
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

// number reads a number up to most, in its shortest form.
func (p *packed) number(most uint64) uint64 {
	n, size := binary.Uvarint(p.rest)
	if size <= 0 || n > most || size > 1 && p.rest[size-1] == 0 {
		p.bad, p.rest = true, nil
		return 0
	}
	p.take(size)
	return n
}

// count reads a number of elements, each of which takes at least a byte.
func (p *packed) count() int { return int(p.number(uint64(len(p.rest)))) } // bounded

func (p *packed) text(n uint64) string {
	s := string(p.take(int(n))) // bounded by the caller
	p.bad = p.bad || !utf8.ValidString(s)
	return s
}

// element reads an element of a tag.
func (p *packed) element() string {
	head := p.number(uint64(len(p.rest))<<1 | 1)
	if head&1 == 0 {
		s := p.text(head >> 1)
		p.bad = p.bad || packable(s)
		return s
	}
	p.bad = p.bad || head>>1 == 0
	return hex.EncodeToString(p.take(int(head >> 1))) // bounded
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if hexDigit(s[i]) > 15 {
			return false
		}
	}
	return true
}
