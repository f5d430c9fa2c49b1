package schema

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
)

// anyKind is the collection of the deletions that name an event of Nostr by its id alone: they
// delete a record of any kind whose key is the event's id.
const anyKind = "nostr.*"

// keyedByID is true for the collections in which such a deletion may delete a record: it does not
// delete requests to delete or to vanish, and the key of an addressable event is its author's choice.
const keyedByID = `?c LIKE 'nostr.%' AND ?c !~ '^nostr[.](5|62|3[0-9]{4})$'`

// DeletesFrom returns the condition that t, a tombstone with the account and the key of a record,
// deletes from a collection, which is an SQL expression.
func DeletesFrom(collection string) string {
	return `t.collection IN (` + collection + `, CASE WHEN ` + strings.ReplaceAll(keyedByID, "?c", collection) + ` THEN '` + anyKind + `' END)`
}

// deleteByID deletes the records that deletions name by the ids of their events, their rows in the
// projections' tables, and the inputs of their dead letters.
func (b *Batch) deleteByID(ctx context.Context, tx pgx.Tx) error {
	var keys keyColumns
	for i := range b.Deletions {
		if d := &b.Deletions[i]; d.Collection == anyKind {
			keys.did, keys.rkey = append(keys.did, d.DID), append(keys.rkey, d.Rkey)
		}
	}
	if len(keys.did) == 0 {
		return nil
	}
	// OFFSET forces one index lookup per id, regardless of the table size that the planner assumes.
	records := `
SELECT r.collection, r.did, r.rkey, r.rev
FROM unnest($1::text[], $2::text[]) AS d (did, rkey)
CROSS JOIN LATERAL (
    SELECT r.collection, r.did, r.rkey, r.rev
    FROM records_other AS r
    WHERE left(r.rkey, 16) = left(d.rkey, 16) AND r.collection >= 'nostr.' AND r.collection < 'nostr/' AND r.did = d.did AND r.rkey = d.rkey
    OFFSET 0
) AS r
WHERE ` + strings.ReplaceAll(keyedByID, "?c", "r.collection") + `
ORDER BY r.collection, r.did, r.rkey`
	deadLetters := `
UPDATE dead_letters AS l
SET ` + clearInput + `
FROM unnest($1::text[], $2::text[]) AS d (did, rkey)
WHERE l.did = d.did AND l.rkey = d.rkey AND l.raw_bytes > 0 AND ` + strings.ReplaceAll(keyedByID, "?c", "l.collection")
	rows, err := tx.Query(ctx, records, keys.did, keys.rkey)
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
	for i := range keys.did { // rows may outlive their record, which has expired
		for _, k := range b.Projections.named(Key{DID: keys.did[i], Rkey: keys.rkey[i]}) {
			gone.Deletions = append(gone.Deletions, Deletion{Key: k})
		}
	}
	slices.SortStableFunc(gone.Deletions, func(d, other Deletion) int { return d.Compare(other.Key) })
	gone.Deletions = slices.CompactFunc(gone.Deletions, func(d, other Deletion) bool { return d.Key == other.Key })
	q := &pgx.Batch{}
	var none []Key
	gone.queueWrites(q, &none) // locks the records, in the order of their keys
	gone.queueDeletions(q, tx)
	q.Queue(deadLetters, keys.did, keys.rkey)
	return tx.SendBatch(ctx, q).Close()
}
