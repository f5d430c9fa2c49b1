package verdict

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// stages are the stages of the dead letters of judged records.
const stages = `('lexicon', 'rules', 'reference')`

// RetriedBy returns the ids of the dead letters that a job retries, by their records.
func RetriedBy(ctx context.Context, db schema.DB, job int64) (map[schema.Key]int64, error) {
	const sql = `
SELECT collection, did, rkey, id
FROM dead_letters
WHERE job = $1 AND stage IN ` + stages + ` AND state = 'retrying' AND rkey IS NOT NULL`
	found := map[schema.Key]int64{}
	var key schema.Key
	var id int64
	err := schema.Each(ctx, db, "find the dead letters that the job retries", []any{&key.Collection, &key.DID, &key.Rkey, &id}, func() error {
		found[key] = id
		return nil
	}, sql, job)
	if err != nil {
		return nil, err
	}
	return found, nil
}

// settle settles the open dead letters of the records k. LATERAL and LIMIT force index
// lookups, however many dead letters there are. An account has fewer than the limit.
const settle = `
UPDATE dead_letters AS d SET state = 'retried', state_at = now()
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (
    SELECT l.id FROM dead_letters AS l WHERE l.did = k.did AND l.collection = k.collection AND l.rkey = k.rkey AND l.state = 'open'
        AND l.stage IN ` + stages + `
    LIMIT 10000
) AS l
WHERE d.id = l.id AND d.state = 'open'`

// SettleDeleted settles the open dead letters of those records that are not stored. A
// record that was stored again, and judged, keeps the dead letter of its new version.
func SettleDeleted(ctx context.Context, tx pgx.Tx, deleted []schema.Key) error {
	const sql = settle + `
  AND NOT EXISTS (SELECT FROM records_other AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey)`
	collection, did, rkey := schema.Columns(len(deleted), func(i int) schema.Key { return deleted[i] })
	return schema.Exec(ctx, tx, "settle the dead letters of deleted records", sql, collection, did, rkey)
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
	return schema.Send(ctx, tx, "store dead letters", q)
}
