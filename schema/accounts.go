package schema

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// neededAccount selects one row if the account s.did is followed or has stored
// records or projected rows. It searches one index after another until one has a
// row.
func (p Projections) neededAccount() string {
	sql := `
    SELECT 1 FROM watch_members AS w WHERE w.did = s.did
    UNION ALL`
	for _, table := range p.AllTables() {
		sql += `
    SELECT 1 FROM ` + pgx.Identifier{table}.Sanitize() + ` AS p WHERE p.did = s.did
    UNION ALL`
	}
	return sql + `
    SELECT 1 FROM posts AS p WHERE p.collection = 'app.bsky.feed.post' AND p.did = s.did
    LIMIT 1`
}

// accountUpdate is a batch's status and handle of an account. If statusAt or
// handleAt is zero, the batch has none.
type accountUpdate struct {
	did                string
	status, handle     string
	statusAt, handleAt time.Time
	early              bool // see Handle
}

// accountUpdates merges the batch's statuses and handles by account, ordered by
// DID: the order in which rows are locked.
func (b *Batch) accountUpdates() []accountUpdate {
	updates := make([]accountUpdate, 0, len(b.Statuses)+len(b.Handles))
	for _, s := range b.Statuses {
		updates = append(updates, accountUpdate{did: s.DID, status: s.Status, statusAt: s.At})
	}
	for _, h := range b.Handles {
		updates = append(updates, accountUpdate{did: h.DID, handle: h.Handle, handleAt: h.At, early: h.Early})
	}
	slices.SortStableFunc(updates, func(a, b accountUpdate) int { return cmp.Compare(a.did, b.did) })
	merged := updates[:0]
	for _, w := range updates {
		if n := len(merged); n > 0 && merged[n-1].did == w.did {
			merged[n-1].handle, merged[n-1].handleAt = w.handle, w.handleAt
			continue
		}
		merged = append(merged, w)
	}
	return merged
}

// queueAccounts stores statuses and handles. An active account without follows,
// records or projected rows gets no row, because a stream of the whole network
// reports every account. An inactive account always gets a row: its records are
// hidden, and those of a deleted account are not stored.
func (b *Batch) queueAccounts(q *pgx.Batch) {
	updates := b.accountUpdates()
	n := len(updates)
	if n == 0 {
		return
	}
	// An identity event without a handle means that something changed, not that
	// the handle is gone. Whatever it has, the handle must be verified.
	sql := `
INSERT INTO accounts AS a (did, status, status_at, handle, handle_at, handle_unverified)
SELECT s.did, s.status, s.status_at, ` + storedHandle("s.handle") + `, s.handle_at, s.handle_at IS NOT NULL
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::timestamptz[], $6::boolean[])
     WITH ORDINALITY AS s (did, status, status_at, handle, handle_at, needed, n)
CROSS JOIN LATERAL (
    SELECT 1 WHERE s.needed
    UNION ALL
    SELECT 1 FROM accounts AS k WHERE k.did = s.did
    UNION ALL` + b.Projections.neededAccount() + `
) AS needed
ORDER BY s.n
ON CONFLICT (did) DO UPDATE
SET status    = CASE WHEN (excluded.status_at >= coalesce(a.status_at, '-infinity')) IS NOT TRUE THEN a.status
                     WHEN excluded.status = 'active' AND a.hidden_at >= excluded.status_at THEN 'hidden'
                     ELSE excluded.status END,
    status_at = greatest(a.status_at, excluded.status_at),
    handle    = CASE WHEN excluded.handle_at >= coalesce(a.handle_at, '-infinity') THEN coalesce(excluded.handle, a.handle)
                ELSE a.handle END,
    handle_at = greatest(a.handle_at, excluded.handle_at),
    handle_unverified    = a.handle_unverified OR coalesce(excluded.handle_at >= coalesce(a.handle_at, '-infinity'), false),
    handle_checked_at = CASE WHEN excluded.handle_at >= coalesce(a.handle_at, '-infinity') THEN NULL ELSE a.handle_checked_at END
WHERE excluded.status_at >= coalesce(a.status_at, '-infinity') OR excluded.handle_at >= coalesce(a.handle_at, '-infinity')`
	writes := make(map[string]bool, len(b.Writes))
	for i := range b.Writes {
		writes[b.Writes[i].DID] = true
	}
	did, status, handle := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	statusAt, handleAt := make(pgtype.FlatArray[*time.Time], n), make(pgtype.FlatArray[*time.Time], n)
	needed := make(pgtype.FlatArray[bool], n)
	for i, w := range updates {
		did[i], status[i], handle[i] = w.did, cmp.Or(w.status, "active"), w.handle
		statusAt[i], handleAt[i] = NullTime(w.statusAt), NullTime(w.handleAt)
		needed[i] = status[i] != "active" || writes[w.did] && !w.early
	}
	q.Queue(sql, did, status, statusAt, handle, handleAt, needed)
}

// MarkDeleted marks an account as deleted, as a stream does when it reports the deletion: its
// records are purged. A later event makes the account active again. It returns the status.
func MarkDeleted(ctx context.Context, tx pgx.Tx, did string, hooks ...Hook) (Status, error) {
	now, err := Now(ctx, tx)
	if err != nil {
		return Status{}, err
	}
	deleted := Status{DID: did, Status: "deleted", At: now, Sent: now}
	_, err = (&Batch{Statuses: []Status{deleted}, Committer: Committer{Hooks: hooks}}).Apply(ctx, tx, Lease{})
	return deleted, err
}

// accountCheckInterval is the time between two checks of an account's row.
const accountCheckInterval = 24 * time.Hour

// ExpiredAccounts is the result of one call of ExpireAccounts.
type ExpiredAccounts struct {
	Checked, Deleted int
}

// ExpireAccounts checks at most limit account rows that are due, and deletes those that are not
// needed. If Checked is 0, no row is due. A row is needed while the account is followed or has
// records or projected rows. The row of an inactive account is also needed while its status is
// newer than before, because a replay could bring its records back, and, for a deleted account,
// until it is purged. The row of an erased or blocked account stays.
func ExpireAccounts(ctx context.Context, db DB, projections Projections, now, before time.Time, limit int) (ExpiredAccounts, error) {
	sql := `
` + kindsIn("records_other") + `, due AS (
    SELECT a.did, a.status, a.status_at, a.hidden_at, a.purged_for, a.purge_at, a.erased_rev FROM accounts AS a
    WHERE a.check_at <= $1
    ORDER BY a.check_at LIMIT $4
    FOR UPDATE SKIP LOCKED
), checked AS (
    SELECT s.did,
           s.erased_rev IS NOT NULL OR s.status = 'blocked' OR s.status <> 'active'
               AND NOT (coalesce(greatest(s.status_at, s.hidden_at), '-infinity') <= $2
               AND (s.status <> 'deleted' OR s.purge_at IS NULL AND s.purged_for IS NOT DISTINCT FROM coalesce(s.status_at, '-infinity')))
           OR EXISTS (SELECT FROM (` + projections.neededAccount() + `) AS any_of_it OFFSET 0)
           OR EXISTS (SELECT FROM kinds AS k JOIN records_other AS r ON r.collection = k.collection AND r.did = s.did OFFSET 0) AS needed
    FROM due AS s
), kept AS (
    UPDATE accounts AS a SET check_at = $1 + $3::interval FROM checked AS c WHERE a.did = c.did AND c.needed
), deleted AS (
    DELETE FROM accounts AS a USING checked AS c WHERE a.did = c.did AND NOT c.needed
    RETURNING 1
)
SELECT (SELECT count(*) FROM checked)::int AS checked, (SELECT count(*) FROM deleted)::int AS deleted`
	return One(ctx, db, "expire accounts", pgx.RowToStructByPos[ExpiredAccounts], sql, now, before, accountCheckInterval, limit)
}

// storedHandle is the form in which accounts has a handle: NULL if it is unknown, ” if it is
// not valid.
func storedHandle(handle string) string {
	return `CASE ` + handle + ` WHEN '' THEN NULL WHEN '` + InvalidHandle + `' THEN '' ELSE lower(` + handle + `) END`
}

// HandleOwner selects the account that has a handle: the one for which it was verified or,
// before that, the only active one that claims it.
const HandleOwner = `
SELECT a.did FROM accounts AS a
WHERE a.handle = lower($1)
  AND (NOT a.handle_unverified OR NOT EXISTS (SELECT FROM accounts AS o
      WHERE o.handle = a.handle AND o.did <> a.did AND o.status = 'active'))
ORDER BY a.handle_unverified, a.status = 'active' DESC, a.handle_at DESC NULLS LAST, a.did
LIMIT 1`

// FindDID returns the account that has a handle, or ErrNoRows.
func FindDID(ctx context.Context, db DB, handle string) (string, error) {
	return One(ctx, db, "find the handle "+handle, pgx.RowTo[string], HandleOwner, handle)
}

// UnverifiedHandle is a handle that an account claims.
type UnverifiedHandle struct{ DID, Handle string }

// RecordHandle stores whether a handle is the account's, and the time of the check. The
// account is then its only owner. Nothing changes if the account has another handle now.
func RecordHandle(ctx context.Context, tx pgx.Tx, h UnverifiedHandle, verified bool) error {
	const owned = `UPDATE accounts SET handle_unverified = NOT $3, handle_checked_at = now() WHERE did = $1 AND handle = $2`
	tag, err := tx.Exec(ctx, owned, h.DID, h.Handle, verified)
	if err == nil && verified && tag.RowsAffected() > 0 {
		const others = `
			UPDATE accounts SET handle_unverified = true, handle_checked_at = NULL WHERE handle = $2 AND did <> $1 AND NOT handle_unverified`
		_, err = tx.Exec(ctx, others, h.DID, h.Handle)
	}
	if err != nil {
		return fmt.Errorf("store whether %s is the handle of %s: %w", h.Handle, h.DID, err)
	}
	return nil
}
