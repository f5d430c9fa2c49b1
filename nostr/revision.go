package nostr

import (
	"encoding/hex"
	"fmt"
)

// Revision returns the revision of an event, which sorts as NIP-01 says: the later date is
// newer and, of the same date, the lower id.
func Revision(createdAt int64, id [32]byte) string {
	for i := range id {
		id[i] = ^id[i]
	}
	return RevisionDate(createdAt) + hex.EncodeToString(id[:])
}

// RevisionDate returns what the revisions of all events of a date begin with.
func RevisionDate(createdAt int64) string { return fmt.Sprintf("%016d-", createdAt) }
