package verdict

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/schema"
)

// ReadBefore returns what is stored about locked records. Records that have not been
// judged yet are missing.
func ReadBefore(ctx context.Context, tx pgx.Tx, keys []schema.Key) (map[schema.Key]*Before, error) {
	verdicts := ofRecords("verdicts", "r.cid, r.schema_hash, r.state")
	dangling := ofRecords("record_refs", "r.to_collection, r.to_did, r.to_rkey", "r.dangling")
	waits := ofRecords("parked", "r.to_collection, r.to_did, r.to_rkey, r.state = 'missing'")
	collection, did, rkey := schema.Columns(len(keys), func(i int) schema.Key { return keys[i] })
	found := make(map[schema.Key]*Before, len(keys))
	var of, to schema.Key
	var b Before
	var missing bool
	q := &pgx.Batch{}
	each := func(sql string, scans []any, f func() error) {
		q.Queue(sql, collection, did, rkey).Query(func(rows pgx.Rows) error {
			_, err := pgx.ForEachRow(rows, scans, f)
			return err
		})
	}
	each(verdicts, []any{&of.Collection, &of.DID, &of.Rkey, &b.CID, &b.Hash, &b.State}, func() error {
		found[of] = &Before{CID: b.CID, Hash: b.Hash, State: b.State, Dangling: map[schema.Key]bool{}, Waits: map[schema.Key]bool{}}
		return nil
	})
	each(dangling, []any{&of.Collection, &of.DID, &of.Rkey, &to.Collection, &to.DID, &to.Rkey}, func() error {
		if known := found[of]; known != nil {
			known.Dangling[to] = true
		}
		return nil
	})
	each(waits, []any{&of.Collection, &of.DID, &of.Rkey, &to.Collection, &to.DID, &to.Rkey, &missing}, func() error {
		if known := found[of]; known != nil {
			known.Waits[to] = missing
		}
		return nil
	})
	if err := tx.SendBatch(ctx, q).Close(); err != nil {
		return nil, fmt.Errorf("read the verdicts: %w", err)
	}
	return found, nil
}

// ofRecords returns a query for keys and columns of the rows r of a table, for the
// records $1 to $3. It reads one record after the other, because a plan made while the
// table was empty would join all of its rows.
func ofRecords(table, columns string, conditions ...string) string {
	const all = `
SELECT k.collection, k.did, k.rkey, r.*
FROM unnest($1::text[], $2::text[], $3::text[]) AS k (collection, did, rkey)
CROSS JOIN LATERAL (SELECT %s FROM %s AS r WHERE %s OFFSET 0) AS r`
	conditions = append(conditions, "r.did = k.did", "r.collection = k.collection", "r.rkey = k.rkey")
	return fmt.Sprintf(all, columns, table, strings.Join(conditions, " AND "))
}

// Store replaces what is stored about locked records.
func Store(ctx context.Context, tx pgx.Tx, judged []*Judgment) error {
	q := &pgx.Batch{}
	queueVerdicts(q, judged)
	queueReferences(q, judged)
	queueTexts(q, judged)
	queueParked(q, judged)
	return schema.Send(ctx, tx, "store verdicts", q)
}

func queueVerdicts(q *pgx.Batch, judged []*Judgment) {
	const sql = `
INSERT INTO verdicts AS v (collection, did, rkey, cid, schema_hash, verdict, state, dangling, problems, warnings)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::boolean[], $9::jsonb[],
    $10::jsonb[])
ON CONFLICT (did, collection, rkey) DO UPDATE
SET cid = excluded.cid, schema_hash = excluded.schema_hash, verdict = excluded.verdict, state = excluded.state,
    dangling = excluded.dangling,
    problems = excluded.problems, warnings = excluded.warnings, judged_at = excluded.judged_at
WHERE (v.cid, v.schema_hash, v.verdict, v.state, v.dangling, v.problems, v.warnings)
      IS DISTINCT FROM (excluded.cid, excluded.schema_hash, excluded.verdict, excluded.state, excluded.dangling, excluded.problems,
          excluded.warnings)`
	n := len(judged)
	cid, hash, verdict, state := make([]string, n), make([]string, n), make([]string, n), make([]string, n)
	dangling, wrong, warnings := make([]bool, n), make([]json.RawMessage, n), make([]json.RawMessage, n)
	for i, j := range judged {
		cid[i], hash[i], verdict[i], state[i], dangling[i] = j.CID, j.Hash, string(j.Verdict), j.State, j.Dangling
		wrong[i], warnings[i] = problems(j.Problems), problems(j.Warnings)
	}
	collection, did, rkey := columns(judged)
	q.Queue(sql, collection, did, rkey, cid, hash, verdict, state, dangling, wrong, warnings)
}

func columns(judged []*Judgment) (collection, did, rkey pgtype.FlatArray[string]) {
	return schema.Columns(len(judged), func(i int) schema.Key { return judged[i].Key })
}

// queueReplace queues the deletion of the records' rows in a table.
func queueReplace(q *pgx.Batch, table string, judged []*Judgment) {
	collection, did, rkey := columns(judged)
	sql := `DELETE FROM ` + table + ` WHERE ctid = ANY (ARRAY(SELECT d.row FROM (` + ofRecords(table, "r.ctid AS row") + `) AS d))`
	q.Queue(sql, collection, did, rkey)
}

func queueReferences(q *pgx.Batch, judged []*Judgment) {
	queueReplace(q, "record_refs", judged)
	const sql = `
INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, cid, declared, read, dangling)
SELECT collection, did, rkey, path, kind, target, nullif(to_collection, ''), nullif(to_did, ''), nullif(to_rkey, ''), nullif(cid, ''),
    declared, read, dangling
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[], $9::text[], $10::text[],
    $11::boolean[], $12::boolean[], $13::boolean[])
     AS r (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, cid, declared, read, dangling)`
	var of, to []schema.Key
	var path, kind, target, cid []string
	var declared, read, dangling []bool
	for _, j := range judged {
		for i := range j.References {
			r := &j.References[i]
			of, to = append(of, j.Key), append(to, r.To)
			path, kind, target, cid = append(path, r.Path), append(kind, string(r.Kind)), append(target, r.Target), append(cid, r.CID)
			declared, read, dangling = append(declared, r.Declared), append(read, r.Read), append(dangling, r.Dangling)
		}
	}
	if len(of) == 0 {
		return
	}
	collection, did, rkey := schema.Columns(len(of), func(i int) schema.Key { return of[i] })
	toCollection, toDID, toRkey := schema.Columns(len(to), func(i int) schema.Key { return to[i] })
	q.Queue(sql, collection, did, rkey, path, kind, target, toCollection, toDID, toRkey, cid, declared, read, dangling)
}

func queueTexts(q *pgx.Batch, judged []*Judgment) {
	queueReplace(q, "record_texts", judged)
	const sql = `
INSERT INTO record_texts (collection, did, rkey, text, words)
SELECT collection, did, rkey, text, setweight(coalesce(names, ''), 'A') || coalesce(words, '') || coalesce(filters, '')
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::tsvector[], $6::tsvector[], $7::tsvector[]) AS t (collection, did, rkey,
    text, names, words, filters)`
	var with []*Judgment
	var text []string
	var names, words, filters []*string
	for _, j := range judged {
		if j.Names != nil || j.Words != nil {
			with, text, names, words, filters = append(with, j), append(text, j.Text), append(names, j.Names), append(words, j.Words),
				append(filters, j.Filters)
		}
	}
	if len(with) == 0 {
		return
	}
	collection, did, rkey := columns(with)
	q.Queue(sql, collection, did, rkey, text, names, words, filters)
}

// UseIndexes makes the statements of a transaction use indexes. Statistics of tables
// that were recently empty make a scan of the whole table look cheap, and a prepared
// statement keeps such a plan.
func UseIndexes(ctx context.Context, tx pgx.Tx) error {
	return schema.Exec(ctx, tx, "set the transaction to use indexes", `SELECT set_config('enable_seqscan', 'off', true)`)
}
