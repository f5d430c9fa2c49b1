package ranking

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// A bridge copies records from one network to another. The copy is a record of another account of
// the same person. It does not count while there is a share of the same link by the original,
// whether or not that share counts. A copy itself states that it is one, so a false statement harms
// only its author.

// BridgedCopy is a record that is a copy of another one. The other one need not be stored.
type BridgedCopy struct{ Record, Of schema.Key }

// queueCopies queues statements that set the copies among the records to exactly these. Shares that
// the same batch writes later find them.
func queueCopies(q *pgx.Batch, records []schema.Key, copies []BridgedCopy) {
	const remove = `
DELETE FROM copies AS c
USING unnest($1::text[], $2::text[], $3::text[]) AS r (collection, did, rkey)
WHERE c.did = r.did AND c.collection = r.collection AND c.rkey = r.rkey
  AND NOT EXISTS (
      SELECT FROM unnest($4::text[], $5::text[], $6::text[]) AS i (collection, did, rkey)
      WHERE i.did = c.did AND i.collection = c.collection AND i.rkey = c.rkey
  )`
	// An existing share may now count as another original's copy, even if nothing else about it
	// changes.
	const insert = `
WITH named AS (
    INSERT INTO copies AS c (collection, did, rkey, of_collection, of_did, of_rkey)
    SELECT i.*
    FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[])
        AS i (collection, did, rkey, of_collection, of_did, of_rkey)
    ON CONFLICT (did, collection, rkey) DO UPDATE
    SET of_collection = excluded.of_collection, of_did = excluded.of_did, of_rkey = excluded.of_rkey
    WHERE (c.of_collection, c.of_did, c.of_rkey) IS DISTINCT FROM (excluded.of_collection, excluded.of_did, excluded.of_rkey)
    RETURNING did, collection, rkey
)
INSERT INTO pending_counts (link_id, did)
SELECT DISTINCT s.link_id, n.did
FROM named AS n
CROSS JOIN LATERAL (SELECT s.link_id FROM shares AS s
    WHERE s.did = n.did AND s.collection = n.collection AND s.rkey = n.rkey LIMIT 1000) AS s`
	var events []schema.Key // only events can stop being copies: bridges do not edit posts
	for _, key := range records {
		if Nostr.includes(key.DID) {
			events = append(events, key)
		}
	}
	collection, did, rkey := schema.Columns(len(copies), func(i int) schema.Key { return copies[i].Record })
	if len(events) > 0 {
		ofCollection, ofDID, ofRkey := schema.Columns(len(events), func(i int) schema.Key { return events[i] })
		q.Queue(remove, ofCollection, ofDID, ofRkey, collection, did, rkey)
	}
	// The locks make transactions that delete an original's shares or merge their links wait. Their
	// triggers then find the copy.
	const lock = `
SELECT FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (SELECT FROM shares AS s
    WHERE s.did = k.did AND s.collection = k.collection AND s.rkey = k.rkey LIMIT 1000 FOR SHARE) AS s`
	if len(copies) > 0 {
		ofCollection, ofDID, ofRkey := schema.Columns(len(copies), func(i int) schema.Key { return copies[i].Of })
		q.Queue(insert, collection, did, rkey, ofCollection, ofDID, ofRkey)
		q.Queue(lock, ofCollection, ofDID, ofRkey)
	}
}

// RecountCopies makes the counter count the copies of records again. Call it after the commit that
// wrote the records' shares: that transaction and one that writes a copy at the same time do not
// see each other.
func RecountCopies(ctx context.Context, db schema.DB, records []schema.Key) error {
	const sql = `
INSERT INTO pending_counts (subject_did, subject_rkey)
SELECT DISTINCT k.did, k.rkey
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
WHERE (SELECT true FROM copies AS c WHERE c.of_did = k.did AND c.of_rkey = k.rkey AND c.of_collection = k.collection LIMIT 1)`
	if len(records) == 0 {
		return nil
	}
	collection, did, rkey := schema.Columns(len(records), func(i int) schema.Key { return records[i] })
	return schema.Exec(ctx, db, "have copies counted again", sql, collection, did, rkey)
}
