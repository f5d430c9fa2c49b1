package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// PurgeableCondition is true if the records and projected rows of the account $1 must be deleted:
// the account is deleted, or it left a watch and is in no watch now. Each deleting
// statement contains the condition, because it can change at any time.
const PurgeableCondition = ` (
    EXISTS (SELECT FROM accounts WHERE did = $1 AND status = 'deleted')
    OR EXISTS (SELECT FROM purge_queue WHERE did = $1)
       AND EXISTS (SELECT FROM watches) AND NOT EXISTS (SELECT FROM watch_members WHERE did = $1)
) `

// Purgeable lists at most limit accounts to purge, sorted, after a DID. Deleted accounts
// are due at once. Accounts that left a watch are due if they left at or before
// unwatched.
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
	return All(ctx, db, "list accounts to purge", pgx.RowTo[string], sql, now, unwatched, after, limit)
}

// KeepRule decides whether records of some collections are kept when their author is
// no longer followed. Pattern is a collection or a prefix such as pub.layers.*. A
// collection takes precedence over a prefix, and a longer prefix over a shorter one.
type KeepRule struct {
	Pattern string
	Keep    bool
}

// PurgeRecords deletes records of a purgeable account: at most limit posts and at most
// limit other records. All records of a deleted account are deleted. Of other accounts,
// records of collections without a rule are kept. Purge the projected rows afterwards,
// because a worker that holds a record may be writing them. The IDs of the events no
// longer count as seen, so the records come back if the account is followed again.
func PurgeRecords(ctx context.Context, db DB, did string, rules []KeepRule, limit int) (int, error) {
	const posts = `
DELETE FROM posts
WHERE collection = 'app.bsky.feed.post' AND did = $1
  AND rkey = ANY (ARRAY(
      SELECT p.rkey FROM posts AS p
      WHERE p.collection = 'app.bsky.feed.post' AND p.did = $1 AND` + PurgeableCondition + `
      LIMIT $2 FOR UPDATE OF p SKIP LOCKED
  ))`
	// There are few collections and many records, so find each next collection with one
	// index lookup.
	others := `
WITH gone AS (
    DELETE FROM records_other
    WHERE ctid = ANY (ARRAY(` + goingRecords() + `
          AND` + PurgeableCondition + `
        LIMIT $4 FOR UPDATE OF r SKIP LOCKED
    ))
    RETURNING did, record
), unseen AS (
    DELETE FROM seen WHERE id = ANY (ARRAY(
        SELECT CASE WHEN g.record ->> 'id' ~ '^[0-9a-f]{64}$' THEN left(g.record ->> 'id', 32)::uuid END FROM gone AS g WHERE g.did LIKE ` +
		NostrDIDs + `
    ))
)
SELECT count(*) FROM gone`
	n, err := Change(ctx, db, "purge the posts of "+did, posts, did, limit)
	if err != nil {
		return n, err
	}
	pattern, stays := keepColumns(rules)
	m, err := One(ctx, db, "purge the records of "+did, pgx.RowTo[int], others, did, pattern, stays, limit)
	return n + m, err
}

// goes returns a condition: a purge of account $1 deletes its records of this
// collection. For a deleted account it is always true. For other accounts it is true for
// posts, and for collections that the rules in $2 and $3 do not keep.
func goes(collection string) string {
	return ` (
    EXISTS (SELECT FROM accounts WHERE did = $1 AND status = 'deleted')
    OR ` + collection + ` = 'app.bsky.feed.post'
    OR NOT coalesce((SELECT s.stays FROM unnest($2::text[], $3::boolean[]) AS s (pattern, stays)
                     WHERE s.pattern = ` + collection + ` OR right(s.pattern, 1) = '*' AND starts_with(` +
		collection + `, left(s.pattern, -1))
                     ORDER BY s.pattern = ` + collection + ` DESC, length(s.pattern) DESC
                     LIMIT 1), true)
) `
}

// goingRecords selects the records outside posts that a purge deletes.
func goingRecords() string {
	return kindsIn("records_other") + `
    SELECT r.ctid FROM kinds AS k
    JOIN records_other AS r ON r.collection = k.collection AND r.did = $1
    WHERE` + goes("k.collection")
}

func keepColumns(rules []KeepRule) (pattern pgtype.FlatArray[string], stays pgtype.FlatArray[bool]) {
	pattern, stays = make(pgtype.FlatArray[string], len(rules)), make(pgtype.FlatArray[bool], len(rules))
	for i, e := range rules {
		pattern[i], stays[i] = e.Pattern, e.Keep
	}
	return pattern, stays
}

// PurgeProjected deletes at most limit rows of a purgeable account from a projection's
// table, whatever their age. The rows of kept records are kept.
func PurgeProjected(ctx context.Context, db DB, table, did string, rules []KeepRule, limit int) (int, error) {
	// The table may be partitioned, and then a ctid names a row in each partition.
	sql := `
WITH going AS (
    SELECT p.tableoid, p.ctid, p.collection, p.rkey FROM %[1]s AS p
    WHERE p.did = $1 AND` + goes("p.collection") + `AND` + PurgeableCondition + `
    LIMIT $4 FOR UPDATE OF p SKIP LOCKED
)
DELETE FROM %[1]s AS p USING going AS g
WHERE p.did = $1 AND p.collection = g.collection AND p.rkey = g.rkey AND p.tableoid = g.tableoid AND p.ctid = g.ctid`
	pattern, stays := keepColumns(rules)
	return Change(ctx, db, "purge the "+table+" of "+did, fmt.Sprintf(sql, pgx.Identifier{table}.Sanitize()), did, pattern, stays, limit)
}

// PurgeDeadLetters clears the inputs of at most limit dead letters of a purgeable
// account.
func PurgeDeadLetters(ctx context.Context, db DB, did string, limit int) (int, error) {
	const sql = `
UPDATE dead_letters
SET ` + clearInput + `
WHERE id = ANY (ARRAY(SELECT l.id FROM dead_letters AS l WHERE l.did = $1 AND l.raw_bytes > 0 AND` +
		PurgeableCondition + `LIMIT $2 FOR UPDATE OF l SKIP LOCKED))`
	return Change(ctx, db, "clear the dead letters of "+did, sql, did, limit)
}

// FinishPurge ends the purge of an account that has no records or projected rows left.
// It clears the profile of a deleted account and schedules a second purge after again,
// when no replay can bring its records back. It also ends the purge of an account that
// is no longer purgeable. done is false if something is left, or if a hook's condition holds.
func FinishPurge(
	ctx context.Context, db DB, projections Projections, did string, rules []KeepRule, now time.Time, again time.Duration, hooks ...Hook,
) (done bool, err error) {
	nothing := ` NOT EXISTS (SELECT FROM posts WHERE collection = 'app.bsky.feed.post' AND did = $1) AND NOT EXISTS (` + goingRecords() + `)`
	for _, table := range projections.AllTables() {
		nothing += ` AND NOT EXISTS (SELECT FROM ` + pgx.Identifier{table}.Sanitize() + ` AS p WHERE p.did = $1 AND` + goes("p.collection") + `)`
	}
	deleted := `
UPDATE accounts
SET handle       = NULL,
    display_name = NULL,
    avatar       = NULL,
    feed_newest  = NULL,
    purge_at     = CASE WHEN purged_for IS NOT DISTINCT
    FROM coalesce(status_at, '-infinity') AND purge_at <= $4 THEN NULL ELSE $4 + $5::interval END,
    purged_for   = coalesce(status_at, '-infinity')
WHERE did = $1 AND status = 'deleted' AND` + nothing
	for i := range hooks {
		if hooks[i].Purging != "" {
			deleted += ` AND NOT (` + hooks[i].Purging + `)`
		}
	}
	const revived = `UPDATE accounts SET purge_at = NULL WHERE did = $1 AND status <> 'deleted' AND purge_at IS NOT NULL`
	unwatched := `
DELETE FROM purge_queue
WHERE did = $1
  AND (` + nothing + ` OR NOT` + PurgeableCondition + `)`
	const left = `
SELECT NOT EXISTS (SELECT FROM accounts WHERE did = $1 AND status = 'deleted' AND (purge_at <= $2 OR purged_for IS DISTINCT
    FROM coalesce(status_at, '-infinity')))
   AND NOT EXISTS (SELECT FROM purge_queue WHERE did = $1)`
	pattern, stays := keepColumns(rules)
	if _, err = db.Exec(ctx, deleted, did, pattern, stays, now, again); err == nil {
		_, err = db.Exec(ctx, revived, did)
	}
	if err == nil {
		_, err = db.Exec(ctx, unwatched, did, pattern, stays)
	}
	if err != nil {
		return false, fmt.Errorf("finish the purge of %s: %w", did, err)
	}
	return One(ctx, db, "finish the purge of "+did, pgx.RowTo[bool], left, did, now)
}
