package firehose

import (
	"bytes"
	"crypto/sha256"
	"fmt"

	"github.com/weir-social/weir/consumer"
)

// digest is the SHA-256 of a block of DAG-CBOR: the variable part of its CID.
type digest [sha256.Size]byte

// The constant parts of the CID of a block, and of a link to it in CBOR.
const (
	cidPrefix  = "\x01\x71\x12\x20" // version 1, DAG-CBOR, SHA-256, 32 bytes
	linkPrefix = "\xd8\x2a\x58\x25\x00" + cidPrefix
	linkSize   = len(linkPrefix) + sha256.Size
	tagLink    = 42
)

// link reads a link to a block.
func (r *reader) link(d *digest) *consumer.Malformed {
	if at := r.data[r.at:]; len(at) >= linkSize && string(at[:len(linkPrefix)]) == linkPrefix {
		copy(d[:], at[len(linkPrefix):])
		r.at += linkSize
		return nil
	}
	cid, bad := r.anyLink()
	if bad != nil {
		return bad
	}
	if !bytes.HasPrefix(cid, []byte(cidPrefix)) {
		return foreignCID(cid)
	}
	copy(d[:], cid[len(cidPrefix):])
	return nil
}

// foreignCID returns the error for a CID that no block of a repository has.
func foreignCID(cid []byte) *consumer.Malformed {
	bad := &consumer.Malformed{Cause: "not the CID of a block", Expected: "version 1, DAG-CBOR, SHA-256"}
	codec, n := uvarint(cid[1:])
	hash, _ := uvarint(cid[1+n:])
	bad.Received = fmt.Sprintf("codec %#x, hash %#x", codec, hash)
	return bad
}

// anyLink reads a link and returns its CID, of version 1 with any codec and hash.
func (r *reader) anyLink() ([]byte, *consumer.Malformed) {
	tag, bad := r.expect(majorTag)
	if bad != nil {
		return nil, bad
	}
	if tag != tagLink {
		return nil, &consumer.Malformed{Cause: "unknown tag", Expected: "42, a link", Received: fmt.Sprint(tag)}
	}
	b, bad := r.content(majorBytes)
	switch {
	case bad != nil:
		return nil, bad
	case len(b) == 0 || b[0] != 0 || !isCID(b[1:]):
		return nil, &consumer.Malformed{Cause: "not a link", Expected: "a CID of version 1", Received: fmt.Sprintf("%x", b[:min(len(b), 40)])}
	}
	return b[1:], nil
}

// maxCID limits a CID, in bytes: the longest hash in use has 64.
const maxCID = 100

// isCID reports whether b is a binary CID of version 1.
func isCID(b []byte) bool {
	if len(b) < 4 || len(b) > maxCID || b[0] != 1 {
		return false
	}
	b = b[1:]
	for range 2 { // codec, hash
		_, n := uvarint(b)
		if n == 0 {
			return false
		}
		b = b[n:]
	}
	size, n := uvarint(b)
	return n > 0 && size == uint64(len(b)-n)
}

// uvarint reads a number of up to 9 bytes in the shortest form. It returns n == 0 if
// there is none.
func uvarint(b []byte) (v uint64, n int) {
	for i := range min(len(b), 9) {
		v |= uint64(b[i]&0x7f) << (7 * i)
		if b[i] < 0x80 {
			if b[i] == 0 && i > 0 {
				return 0, 0
			}
			return v, i + 1
		}
	}
	return 0, 0
}

// appendCID appends the text of a binary CID: "b" and lower-case base32.
func appendCID(dst, cid []byte) []byte {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	dst = append(dst, 'b')
	bits, n := uint64(0), 0
	for _, b := range cid {
		bits, n = bits<<8|uint64(b), n+8
		for n >= 5 {
			n -= 5
			dst = append(dst, alphabet[bits>>n&31])
		}
	}
	if n > 0 {
		dst = append(dst, alphabet[bits<<(5-n)&31])
	}
	return dst
}
