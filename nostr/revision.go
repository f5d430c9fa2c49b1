package nostr

import (
	"encoding/hex"
	"strconv"
)

// Revision returns the revision of an event, which sorts as NIP-01 says: the later date is
// newer and, of the same date, the lower id.
func Revision(createdAt int64, id [32]byte) string {
	for i := range id {
		id[i] = ^id[i]
	}
	b := appendDate(make([]byte, 0, 17+2*len(id)), createdAt)
	return string(hex.AppendEncode(b, id[:]))
}

// ParseRevision returns the date and the id of an event with that revision; false: it is of
// something else, such as a deletion.
func ParseRevision(rev string) (createdAt int64, id [32]byte, ok bool) {
	const digits = 16
	if len(rev) != digits+1+2*len(id) || rev[digits] != '-' {
		return 0, id, false
	}
	createdAt, err := strconv.ParseInt(rev[:digits], 10, 64)
	if err != nil || createdAt < 0 {
		return 0, id, false
	}
	if _, err := hex.Decode(id[:], []byte(rev[digits+1:])); err != nil {
		return 0, id, false
	}
	for i := range id {
		id[i] = ^id[i]
	}
	return createdAt, id, true
}

// RevisionDate returns what the revisions of all events of a date begin with.
func RevisionDate(createdAt int64) string { return string(appendDate(nil, createdAt)) }

// appendDate appends a date with 16 digits, as many as MaxCreatedAt has.
func appendDate(b []byte, createdAt int64) []byte {
	for scale := int64(1e15); scale > 0; scale /= 10 {
		b = append(b, byte('0'+createdAt/scale%10)) //nolint:gosec // a digit
	}
	return append(b, '-')
}
