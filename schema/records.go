package schema

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Record is a stored record.
type Record struct {
	Key
	Rev       string
	CID       string
	CreatedAt time.Time // the author's claim
	IndexedAt time.Time // when Weir first stored it
	Record    []byte    // JSON
}

// LockRecords reads records and locks their rows against writers until the transaction
// ends, in the order of the keys, which must be sorted. It skips records that are not
// stored. It needs one index lookup per record, like LockPosts.
func LockRecords(ctx context.Context, tx pgx.Tx, keys []Key) ([]Record, error) {
	const sql = `
SELECT r.collection, r.did, r.rkey, r.rev, r.cid, r.created_at, r.indexed_at, r.record
FROM (SELECT did, rkey FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS k (did, rkey, n) ORDER BY n) AS k
CROSS JOIN LATERAL (
    SELECT r.collection, r.did, r.rkey, r.rev, r.cid, r.created_at, r.indexed_at, r.record
    FROM records AS r
    WHERE r.collection = $5 AND r.did = k.did AND r.rkey = k.rkey AND r.rkey >= $3 AND r.rkey <= $4
    LIMIT 1
    FOR SHARE
) AS r`
	records := make([]Record, 0, len(keys))
	for len(keys) > 0 {
		n := slices.IndexFunc(keys, func(k Key) bool { return k.Collection != keys[0].Collection })
		if n < 0 {
			n = len(keys)
		}
		did, rkey := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
		for i, k := range keys[:n] {
			did[i], rkey[i] = k.DID, k.Rkey
		}
		rows, err := tx.Query(ctx, sql, pgx.QueryExecModeCacheDescribe, did, rkey, slices.Min(rkey), slices.Max(rkey), keys[0].Collection)
		if err == nil {
			records, err = pgx.AppendRows(records, rows, pgx.RowToStructByPos[Record])
		}
		if err != nil {
			return nil, fmt.Errorf("lock records of %s: %w", keys[0].Collection, err)
		}
		keys = keys[n:]
	}
	return records, nil
}
