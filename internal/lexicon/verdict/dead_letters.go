package verdict

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// stages are the stages of the dead letters of judged records.
const stages = `('lexicon', 'rules', 'reference')`

// RetriedBy returns the ids of the dead letters that a job retries, by their records.
func RetriedBy(ctx context.Context, db schema.DB, job int64) (map[schema.Key]int64, error) {
	const sql = `SELECT collection, did, rkey, id FROM dead_letters WHERE job = $1 AND stage IN ` + stages + ` AND state = 'retrying' AND rkey IS NOT NULL`
	found := map[schema.Key]int64{}
	rows, err := db.Query(ctx, sql, job)
	if err == nil {
		var key schema.Key
		var id int64
		_, err = pgx.ForEachRow(rows, []any{&key.Collection, &key.DID, &key.Rkey, &id}, func() error {
			found[key] = id
			return nil
		})
	}
	if err != nil {
		return nil, fmt.Errorf("find the dead letters that the job retries: %w", err)
	}
	return found, nil
}

// settle settles the open dead letters of the records k. LATERAL and LIMIT force index
// lookups, however many dead letters there are. An account has fewer than the limit.
const settle = `
UPDATE dead_letters AS d SET state = 'retried', state_at = now()
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT l.id FROM dead_letters AS l WHERE l.did = k.did AND l.collection = k.collection AND l.rkey = k.rkey AND l.state = 'open' AND l.stage IN ` + stages + `
    LIMIT 10000
) AS l
WHERE d.id = l.id AND d.state = 'open'`

// SettleDeleted settles the open dead letters of those records that are not stored. A
// record that was stored again, and judged, keeps the dead letter of its new version.
func SettleDeleted(ctx context.Context, tx pgx.Tx, deleted []schema.Key) error {
	const sql = settle + `
  AND NOT EXISTS (SELECT FROM records_other AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey)`
	collection, did, rkey := schema.Columns(len(deleted), func(i int) schema.Key { return deleted[i] })
	if _, err := tx.Exec(ctx, sql, collection, did, rkey); err != nil {
		return fmt.Errorf("settle the dead letters of deleted records: %w", err)
	}
	return nil
}

// ReplaceDeadLetters settles the open dead letters of records that pass now or have
// changed, and stores new ones.
func ReplaceDeadLetters(ctx context.Context, tx pgx.Tx, settled []schema.Key, deadLetters []schema.DeadLetter) error {
	q := &pgx.Batch{}
	if len(settled) > 0 {
		collection, did, rkey := schema.Columns(len(settled), func(i int) schema.Key { return settled[i] })
		q.Queue(settle, collection, did, rkey)
	}
	for i := range deadLetters {
		deadLetters[i].Queue(q)
	}
	if q.Len() == 0 {
		return nil
	}
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("store dead letters: %w", err)
	}
	return nil
}
