package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// waiting is true for the dead letters of events that are retried until they succeed. The
// index dead_letters_waiting has the same condition.
const waiting = `class = 'retryable' AND stage <> 'job' AND state IN ('open', 'retrying')`

// WaitingDeadLetters returns how many events wait as dead letters until the DID directory
// can prove them, up to most. A large input counts as several. It does not count accounts
// that serve their own documents: the code that makes those dead letters limits their
// number, and they may wait for a server that never comes back.
func WaitingDeadLetters(ctx context.Context, db DB, most int) (int, error) {
	const sql = `
SELECT least(coalesce(sum(1 + w.raw_bytes / 16384), 0), $1)::int
FROM (SELECT d.raw_bytes FROM dead_letters AS d WHERE ` + waiting + ` AND (d.did LIKE 'did:plc:%') LIMIT $1) AS w`
	return One(ctx, db, "count the events that wait as dead letters", pgx.RowTo[int], sql, most)
}

// RequestDueRetries requests a retry of events that wait as dead letters: a minute after
// the first failure, two minutes after the second, and so on, up to an hour. It returns
// how many.
func RequestDueRetries(ctx context.Context, db DB) (int64, error) {
	const sql = `
UPDATE dead_letters
SET state = 'retrying', state_at = now(), job = NULL
WHERE ` + waiting + ` AND state = 'open'
  AND last_seen NOT BETWEEN now() - least(interval '1 minute' * 2 ^ least(count - 1, 10), interval '1 hour') AND now()`
	n, err := Change(ctx, db, "request the retries that are due", sql)
	return int64(n), err
}

// UnprovenRecords returns the records of an account whose events wait as dead letters, in
// the order in which rows are locked.
func UnprovenRecords(ctx context.Context, db DB, did string) ([]Key, error) {
	const sql = `
SELECT DISTINCT d.collection COLLATE "C" AS collection, d.did AS did, d.rkey COLLATE "C" AS rkey
FROM dead_letters AS d
WHERE ` + waiting + ` AND d.did = $1 AND d.collection IS NOT NULL AND d.rkey IS NOT NULL
ORDER BY collection, rkey`
	return All(ctx, db, "list the unproven records of "+did, pgx.RowToStructByName[Key], sql, did)
}

// BuryRecords stores tombstones of records that are not stored, so that no event up to
// these revisions brings them back. Call it before the transaction locks anything else.
func BuryRecords(ctx context.Context, tx pgx.Tx, deletions []Deletion) error {
	b := Batch{Deletions: deletions}
	q := &pgx.Batch{}
	b.accounts().queueLocks(q, exclusively)
	b.queueTombstones(q)
	return Send(ctx, tx, "bury records", q)
}
