package schema

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// neededAccount is one row where the account s.did is followed or something of
// it is stored: a look into one index after the other, until one has a row.
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

// accountWord is what a batch says of an account. A zero time: it does not say.
type accountWord struct {
	did               string
	status, handle    string
	statusAt, handled time.Time
}

// words are the batch's statuses and handles, by account, in the order of their
// DIDs: rows are locked in one pass.
func (b *Batch) words() []accountWord {
	words := make([]accountWord, 0, len(b.Statuses)+len(b.Handles))
	for _, s := range b.Statuses {
		words = append(words, accountWord{did: s.DID, status: s.Status, statusAt: s.At})
	}
	for _, h := range b.Handles {
		words = append(words, accountWord{did: h.DID, handle: h.Handle, handled: h.At})
	}
	slices.SortStableFunc(words, func(a, b accountWord) int { return cmp.Compare(a.did, b.did) })
	merged := words[:0]
	for _, w := range words {
		if n := len(merged); n > 0 && merged[n-1].did == w.did {
			merged[n-1].handle, merged[n-1].handled = w.handle, w.handled
			continue
		}
		merged = append(merged, w)
	}
	return merged
}

// queueAccounts writes down statuses and handles. An account that is active, and
// that is not followed and nothing is stored of, gets no row: the whole network
// tells of itself. One that is not active does: its records are hidden, and of a
// deleted one none is stored.
func (b *Batch) queueAccounts(q *pgx.Batch) {
	words := b.words()
	n := len(words)
	if n == 0 {
		return
	}
	// An identity event without a handle says that something changed, not
	// that the handle is gone.
	sql := `
INSERT INTO accounts AS a (did, status, status_at, handle, handle_at)
SELECT s.did, s.status, s.status_at, nullif(s.handle, ''), s.handle_at
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
SET status    = CASE WHEN excluded.status_at >= coalesce(a.status_at, '-infinity') THEN excluded.status ELSE a.status END,
    status_at = greatest(a.status_at, excluded.status_at),
    handle    = CASE WHEN excluded.handle_at >= coalesce(a.handle_at, '-infinity') THEN coalesce(excluded.handle, a.handle) ELSE a.handle END,
    handle_at = greatest(a.handle_at, excluded.handle_at)
WHERE excluded.status_at >= coalesce(a.status_at, '-infinity') OR excluded.handle_at >= coalesce(a.handle_at, '-infinity')`
	writes := make(map[string]bool, len(b.Writes))
	for i := range b.Writes {
		writes[b.Writes[i].DID] = true
	}
	did, status, handle := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	statusAt, handled := make(pgtype.FlatArray[*time.Time], n), make(pgtype.FlatArray[*time.Time], n)
	needed := make(pgtype.FlatArray[bool], n)
	for i, w := range words {
		did[i], status[i], handle[i] = w.did, cmp.Or(w.status, "active"), w.handle
		statusAt[i], handled[i] = nilTime(w.statusAt), nilTime(w.handled)
		needed[i] = status[i] != "active" || writes[w.did]
	}
	q.Queue(sql, did, status, statusAt, handle, handled, needed)
}

// accountCheck is how long after a look at an account's row comes the next.
const accountCheck = 24 * time.Hour

// ExpiredAccounts is what one call of ExpireAccounts did.
type ExpiredAccounts struct {
	LookedAt, Gone int
}

// ExpireAccounts looks at the rows of accounts whose time has come, at most
// limit, and deletes those that nothing needs: not followed, with no record and no
// row of a projection stored, and active; or not active since before a moment, from which on
// no replay brings anything back, and purged where they are deleted. No rows
// looked at means that none is due.
func ExpireAccounts(ctx context.Context, db DB, projections Projections, now, before time.Time, limit int) (ExpiredAccounts, error) {
	sql := `
WITH RECURSIVE kinds (collection) AS (
    SELECT min(collection) FROM records_other
    UNION ALL
    SELECT (SELECT min(r.collection) FROM records_other AS r WHERE r.collection > k.collection) FROM kinds AS k WHERE k.collection IS NOT NULL
), due AS MATERIALIZED (
    SELECT a.did, a.status, a.status_at, a.purged_for, a.purge_at FROM accounts AS a
    WHERE a.check_at <= $1
    ORDER BY a.check_at LIMIT $4
    FOR UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT s.did,
           s.status <> 'active' AND NOT (coalesce(s.status_at, '-infinity') <= $2
               AND (s.status <> 'deleted' OR s.purge_at IS NULL AND s.purged_for IS NOT DISTINCT FROM coalesce(s.status_at, '-infinity')))
           OR EXISTS (SELECT FROM (` + projections.neededAccount() + `) AS any_of_it OFFSET 0)
           OR EXISTS (SELECT FROM kinds AS k JOIN records_other AS r ON r.collection = k.collection AND r.did = s.did OFFSET 0) AS needed
    FROM due AS s
), kept AS (
    UPDATE accounts AS a SET check_at = $1 + $3::interval FROM judged AS j WHERE a.did = j.did AND j.needed
), gone AS (
    DELETE FROM accounts AS a USING judged AS j WHERE a.did = j.did AND NOT j.needed
    RETURNING 1
)
SELECT (SELECT count(*) FROM judged)::int AS looked_at, (SELECT count(*) FROM gone)::int AS gone`
	return one(ctx, db, "expire accounts", pgx.RowToStructByPos[ExpiredAccounts], sql, now, before, accountCheck, limit)
}
