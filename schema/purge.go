package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// purgeable is true of an account, $1, whose records, and what was made of them, have to go: it
// is deleted, or a watch lost it and none brings it. It stands in the statement
// that deletes, for both may change at any time.
const purgeable = ` (
    EXISTS (SELECT FROM accounts WHERE did = $1 AND status = 'deleted')
    OR EXISTS (SELECT FROM purge_queue WHERE did = $1)
       AND EXISTS (SELECT FROM watches) AND NOT EXISTS (SELECT FROM watch_members WHERE did = $1)
) `

// Purgeable lists accounts to purge, at most limit, in order and after a DID:
// the deleted ones at once, those that no watch brings any more when that was at
// or before a moment.
func Purgeable(ctx context.Context, db DB, now, unwatched time.Time, after string, limit int) ([]string, error) {
	const sql = `
SELECT did FROM (
    (SELECT did FROM accounts
     WHERE status = 'deleted' AND purged_for IS DISTINCT FROM coalesce(status_at, '-infinity') AND did > $3
     ORDER BY did LIMIT $4)
    UNION
    (SELECT did FROM accounts WHERE purge_at IS NOT NULL AND purge_at <= $1 AND did > $3 ORDER BY did LIMIT $4)
    UNION
    (SELECT u.did FROM purge_queue AS u WHERE u.queued_at <= $2 AND did > $3 ORDER BY u.did LIMIT $4)
) AS due
ORDER BY did
LIMIT $4`
	return all(ctx, db, "list accounts to purge", pgx.RowTo[string], sql, now, unwatched, after, limit)
}

// KeepRule says whether the records of some collections stay when nobody follows their
// author any more: an entry of the registry, a name or a prefix such as
// pub.layers.*. A name wins over the longest prefix.
type KeepRule struct {
	Pattern string
	Keep    bool
}

// PurgeRecords deletes records of an account that is to be purged, at most
// limit of posts and of others. Those of a deleted account all go; of another
// one, those of collections without an entry stay too. The rows of
// projections go afterwards, for a worker may be writing them while it holds the
// record.
func PurgeRecords(ctx context.Context, db DB, did string, stay []KeepRule, limit int) (int, error) {
	const posts = `
DELETE FROM posts
WHERE collection = 'app.bsky.feed.post' AND did = $1
  AND rkey = ANY (ARRAY(
      SELECT p.rkey FROM posts AS p
      WHERE p.collection = 'app.bsky.feed.post' AND p.did = $1 AND` + purgeable + `
      LIMIT $2 FOR UPDATE OF p SKIP LOCKED
  ))`
	// Few collections, many records: from one collection to the next is a look
	// into the primary key.
	const others = `
DELETE FROM records_other
WHERE ctid = ANY (ARRAY(
    WITH RECURSIVE kinds (collection) AS (
        SELECT min(collection) FROM records_other
        UNION ALL
        SELECT (SELECT min(r.collection) FROM records_other AS r WHERE r.collection > k.collection) FROM kinds AS k WHERE k.collection IS NOT NULL
    )
    SELECT r.ctid FROM kinds AS k
    JOIN records_other AS r ON r.collection = k.collection AND r.did = $1
    WHERE` + purgeable + `
      AND (EXISTS (SELECT FROM accounts WHERE did = $1 AND status = 'deleted')
           OR NOT coalesce((SELECT s.stays FROM unnest($3::text[], $4::boolean[]) AS s (pattern, stays)
                            WHERE s.pattern = k.collection OR right(s.pattern, 1) = '*' AND starts_with(k.collection, left(s.pattern, -1))
                            ORDER BY s.pattern = k.collection DESC, length(s.pattern) DESC
                            LIMIT 1), true))
    LIMIT $2 FOR UPDATE OF r SKIP LOCKED
))`
	n, err := deleteRows(ctx, db, "purge the posts of "+did, posts, did, limit)
	if err != nil {
		return n, err
	}
	pattern, stays := make(pgtype.FlatArray[string], len(stay)), make(pgtype.FlatArray[bool], len(stay))
	for i, e := range stay {
		pattern[i], stays[i] = e.Pattern, e.Keep
	}
	m, err := deleteRows(ctx, db, "purge the records of "+did, others, did, limit, pattern, stays)
	return n + m, err
}

// PurgeProjected deletes rows that a projection made of an account's records, in
// one of its tables, whatever their age, at most limit.
func PurgeProjected(ctx context.Context, db DB, table, did string, limit int) (int, error) {
	const sql = `
DELETE FROM %[1]s
WHERE ctid = ANY (ARRAY(SELECT p.ctid FROM %[1]s AS p WHERE p.did = $1 AND` + purgeable + `LIMIT $2 FOR UPDATE OF p SKIP LOCKED))`
	return deleteRows(ctx, db, "purge the "+table+" of "+did, fmt.Sprintf(sql, pgx.Identifier{table}.Sanitize()), did, limit)
}

// PurgeDeadLetters clears the inputs of dead letters of an account that is to be
// purged, at most limit.
func PurgeDeadLetters(ctx context.Context, db DB, did string, limit int) (int, error) {
	const sql = `
UPDATE dead_letters
SET ` + clearInput + `
WHERE id = ANY (ARRAY(SELECT l.id FROM dead_letters AS l WHERE l.did = $1 AND l.raw_bytes > 0 AND` + purgeable + `LIMIT $2 FOR UPDATE OF l SKIP LOCKED))`
	return deleteRows(ctx, db, "clear the dead letters of "+did, sql, did, limit)
}

// FinishPurge ends the purge of an account when nothing of it is left: the
// profile of a deleted one goes, and it is purged once more after again, when no
// replay can bring anything back any longer. An account that is to be kept after
// all is forgotten here too. done is false where something is left.
func FinishPurge(ctx context.Context, db DB, projections Projections, did string, now time.Time, again time.Duration) (done bool, err error) {
	nothing := ` NOT EXISTS (SELECT FROM posts WHERE collection = 'app.bsky.feed.post' AND did = $1)`
	for _, table := range projections.AllTables() {
		nothing += ` AND NOT EXISTS (SELECT FROM ` + pgx.Identifier{table}.Sanitize() + ` WHERE did = $1)`
	}
	deleted := `
UPDATE accounts
SET handle       = NULL,
    display_name = NULL,
    avatar       = NULL,
    feed_newest  = NULL,
    purge_at     = CASE WHEN purged_for IS NOT DISTINCT FROM coalesce(status_at, '-infinity') AND purge_at <= $2 THEN NULL ELSE $2 + $3::interval END,
    purged_for   = coalesce(status_at, '-infinity')
WHERE did = $1 AND status = 'deleted' AND` + nothing
	const revived = `UPDATE accounts SET purge_at = NULL WHERE did = $1 AND status <> 'deleted' AND purge_at IS NOT NULL`
	unwatched := `
DELETE FROM purge_queue
WHERE did = $1
  AND (` + nothing + ` OR NOT` + purgeable + `)`
	const left = `
SELECT NOT EXISTS (SELECT FROM accounts WHERE did = $1 AND status = 'deleted' AND (purge_at <= $2 OR purged_for IS DISTINCT FROM coalesce(status_at, '-infinity')))
   AND NOT EXISTS (SELECT FROM purge_queue WHERE did = $1)`
	if _, err = db.Exec(ctx, deleted, did, now, again); err == nil {
		_, err = db.Exec(ctx, revived, did)
	}
	if err == nil {
		_, err = db.Exec(ctx, unwatched, did)
	}
	if err != nil {
		return false, fmt.Errorf("finish the purge of %s: %w", did, err)
	}
	return one(ctx, db, "finish the purge of "+did, pgx.RowTo[bool], left, did, now)
}
