package schema

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Gap is an interval of a stream that no resume is known to cover.
type Gap struct {
	Stream string // set when read
	From   time.Time
	To     time.Time
	Reason string

	Accounts int    // accounts to compare with their repositories before the gap closes; set when read
	Done     int    // of Accounts
	Problem  string // why the gap cannot be closed; empty: it can
}

func (g *Gap) queue(q *pgx.Batch, stream string) {
	const sql = `
INSERT INTO gaps (stream, from_at, to_at, reason, problem, opened_at) VALUES ($1, $2, $3, $4, $5, now())
ON CONFLICT (stream, from_at, to_at) DO NOTHING`
	q.Queue(sql, stream, g.From, g.To, g.Reason, g.Problem)
}

// RecordGapProblem stores why an open gap cannot be closed.
func RecordGapProblem(ctx context.Context, db DB, gap int64, problem string) error {
	return Exec(ctx, db, fmt.Sprintf("store the problem of gap %d", gap), `UPDATE gaps SET problem = $2 WHERE id = $1 AND closed_at IS NULL`,
		gap, problem)
}

// OpenGaps lists at most 100 open gaps that overlap an interval, oldest first.
func OpenGaps(ctx context.Context, db DB, from, to time.Time) ([]Gap, error) {
	const sql = `
SELECT stream  AS stream,
       from_at AS "from",
       to_at   AS "to",
       reason  AS reason,
       accounts            AS accounts,
       checked + unchecked AS done,
       problem             AS problem
FROM gaps
WHERE closed_at IS NULL AND from_at < $2 AND to_at > $1
ORDER BY from_at
LIMIT 100`
	return All(ctx, db, "read the gaps", pgx.RowToStructByName[Gap], sql, from, to)
}

// closedText is the text of gaps.how_closed for the row g.
const closedText = `
    CASE WHEN g.accounts + g.later = 0 THEN 'no account is followed that could have written' ELSE
        'the records of ' || g.checked ||
        CASE g.checked WHEN 1 THEN ' account' ELSE ' accounts' END || ' were compared with the repositories'
        || CASE g.unchecked + g.later WHEN 0 THEN ''
           WHEN 1 THEN '; 1 account could not be read and is read later'
           ELSE '; ' || g.unchecked + g.later || ' accounts could not be read and are read later' END
    END`

// ofGap is true if the account w is of the network of the stream of the gap g.
const ofGap = `(w.did LIKE ` + NostrDIDs + `) = starts_with(g.stream, 'nostr:')`

// StartGap stores the accounts that a gap waits for: all followed, active accounts of the
// stream's network. It returns them with the gap's beginning; ok is false if the gap is
// closed. Inactive accounts do not keep the gap open: they are read when they become
// active. Deleted accounts are skipped. A gap without accounts is closed at once.
func StartGap(ctx context.Context, tx pgx.Tx, gap int64, now time.Time) (s StartedGap, ok bool, err error) {
	// Lock accounts before gaps, as the end of a backfill does.
	const later = `
WITH concerned AS (
    SELECT a.did, g.from_at
    FROM gaps AS g
    JOIN accounts AS a ON a.status NOT IN ('active', 'deleted')
    WHERE g.id = $1 AND g.closed_at IS NULL AND a.did IN (SELECT w.did FROM watch_members AS w WHERE ` + ofGap + `)
    ORDER BY a.did
    FOR UPDATE OF a
)
UPDATE accounts AS a
SET reread_since = least(a.reread_since, c.from_at - interval '1 minute'), reread_count = a.reread_count + 1
FROM concerned AS c
WHERE a.did = c.did
RETURNING a.did`
	inactive, err := All(ctx, tx, fmt.Sprintf("find the inactive accounts of gap %d", gap), pgx.RowTo[string], later, gap)
	if err != nil {
		return s, false, err
	}
	s.Later = len(inactive)
	err = tx.QueryRow(ctx, `SELECT from_at, closed_at IS NULL FROM gaps WHERE id = $1 FOR UPDATE`, gap).Scan(&s.From, &ok)
	if err != nil || !ok {
		if err != nil {
			err = fmt.Errorf("read gap %d: %w", gap, err)
		}
		return s, ok, err
	}
	// The gap also waits for accounts that become inactive between the two statements.
	const sql = `
WITH waiting AS (
    INSERT INTO gap_backfills (gap_id, did)
    SELECT g.id, a.did
    FROM gaps AS g
    CROSS JOIN LATERAL (SELECT DISTINCT w.did FROM watch_members AS w WHERE ` + ofGap + `) AS a
    WHERE g.id = $1 AND NOT EXISTS (SELECT FROM accounts AS s WHERE s.did = a.did AND s.status = 'deleted')
      AND a.did NOT IN (SELECT unnest($3::text[]))
    ON CONFLICT DO NOTHING
    RETURNING did
), counted AS (
    UPDATE gaps SET accounts = accounts + (SELECT count(*) FROM waiting), later = $2, problem = '' WHERE id = $1
)
SELECT did FROM waiting ORDER BY did`
	if s.DIDs, err = All(ctx, tx, fmt.Sprintf("find the accounts of gap %d", gap), pgx.RowTo[string], sql, gap, s.Later,
		inactive); err != nil {
		return s, ok, err
	}
	return s, ok, closeGaps(ctx, tx, []int64{gap}, now)
}

// StartedGap is a gap's beginning and its accounts.
type StartedGap struct {
	From  time.Time // the gap's beginning
	DIDs  []string  // the accounts that the gap waits for
	Later int       // number of accounts that are read when they become active
}

// settleGaps takes an account off the gaps that waited for this read. A read for another
// reason, without a comparison, settles no gap.
func settleGaps(ctx context.Context, tx pgx.Tx, did string, r Reading) error {
	if !r.Compared && !r.RetryLater {
		return nil
	}
	// Lock the gaps first: if the reads of two accounts end at once, one of them sees
	// that no account is left.
	const gaps = `
SELECT g.id FROM gaps AS g
WHERE g.closed_at IS NULL AND (g.from_at >= $2 OR $3)
  AND EXISTS (SELECT FROM gap_backfills AS b WHERE b.gap_id = g.id AND b.did = $1)
ORDER BY g.id
FOR UPDATE`
	ids, err := All(ctx, tx, "find the gaps of "+did, pgx.RowTo[int64], gaps, did, r.Since, r.Problem != "")
	if err != nil || len(ids) == 0 {
		return err
	}
	const off = `
WITH gone AS (DELETE FROM gap_backfills WHERE did = $1 AND gap_id = ANY ($2))
UPDATE gaps
SET checked   = checked + CASE WHEN $3 THEN 1 ELSE 0 END,
    unchecked = unchecked + CASE WHEN $3 THEN 0 ELSE 1 END
WHERE id = ANY ($2)`
	if _, err := tx.Exec(ctx, off, did, ids, r.Compared); err != nil {
		return fmt.Errorf("take %s off its gaps: %w", did, err)
	}
	return closeGaps(ctx, tx, ids, r.Now)
}

// closeGaps closes those gaps that have no accounts left.
func closeGaps(ctx context.Context, tx pgx.Tx, ids []int64, now time.Time) error {
	const sql = `
UPDATE gaps AS g
SET closed_at = $2, how_closed = ` + closedText + `
WHERE g.id = ANY ($1) AND g.closed_at IS NULL AND NOT EXISTS (SELECT FROM gap_backfills AS b WHERE b.gap_id = g.id)`
	return Exec(ctx, tx, "close gaps", sql, ids, now)
}

// GapAccountsWithoutJob returns the accounts that open gaps wait for and that have no
// unfinished backfill, because it was deleted or failed for good. since is the
// beginning of the earliest of these gaps.
func GapAccountsWithoutJob(ctx context.Context, tx pgx.Tx) (dids []string, since time.Time, err error) {
	const sql = `
SELECT b.did, min(min(g.from_at)) OVER ()
FROM gap_backfills AS b
JOIN gaps AS g ON g.id = b.gap_id AND g.closed_at IS NULL
WHERE NOT EXISTS (SELECT FROM river_job AS j WHERE j.kind = 'backfill_account' AND j.args ->> 'did' = b.did
                  AND j.state IN ` + UnfinishedStates + `)
GROUP BY b.did`
	return accountsSince(ctx, tx, "find the accounts of gaps without a backfill", sql)
}

// AccountsToReread returns the followed accounts whose reread is due and that have no
// unfinished backfill: accounts that could not be read, accounts whose job is lost, and
// inactive ones, which may have been deleted while nobody listened. since is the latest
// time since which posts of one of them may be missing. Each account is compared since its own time (Feed.CompleteSince).
func AccountsToReread(ctx context.Context, tx pgx.Tx) (dids []string, since time.Time, err error) {
	const sql = `
SELECT a.did, max(a.reread_since) OVER ()
FROM accounts AS a
WHERE a.reread_since IS NOT NULL AND a.status <> 'deleted' AND (a.reread_at IS NULL OR a.reread_at <= now())
  AND EXISTS (SELECT FROM watch_members AS w WHERE w.did = a.did)
  AND NOT EXISTS (SELECT FROM river_job AS j WHERE j.kind = 'backfill_account' AND j.args ->> 'did' = a.did
                  AND j.state IN ` + UnfinishedStates + `)`
	return accountsSince(ctx, tx, "find the accounts to reread", sql)
}

// accountsSince reads accounts and the time that all rows share.
func accountsSince(ctx context.Context, tx pgx.Tx, what, sql string) (dids []string, since time.Time, err error) {
	var did string
	err = Each(ctx, tx, what, []any{&did, &since}, func() error { dids = append(dids, did); return nil }, sql)
	return dids, since, err
}
