package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// Erasure removes everything of an account up to a revision. What it removes must not
// come back.
type Erasure struct {
	DID string
	Rev string
	At  time.Time // everything dated up to then is removed
}

// erasureColumns returns the erasures, sorted by account, as columns.
func (b *Batch) erasureColumns() (did, rev pgtype.FlatArray[string]) {
	for _, e := range b.Erasures {
		did, rev = append(did, e.DID), append(rev, e.Rev)
	}
	return did, rev
}

// queueErasedAuthors erases what relays said of the authors. An erasure is like a newer
// profile, which is empty.
func (b *Batch) queueErasedAuthors(q *pgx.Batch) {
	if len(b.Erasures) == 0 {
		return
	}
	const sql = `
INSERT INTO nostr_authors AS n (did, profile_rev)
SELECT e.did, e.rev FROM unnest($1::text[], $2::text[]) AS e (did, rev)
ON CONFLICT (did) DO UPDATE
SET profile_rev = greatest(n.profile_rev, excluded.profile_rev),
    name        = CASE WHEN n.profile_rev > excluded.profile_rev THEN n.name ELSE '' END,
    name_at     = CASE WHEN n.profile_rev > excluded.profile_rev THEN n.name_at END,
    relays      = CASE WHEN n.relays_rev <> '' AND n.relays_rev <= excluded.profile_rev THEN '{}' ELSE n.relays END`
	did, rev := b.erasureColumns()
	q.Queue(sql, did, rev)
}

// queueErasures stores the erasures. From then on, nothing older is written. An account
// keeps the name and picture of a newer profile only.
func (b *Batch) queueErasures(q *pgx.Batch) {
	if len(b.Erasures) == 0 {
		return
	}
	const sql = `
INSERT INTO accounts AS a (did, erased_rev)
SELECT e.did, e.rev FROM unnest($1::text[], $2::text[]) AS e (did, rev)
ON CONFLICT (did) DO UPDATE
SET erased_rev = excluded.erased_rev,
    (handle, display_name, avatar) = (
        SELECT n.handle, n.display_name, n.avatar
        FROM (VALUES (a.handle, a.display_name, a.avatar)) AS n (handle, display_name, avatar)
        WHERE (SELECT p.profile_rev FROM nostr_authors AS p WHERE p.did = a.did) > excluded.erased_rev)
WHERE excluded.erased_rev > coalesce(a.erased_rev, '')`
	did, rev := b.erasureColumns()
	q.Queue(sql, did, rev)
}

// erase deletes the records of the erasures, their rows in the projections' tables, and
// the inputs of the accounts' dead letters.
func (b *Batch) erase(ctx context.Context, tx pgx.Tx) error {
	if len(b.Erasures) == 0 {
		return nil
	}
	records := kindsIn("records_other") + `
SELECT r.collection, r.did, r.rkey, r.rev
FROM unnest($1::text[], $2::text[]) AS e (did, rev)
JOIN kinds AS k ON k.collection IS NOT NULL
JOIN records_other AS r ON r.collection = k.collection AND r.did = e.did AND r.rev <= e.rev
ORDER BY r.collection, r.did, r.rkey
FOR UPDATE OF r`
	const deadLetters = `UPDATE dead_letters SET ` + clearInput + ` WHERE did = ANY ($1::text[]) AND raw_bytes > 0`
	did, rev := b.erasureColumns()
	rows, err := tx.Query(ctx, records, did, rev)
	if err != nil {
		return err
	}
	gone := Batch{Projections: b.Projections}
	gone.Deletions, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Deletion, err error) {
		err = row.Scan(&d.Collection, &d.DID, &d.Rkey, &d.Rev)
		return d, err
	})
	if err != nil {
		return err
	}
	q := &pgx.Batch{}
	gone.queueDeletions(q, tx)
	q.Queue(deadLetters, did)
	return tx.SendBatch(ctx, q).Close()
}
