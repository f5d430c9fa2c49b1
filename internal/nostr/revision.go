package nostr

import (
	"encoding/hex"
	"strconv"
)

// Revision returns the revision of an event. Revisions sort in the order of NIP-01: the
// later date is newer; for equal dates, the lower id is newer.
func Revision(createdAt int64, id [32]byte) string {
	for i := range id {
		id[i] = ^id[i]
	}
	b := appendDate(make([]byte, 0, 17+2*len(id)), createdAt)
	return string(hex.AppendEncode(b, id[:]))
}

// ParseRevision returns the date and the id of the event with that revision. It returns
// false if the revision is not an event's, but for example a deletion's.
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

// RevisionDate returns the prefix of the revisions of all events with a date.
func RevisionDate(createdAt int64) string { return string(appendDate(nil, createdAt)) }

// appendDate appends a date with 16 digits, the number of digits of MaxCreatedAt.
func appendDate(b []byte, createdAt int64) []byte {
	for scale := int64(1e15); scale > 0; scale /= 10 {
		b = append(b, byte('0'+createdAt/scale%10)) // a digit
	}
	return append(b, '-')
}
