package schema

import (
	"bytes"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"
)

// SeenIDs returns those IDs whose events were stored.
func SeenIDs(ctx context.Context, db DB, ids [][16]byte) ([][16]byte, error) {
	return All(ctx, db, "look up the events that were seen", pgx.RowTo[[16]byte], `SELECT id FROM seen WHERE id = ANY ($1::uuid[])`, ids)
}

// QueueSeen stores the IDs of events, in order, because other streams store the same IDs.
func QueueSeen(q *pgx.Batch, seen [][16]byte) {
	if len(seen) == 0 {
		return
	}
	ids := slices.SortedFunc(slices.Values(seen), func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	q.Queue(`INSERT INTO seen (id) SELECT id FROM unnest($1::uuid[]) AS id ON CONFLICT DO NOTHING`, ids)
}
