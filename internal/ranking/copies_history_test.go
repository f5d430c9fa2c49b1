package ranking

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// historyDID returns an account. Every third one is of Nostr.
func historyDID(n int) string {
	if n%3 == 1 {
		return fmt.Sprintf("did:nostr:%02d", n)
	}
	return fmt.Sprintf("did:plc:%02d", n)
}

// historyCollection returns the collection of an account's records that share links.
func historyCollection(did string) string {
	if strings.HasPrefix(did, "did:nostr:") {
		return NoteCollection
	}
	return schema.PostCollection
}

// copyOf queues a bridge's change of a record: it becomes a copy of another record, or of none. It
// reports whether the record's shares stay as they are; otherwise the rest of the writer's
// transaction writes them.
func copyOf(q *pgx.Batch, r *rand.Rand, record schema.Key, did, rkey string) (stay bool) {
	var copies []BridgedCopy
	if r.IntN(2) > 0 {
		copies = []BridgedCopy{{Record: record, Of: schema.Key{Collection: historyCollection(did), DID: did, Rkey: rkey}}}
	}
	queueCopies(q, []schema.Key{record}, copies)
	q.Queue(`UPDATE shares SET copied = $4
		WHERE did = $1 AND collection = $2 AND rkey = $3 AND copied <> $4`, record.DID, record.Collection, record.Rkey, len(copies) > 0)
	return r.IntN(3) == 0
}
