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
func (b *Batch) erasureColumns() (did, rev pgtype.FlatArray[string], at pgtype.FlatArray[time.Time]) {
	for _, e := range b.Erasures {
		did, rev, at = append(did, e.DID), append(rev, e.Rev), append(at, e.At)
	}
	return did, rev, at
}

// queueErased queues what features erase.
func (b *Batch) queueErased(q *pgx.Batch) {
	for _, h := range b.Hooks {
		if h.Erased != nil && len(b.Erasures) > 0 {
			h.Erased(q, b)
		}
	}
}

// queueErasures stores the erasures. From then on, nothing older is written.
func (b *Batch) queueErasures(q *pgx.Batch) {
	if len(b.Erasures) == 0 {
		return
	}
	const sql = `
INSERT INTO accounts AS a (did, erased_rev)
SELECT e.did, e.rev FROM unnest($1::text[], $2::text[]) AS e (did, rev)
ON CONFLICT (did) DO UPDATE SET erased_rev = excluded.erased_rev WHERE excluded.erased_rev > coalesce(a.erased_rev, '')`
	did, rev, _ := b.erasureColumns()
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
	did, rev, at := b.erasureColumns()
	rows, err := tx.Query(ctx, records, did, rev)
	if err != nil {
		return err
	}
	gone := Batch{Committer: Committer{Projections: b.Projections}}
	gone.Deletions, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d Deletion, err error) {
		err = row.Scan(&d.Collection, &d.DID, &d.Rkey, &d.Rev)
		return d, err
	})
	if err != nil {
		return err
	}
	q := &pgx.Batch{}
	gone.queueDeletions(q, tx)
	for i := range b.Projections { // rows may outlive their record, which has expired
		for table, dated := range b.Projections[i].Dates {
			q.Queue(`
DELETE FROM `+pgx.Identifier{table}.Sanitize()+` AS p
USING unnest($1::text[], $2::timestamptz[]) AS e (did, at)
WHERE p.did = e.did AND p.`+pgx.Identifier{dated}.Sanitize()+` <= e.at
  AND NOT EXISTS (SELECT FROM records_other AS r WHERE r.collection = p.collection AND r.did = p.did AND r.rkey = p.rkey)`, did, at)
		}
	}
	q.Queue(deadLetters, did)
	return tx.SendBatch(ctx, q).Close()
}
