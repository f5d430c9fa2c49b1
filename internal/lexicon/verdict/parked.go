package verdict

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// A process that parks a record commits, and then checks once more whether the records
// that it waits for are stored. A process that stores or deletes a record adds, with its
// commit, a job that judges the records that refer to it again. So one of the two sees
// the other. The consumer neither reads nor locks parked rows.

// retryDelays returns how long after a record is parked, and after each retry, its target is looked up.
func retryDelays() []time.Duration {
	return []time.Duration{time.Second, 4 * time.Second, 16 * time.Second}
}

// FirstRetry is how long after a record is parked its target is first looked up.
func FirstRetry() time.Duration { return retryDelays()[0] }

// queueParked makes the waits of the judgments everything that the records wait for.
// Waits that exist already keep their time and their attempts.
func queueParked(q *pgx.Batch, judged []*Judgment) {
	const remove = `
DELETE FROM parked AS p USING unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
WHERE p.did = k.did AND p.collection = k.collection AND p.rkey = k.rkey
  AND NOT EXISTS (
      SELECT FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[])
               AS w (collection, did, rkey, to_collection, to_did, to_rkey)
      WHERE w.did = p.did AND w.collection = p.collection AND w.rkey = p.rkey
        AND w.to_did = p.to_did AND w.to_collection = p.to_collection AND w.to_rkey = p.to_rkey
  )`
	const insert = `
INSERT INTO parked (collection, did, rkey, to_collection, to_did, to_rkey, retry_at)
SELECT w.*, now() + $7::interval
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[]) AS w (collection, did, rkey, to_collection, to_did,
    to_rkey)
ON CONFLICT DO NOTHING`
	var of, to []schema.Key
	for _, j := range judged {
		for _, w := range j.Waits {
			of, to = append(of, j.Key), append(to, w)
		}
	}
	collection, did, rkey := schema.Columns(len(of), func(i int) schema.Key { return of[i] })
	toCollection, toDID, toRkey := schema.Columns(len(to), func(i int) schema.Key { return to[i] })
	allCollection, allDID, allRkey := columns(judged)
	q.Queue(remove, allCollection, allDID, allRkey, collection, did, rkey, toCollection, toDID, toRkey)
	if len(of) > 0 {
		q.Queue(insert, collection, did, rkey, toCollection, toDID, toRkey, FirstRetry())
	}
}

// dependents are the records that must be judged again because of a target. The target is
// compared as a range of keys rather than for equality, and its dependents are in the
// order of the index of targets. If most rows have one target, Postgres assumes that any
// row is likely to be one of its dependents. For another target it would then scan all
// rows.
var dependents = `
    (SELECT p.collection, p.did, p.rkey FROM parked AS p
     WHERE ` + ofTarget("p") + `LIMIT $7)
    UNION
    (SELECT r.collection, r.did, r.rkey FROM record_refs AS r
     WHERE r.to_rkey IS NOT NULL
       AND (r.read OR r.dangling = (EXISTS (SELECT FROM records_other AS s
           WHERE s.collection = k.collection AND s.did = k.did AND s.rkey = k.rkey)
                                    AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = k.did AND a.status = 'deleted')))
       AND ` + ofTarget("r") + `LIMIT $7)`

// ofTarget returns a condition for the rows whose target is k, after the key $4 to $6,
// and their order.
func ofTarget(row string) string {
	return strings.ReplaceAll(`(x.to_did, x.to_collection, x.to_rkey, x.did, x.collection, x.rkey) > (k.did, k.collection, k.rkey, $4, $5, $6)
       AND (x.to_did, x.to_collection, x.to_rkey) <= (k.did, k.collection, k.rkey)
     ORDER BY x.to_did, x.to_collection, x.to_rkey, x.did, x.collection, x.rkey `, "x.", row+".")
}

// HaveDependents returns those records, stored or deleted, because of which others must
// be judged again: the others wait for it, have a rule that reads it, or do not yet know
// that it was deleted or stored.
func HaveDependents(ctx context.Context, db schema.DB, keys []schema.Key) ([]schema.Key, error) {
	sql := `
SELECT k.collection, k.did, k.rkey
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
WHERE EXISTS (` + dependents + `)`
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	return schema.All(ctx, db, "find records that others depend on", pgx.RowToStructByPos[schema.Key], sql, collection, did, rkey, "", "", "",
		1)
}

// Dependents returns at most limit records that must be judged again because of a target,
// sorted, after a key.
func Dependents(ctx context.Context, db schema.DB, of, after schema.Key, limit int) ([]schema.Key, error) {
	sql := `
SELECT d.collection, d.did, d.rkey
FROM (SELECT $1::text AS collection, $2::text AS did, $3::text AS rkey) AS k
CROSS JOIN LATERAL (` + dependents + `) AS d
ORDER BY d.did, d.collection, d.rkey LIMIT $7`
	return schema.All(ctx, db, "read what depends on "+of.URI(), pgx.RowToStructByPos[schema.Key], sql,
		of.Collection, of.DID, of.Rkey, after.DID, after.Collection, after.Rkey, limit)
}

// TargetsOf returns at most limit of an account's records that others refer to or wait
// for, stored or not, sorted, after a key.
func TargetsOf(ctx context.Context, db schema.DB, did string, after schema.Key, limit int) ([]schema.Key, error) {
	const sql = `
SELECT t.to_collection, $1::text, t.to_rkey FROM (
    (SELECT DISTINCT p.to_collection, p.to_rkey FROM parked AS p
     WHERE p.to_did = $1 AND (p.to_collection, p.to_rkey) > ($2, $3)
     ORDER BY p.to_collection, p.to_rkey LIMIT $4)
    UNION
    (SELECT DISTINCT r.to_collection, r.to_rkey FROM record_refs AS r
     WHERE r.to_did = $1 AND r.to_rkey IS NOT NULL AND (r.to_collection, r.to_rkey) > ($2, $3)
     ORDER BY r.to_collection, r.to_rkey LIMIT $4)
) AS t
ORDER BY t.to_collection, t.to_rkey LIMIT $4`
	return schema.All(ctx, db, "read what others refer to of "+did, pgx.RowToStructByPos[schema.Key], sql, did, after.Collection, after.Rkey,
		limit)
}

// A ParkedTarget is a record that others wait for.
type ParkedTarget struct {
	schema.Key
	Found bool // it is stored, or was deleted
	Last  bool // it was looked up often enough: next, its server is asked
}

// DueParked looks up the targets that are due, at most limit rows of them, and sets
// when each is looked up next. more is true if others may be due.
func DueParked(ctx context.Context, tx pgx.Tx, limit int) (targets []ParkedTarget, more bool, err error) {
	const sql = `
WITH due AS (
    SELECT p.ctid FROM parked AS p
    WHERE p.state = 'waiting' AND p.retry_at <= now()
    ORDER BY p.retry_at LIMIT $1 FOR UPDATE SKIP LOCKED
), retried AS (
    UPDATE parked AS p
    SET attempts = p.attempts + 1,
        state    = CASE WHEN p.attempts + 1 < $2 THEN 'waiting' ELSE 'asking' END,
        retry_at = CASE WHEN p.attempts + 1 < $2 THEN now() + ($3::interval[])[p.attempts + 2] END
    FROM due WHERE p.ctid = due.ctid
    RETURNING p.to_collection, p.to_did, p.to_rkey, p.state
)
SELECT l.to_collection AS collection, l.to_did AS did, l.to_rkey AS rkey, ` + targetFound + ` AS found, bool_or(l.state = 'asking') AS last,
    count(*) AS rows
FROM retried AS l
GROUP BY l.to_collection, l.to_did, l.to_rkey
ORDER BY l.to_collection, l.to_did, l.to_rkey`
	type due struct {
		ParkedTarget
		Rows int
	}
	delays := retryDelays()
	found, err := schema.All(ctx, tx, "look for what is waited for", pgx.RowToStructByName[due], sql, limit, len(delays), delays)
	rows := 0
	for _, l := range found {
		rows += l.Rows
		targets = append(targets, l.ParkedTarget)
	}
	return targets, rows == limit, err
}

// NextDue returns when the next target is due, which may be in the past. nil means that
// nothing is waiting.
func NextDue(ctx context.Context, db schema.DB) (*time.Time, error) {
	const sql = `SELECT min(retry_at) FROM parked WHERE state = 'waiting'`
	return schema.One(ctx, db, "read when to look for what is waited for", pgx.RowTo[*time.Time], sql)
}

// targetFound is true if the target of a row l of parked is stored, or was deleted.
const targetFound = `(
    EXISTS (SELECT FROM records_other AS r WHERE r.collection = l.to_collection AND r.did = l.to_did AND r.rkey = l.to_rkey)
    OR EXISTS (SELECT FROM tombstones AS t WHERE t.collection = l.to_collection AND t.did = l.to_did AND t.rkey = l.to_rkey)
    OR EXISTS (SELECT FROM accounts AS a WHERE a.did = l.to_did AND a.status = 'deleted')
)`

// GiveUp records that a target cannot be found. The records that wait for it become dead
// letters when they are judged again.
func GiveUp(ctx context.Context, db schema.DB, target schema.Key, problem string) error {
	const sql = `
UPDATE parked SET state = 'missing', retry_at = NULL, problem = $4
WHERE to_did = $2 AND to_collection = $1 AND to_rkey = $3 AND state = 'asking'`
	return schema.Exec(ctx, db, "give up on "+target.URI(), sql, target.Collection, target.DID, target.Rkey, schema.Text(problem))
}

// GivenUp reports whether a target was given up while records wait for it. problem is
// what its server reported.
func GivenUp(ctx context.Context, db schema.DB, target schema.Key) (problem string, found bool, err error) {
	const sql = `SELECT problem FROM parked WHERE to_did = $2 AND to_collection = $1 AND to_rkey = $3 AND state = 'missing' LIMIT 1`
	problems, err := schema.All(ctx, db, "read what a server said", pgx.RowTo[string], sql, target.Collection, target.DID, target.Rkey)
	if err != nil || len(problems) == 0 {
		return "", false, err
	}
	return problems[0], true, nil
}

// Asked returns at most limit targets whose servers are being asked.
func Asked(ctx context.Context, db schema.DB, limit int) ([]schema.Key, error) {
	const sql = `SELECT DISTINCT to_collection, to_did, to_rkey FROM parked WHERE state = 'asking' LIMIT $1`
	return schema.All(ctx, db, "list what servers are asked for", pgx.RowToStructByPos[schema.Key], sql, limit)
}
