package schema

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// queueExpirations stores when records expire. If a revision with an expiry is replaced by
// one without, its row stays; deleting the old revision later deletes nothing.
func (b *Batch) queueExpirations(q *pgx.Batch) {
	const sql = `
INSERT INTO expirations AS e (collection, did, rkey, rev, expires_at)
SELECT n.* FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[]) AS n (collection, did, rkey, rev, expires_at)
ON CONFLICT (did, collection, rkey) DO UPDATE SET rev = excluded.rev, expires_at = excluded.expires_at
WHERE excluded.rev > e.rev`
	var keys []Key
	var rev pgtype.FlatArray[string]
	var at pgtype.FlatArray[time.Time]
	for i := range b.Writes {
		if w := &b.Writes[i]; !w.Expires.IsZero() {
			keys, rev, at = append(keys, w.Key), append(rev, w.Rev), append(at, w.Expires)
		}
	}
	if len(keys) > 0 {
		collection, did, rkey := Columns(len(keys), func(i int) Key { return keys[i] })
		q.Queue(sql, collection, did, rkey, rev, at)
	}
}

// DeleteExpired deletes at most limit records whose authors set them to expire at or before
// a time, with their rows in the projections' tables. It returns how many rows of
// expirations it processed. A lasting tombstone blocks older revisions, which a server may
// bring later.
func DeleteExpired(ctx context.Context, tx pgx.Tx, made Projections, now time.Time, limit int, hooks ...Hook) (int, error) {
	const due = `
SELECT e.collection, e.did, e.rkey, e.rev FROM expirations AS e WHERE e.expires_at <= least($1::timestamptz, now())
ORDER BY e.expires_at LIMIT $2`
	const done = `
DELETE FROM expirations AS e
USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS d (collection, did, rkey, rev)
WHERE e.did = d.did AND e.collection = d.collection AND e.rkey = d.rkey AND e.rev = d.rev`
	expired, err := All(ctx, tx, "find what has expired", func(row pgx.CollectableRow) (d Deletion, err error) {
		d.At, d.Lasting = now, true
		err = row.Scan(&d.Collection, &d.DID, &d.Rkey, &d.Rev)
		return d, err
	}, due, now, limit)
	if err != nil || len(expired) == 0 {
		return 0, err
	}
	slices.SortFunc(expired, func(a, b Deletion) int { return a.Compare(b.Key) })
	b := Batch{Deletions: expired, Committer: Committer{Projections: made, Hooks: hooks}}
	if _, err := b.Apply(ctx, tx, Lease{}); err != nil {
		return 0, err
	}
	collection, did, rkey := Columns(len(b.Deletions), func(i int) Key { return b.Deletions[i].Key })
	rev := make(pgtype.FlatArray[string], len(b.Deletions))
	for i := range b.Deletions {
		rev[i] = b.Deletions[i].Rev
	}
	_, err = tx.Exec(ctx, done, collection, did, rkey, rev)
	return len(expired), err
}
