package schema

import (
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// queueTombstones stores the tombstones of the deletions. If a deletion was told twice, its later
// time counts, so the order does not matter.
func (b *Batch) queueTombstones(q *pgx.Batch) {
	n := len(b.Deletions)
	if n == 0 {
		return
	}
	const sql = `
INSERT INTO tombstones AS t (collection, did, rkey, rev, deleted_at)
SELECT d.collection, d.did, d.rkey, d.rev, d.deleted_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[]) AS d (collection, did, rkey, rev, deleted_at)
ON CONFLICT (collection, did, rkey) DO UPDATE
SET rev = excluded.rev, deleted_at = excluded.deleted_at
WHERE excluded.rev > t.rev OR excluded.rev = t.rev AND coalesce(excluded.deleted_at, 'infinity') > coalesce(t.deleted_at, 'infinity')`
	keys := newKeyColumns(n)
	rev, at := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[*time.Time], n)
	for i := range b.Deletions {
		d := &b.Deletions[i]
		keys.set(i, d.Key)
		if rev[i] = d.Rev; !d.Lasting {
			at[i] = &d.At
		}
	}
	q.Queue(sql, keys.collection, keys.did, keys.rkey, rev, at)
}

// queueDeletions deletes records, which queueWrites has locked, then their rows in
// the projections' tables, and clears the inputs of their dead letters. The
// projected rows need a statement of their own: the lock may have waited for a
// worker that projected the record, and only a later snapshot sees its rows.
func (b *Batch) queueDeletions(q *pgx.Batch, tx pgx.Tx) {
	n := len(b.Deletions)
	if n == 0 {
		return
	}
	const records = `
DELETE FROM records AS r
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS d (collection, did, rkey, rev)
WHERE r.collection = d.collection AND r.did = d.did AND r.rkey = d.rkey AND r.rev <= d.rev`
	const deadLetters = `
UPDATE dead_letters AS l
SET ` + clearInput + `
FROM unnest($1::text[], $2::text[], $3::text[]) AS d (collection, did, rkey)
WHERE l.collection = d.collection AND l.did = d.did AND l.rkey = d.rkey AND l.raw_bytes > 0`
	keys := newKeyColumns(n)
	rev := make(pgtype.FlatArray[string], n)
	for i := range b.Deletions {
		keys.set(i, b.Deletions[i].Key)
		rev[i] = b.Deletions[i].Rev
	}
	few := n <= FewKeys && preparesStatements(tx.Conn().Config())
	sql, args, projected := records, []any{keys.collection, keys.did, keys.rkey, rev}, []any{keys.collection, keys.did, keys.rkey}
	if few {
		q.Queue(planOnce)
	} else {
		from, to := b.deletedRkeys()
		sql, args, projected = records+` AND r.rkey BETWEEN $5 AND $6`, append(args, from, to), append(projected, from, to)
	}
	q.Queue(sql, args...)
	for _, table := range b.Projections.tablesOf(keys.collection) {
		q.Queue(deleteProjected(table, keyRange(!few)), projected...)
	}
	if few {
		q.Queue(planEachTime)
	}
	q.Queue(deadLetters, keys.collection, keys.did, keys.rkey)
}

// deletedRkeys returns the smallest and the largest rkey of the deletions. A query
// with these limits opens only the partitions of posts in between.
func (b *Batch) deletedRkeys() (from, to string) {
	from, to = b.Deletions[0].Rkey, b.Deletions[0].Rkey
	for i := range b.Deletions {
		from, to = min(from, b.Deletions[i].Rkey), max(to, b.Deletions[i].Rkey)
	}
	return from, to
}
