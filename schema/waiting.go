package schema

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// A record that a projection cannot use before another record is known waits in the table
// waiting. The consumer neither reads nor locks its rows:
//
//   - A process that makes a record wait commits, and then checks once more whether the
//     other record is known.
//   - A process that makes a record known commits, and then releases the records that
//     wait for it: it reads them with WaitingFor, page by page, and projects them again.
//
// So one of the two sees the other. Projecting a record replaces its rows. A job that dies
// in between is retried, so it must find the records that it was projecting again.

// Wait is a record that waits for another one.
type Wait struct{ Record, For Key }

// QueueWaiting queues statements that make waits everything that these records wait for,
// in one projection. The caller holds the locks of the records. An insert locks an
// existing row, so that QueueNotWaiting does not delete it unseen.
func QueueWaiting(q *pgx.Batch, projection string, records []Key, waits []Wait) {
	// The projection is joined like the rest of the key: see planOnce.
	const remove = `
DELETE FROM waiting AS w
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS r (projection, collection, did, rkey)
WHERE w.projection = r.projection AND w.did = r.did AND w.collection = r.collection AND w.rkey = r.rkey
  AND NOT EXISTS (
      SELECT FROM unnest($5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[])
               AS i (collection, did, rkey, for_collection, for_did, for_rkey)
      WHERE i.did = w.did AND i.collection = w.collection AND i.rkey = w.rkey
        AND i.for_did = w.for_did AND i.for_collection = w.for_collection AND i.for_rkey = w.for_rkey
  )`
	const insert = `
INSERT INTO waiting (projection, collection, did, rkey, for_collection, for_did, for_rkey)
SELECT $1, i.collection, i.did, i.rkey, i.for_collection, i.for_did, i.for_rkey
FROM unnest($2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[]) AS i (collection, did, rkey, for_collection,
    for_did, for_rkey)
ON CONFLICT (did, collection, rkey, projection, for_did, for_collection, for_rkey) DO UPDATE SET since = waiting.since`
	collection, did, rkey := Columns(len(waits), func(i int) Key { return waits[i].Record })
	forCollection, forDID, forRkey := Columns(len(waits), func(i int) Key { return waits[i].For })
	if len(records) > 0 {
		ofCollection, ofDID, ofRkey := Columns(len(records), func(i int) Key { return records[i] })
		q.Queue(remove, slices.Repeat([]string{projection}, len(records)), ofCollection, ofDID, ofRkey, collection, did, rkey, forCollection,
			forDID, forRkey)
	}
	if len(waits) > 0 {
		q.Queue(insert, projection, collection, did, rkey, forCollection, forDID, forRkey)
	}
}

// QueueNotWaiting queues statements that remove deleted records from the table waiting,
// unless a record is stored again by now. They lock the rows first: a process that has
// stored the record again meanwhile, and makes it wait for the same record, adds its row
// after the deletion.
func QueueNotWaiting(q *pgx.Batch, projection string, deleted []Key) {
	const lock = `
SELECT FROM waiting AS w
JOIN unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS r (projection, collection, did, rkey)
  ON w.projection = r.projection AND w.did = r.did AND w.collection = r.collection AND w.rkey = r.rkey
FOR UPDATE OF w`
	const remove = `
DELETE FROM waiting AS w
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS r (projection, collection, did, rkey)
WHERE w.projection = r.projection AND w.did = r.did AND w.collection = r.collection AND w.rkey = r.rkey
  AND NOT EXISTS (SELECT FROM records AS s WHERE s.did = w.did AND s.collection = w.collection AND s.rkey = w.rkey)`
	if len(deleted) == 0 {
		return
	}
	collection, did, rkey := Columns(len(deleted), func(i int) Key { return deleted[i] })
	of := slices.Repeat([]string{projection}, len(deleted))
	q.Queue(lock, of, collection, did, rkey)
	q.Queue(remove, of, collection, did, rkey)
}

// WaitingRecords returns those records that wait.
func WaitingRecords(ctx context.Context, db DB, projection string, keys []Key) ([]Key, error) {
	const sql = `
SELECT k.collection, k.did, k.rkey
FROM unnest($2::text[], $3::text[], $4::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT FROM waiting AS w WHERE w.did = k.did AND w.collection = k.collection AND w.rkey = k.rkey AND w.projection = $1 LIMIT 1
) AS w`
	collection, did, rkey := Columns(len(keys), func(i int) Key { return keys[i] })
	return All(ctx, db, "find the records that wait", pgx.RowToStructByPos[Key], sql, projection, collection, did, rkey)
}

// WaitsOf returns the records that a record waits for.
func WaitsOf(ctx context.Context, db DB, k Key) ([]Key, error) {
	const sql = `SELECT for_collection, for_did, for_rkey FROM waiting WHERE did = $1 AND collection = $2 AND rkey = $3 ORDER BY 1, 2, 3`
	return All(ctx, db, "read what the record waits for", pgx.RowToStructByPos[Key], sql, k.DID, k.Collection, k.Rkey)
}

// WaitedFor returns those records that other records wait for.
func WaitedFor(ctx context.Context, db DB, projection string, keys []Key) ([]Key, error) {
	const sql = `
SELECT k.collection, k.did, k.rkey
FROM unnest($2::text[], $3::text[], $4::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT FROM waiting AS w WHERE w.for_did = k.did AND w.for_collection = k.collection AND w.for_rkey = k.rkey AND w.projection = $1
    LIMIT 1
) AS w`
	collection, did, rkey := Columns(len(keys), func(i int) Key { return keys[i] })
	return All(ctx, db, "find the records that others wait for", pgx.RowToStructByPos[Key], sql, projection, collection, did, rkey)
}

// WaitingFor returns at most limit records that wait for a record, sorted, after a key.
func WaitingFor(ctx context.Context, db DB, projection string, record, after Key, limit int) ([]Key, error) {
	const sql = `
SELECT w.collection, w.did, w.rkey
FROM waiting AS w
WHERE w.for_did = $2 AND w.for_collection = $3 AND w.for_rkey = $4 AND w.projection = $1 AND (w.did, w.collection, w.rkey) > ($5, $6, $7)
ORDER BY w.did, w.collection, w.rkey
LIMIT $8`
	return All(ctx, db, "read what waits for "+record.DID+"/"+record.Collection+"/"+record.Rkey, pgx.RowToStructByPos[Key], sql,
		projection, record.DID, record.Collection, record.Rkey, after.DID, after.Collection, after.Rkey, limit)
}

// ExpireWaiting deletes at most limit rows of records that began to wait at or before the
// time given for their collection, and returns how many.
func ExpireWaiting(ctx context.Context, db DB, due []ExpiryRule, limit int) (int, error) {
	const sql = `
DELETE FROM waiting
WHERE ctid = ANY (ARRAY(
    SELECT w.ctid
    FROM unnest($1::text[], $2::timestamptz[]) AS d (collection, before)
    CROSS JOIN LATERAL (
        SELECT w.ctid FROM waiting AS w
        WHERE w.collection = d.collection AND w.since <= d.before
        ORDER BY w.since LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS w
    LIMIT $3
))`
	collection, before := make(pgtype.FlatArray[string], len(due)), make(pgtype.FlatArray[time.Time], len(due))
	for i, d := range due {
		collection[i], before[i] = d.Collection, d.Before
	}
	return Change(ctx, db, "expire what waits", sql, collection, before, limit)
}

// WaitingSince returns, for each collection with more than most waiting records, the time
// at or before which all but the newest most of them began to wait.
func WaitingSince(ctx context.Context, db DB, most int) ([]ExpiryRule, error) {
	sql := kindsIn("waiting") + `
SELECT k.collection, w.since
FROM kinds AS k
CROSS JOIN LATERAL (SELECT w.since FROM waiting AS w WHERE w.collection = k.collection ORDER BY w.since DESC OFFSET $1 LIMIT 1) AS w`
	return All(ctx, db, "count what waits", pgx.RowToStructByPos[ExpiryRule], sql, most)
}

// WaitingCollections returns the collections of the records that wait.
func WaitingCollections(ctx context.Context, db DB) ([]string, error) {
	return CollectionsIn(ctx, db, "waiting")
}

// Records reads records by key, in no particular order, and skips those that are not
// stored. The keys must be of one collection other than posts.
func Records(ctx context.Context, db DB, keys []Key) ([]Record, error) {
	const sql = `
SELECT r.collection, r.did, r.rkey, r.rev, r.cid, r.created_at, r.indexed_at, r.record
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT r.collection, r.did, r.rkey, r.rev, r.cid, r.created_at, r.indexed_at, r.record
    FROM records_other AS r
    WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey
    LIMIT 1
) AS r`
	if len(keys) == 0 {
		return nil, nil
	}
	collection, did, rkey := Columns(len(keys), func(i int) Key { return keys[i] })
	found, err := All(ctx, db, "read records", pgx.RowToStructByPos[Record], sql, collection, did, rkey)
	if err != nil {
		return nil, fmt.Errorf("read records of %s: %w", keys[0].Collection, err)
	}
	return found, nil
}
