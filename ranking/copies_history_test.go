package ranking

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// historyDID is an account: every third one is of Nostr.
func historyDID(n int) string {
	if n%3 == 1 {
		return fmt.Sprintf("did:nostr:%02d", n)
	}
	return fmt.Sprintf("did:plc:%02d", n)
}

// historyCollection is that of the records in which an account shares links.
func historyCollection(did string) string {
	if strings.HasPrefix(did, "did:nostr:") {
		return NoteCollection
	}
	return schema.PostCollection
}

// copyOf queues that a bridge makes or edits a record: it is a copy of another one, or is
// none. It reports whether the record's shares stay as they are; otherwise the rest of the
// writer's transaction writes them.
func copyOf(q *pgx.Batch, r *rand.Rand, record schema.Key, did, rkey string) (stay bool) {
	var copies []Copy
	if r.IntN(2) > 0 {
		copies = []Copy{{Record: record, Of: schema.Key{Collection: historyCollection(did), DID: did, Rkey: rkey}}}
	}
	queueCopies(q, []schema.Key{record}, copies)
	q.Queue(`UPDATE shares SET copied = $4 WHERE did = $1 AND collection = $2 AND rkey = $3 AND copied <> $4`, record.DID, record.Collection, record.Rkey, len(copies) > 0)
	return r.IntN(3) == 0
}
