package schema

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// CoversDeletions reports whether a stream has recorded that deletions by id have tombstones in
// all these collections.
func CoversDeletions(ctx context.Context, db DB, stream string, collections []string) (bool, error) {
	return One(ctx, db, "read the collections of deletions by id", pgx.RowTo[bool], `SELECT coalesce((SELECT deletes_in = $2 FROM streams WHERE name = $1), false)`, stream, collections)
}

// RecordDeletionsCovered records that deletions by id have tombstones in these collections.
func RecordDeletionsCovered(ctx context.Context, db DB, stream string, collections []string) error {
	if _, err := db.Exec(ctx, `UPDATE streams SET deletes_in = $2 WHERE name = $1`, stream, collections); err != nil {
		return fmt.Errorf("store the collections of deletions by id: %w", err)
	}
	return nil
}

// CoverDeletions gives at most limit deletions by id their tombstones in these collections, and
// deletes the records there that they name. A deletion by id has the revision rev, and tombstones
// in any collection that begins with prefix. It returns how many tombstones it added.
func CoverDeletions(ctx context.Context, tx pgx.Tx, made Projections, prefix, rev string, collections []string, limit int) (int, error) {
	const sql = `
SELECT c.collection, d.did, d.rkey
FROM (SELECT DISTINCT t.did, t.rkey FROM tombstones AS t WHERE starts_with(t.collection, $1) AND t.rev = $2) AS d
CROSS JOIN unnest($3::text[]) AS c (collection)
WHERE NOT EXISTS (SELECT FROM tombstones AS k WHERE k.collection = c.collection AND k.did = d.did AND k.rkey = d.rkey AND k.rev = $2)
LIMIT $4`
	missing, err := All(ctx, tx, "find deletions by id without tombstones", func(row pgx.CollectableRow) (d Deletion, err error) {
		d.Rev, d.Lasting = rev, true
		err = row.Scan(&d.Collection, &d.DID, &d.Rkey)
		return d, err
	}, sql, prefix, rev, collections, limit)
	if err != nil || len(missing) == 0 {
		return 0, err
	}
	slices.SortFunc(missing, func(a, b Deletion) int { return a.compare(b.Key) })
	b := Batch{Deletions: missing, Projections: made}
	if _, err := b.Apply(ctx, tx, Lease{}, true); err != nil {
		return 0, err
	}
	return len(missing), LockProjections(ctx, tx, made)
}
