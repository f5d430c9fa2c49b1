package schema

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// RemoveStale deletes rows of a projection that should not exist, for at most limit records, and
// returns the number of records. If it is less than limit, no stale row is left.
//
// A row is stale if the projection no longer reads its collection, or if its record is not stored
// and was deleted. If the projection's rows are deleted when a record expires, every row without a
// stored record is stale.
func (p *Projection) RemoveStale(ctx context.Context, pool *pgxpool.Pool, limit int) (int, error) {
	unread, err := p.unread(ctx, pool)
	if err != nil {
		return 0, err
	}
	tables := p.made()
	if p.Expires { // no table may have rows without a stored record
		tables = p.Tables
	}
	var keys []Key
	for _, table := range tables {
		found, err := p.stale(ctx, pool, table, unread, limit-len(keys))
		if err != nil {
			return 0, err
		}
		if keys = append(keys, found...); len(keys) == limit {
			break
		}
	}
	if len(keys) == 0 {
		return 0, nil
	}
	// The record may have been stored meanwhile. Nobody can store it while this transaction has the
	// lock of its account.
	const remove = `
DELETE FROM %s AS p
USING unnest($1::text[], $2::text[], $3::text[]) AS d (collection, did, rkey)
WHERE p.collection = d.collection AND p.did = d.did AND p.rkey = d.rkey
  AND (p.collection = ANY ($4) OR NOT EXISTS (SELECT FROM records AS r
      WHERE r.collection = d.collection AND r.did = d.did AND r.rkey = d.rkey))`
	collections, dids, rkeys := Columns(len(keys), func(i int) Key { return keys[i] })
	var accounts accountLockSet
	for i := range keys {
		accounts.add(keys[i].DID)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		q := &pgx.Batch{}
		accounts.queueLocks(q, exclusively)
		for _, table := range p.Tables {
			q.Queue(fmt.Sprintf(remove, pgx.Identifier{table}.Sanitize()), collections, dids, rkeys, unread)
		}
		return tx.SendBatch(ctx, q).Close()
	})
	if err != nil {
		return 0, fmt.Errorf("remove the stale rows of %s: %w", p.Name, err)
	}
	return len(keys), nil
}

// made returns the tables or views whose rows were made from stored records.
func (p *Projection) made() []string {
	if len(p.Compared) > 0 {
		return p.Compared
	}
	return p.Tables
}

// unread returns the collections that have rows but that the projection does not read.
func (p *Projection) unread(ctx context.Context, db DB) ([]string, error) {
	unread := []string{}
	for _, table := range p.made() {
		found, err := All(ctx, db, "list the collections in "+table, pgx.RowTo[string],
			`SELECT DISTINCT collection::text FROM `+pgx.Identifier{table}.Sanitize())
		if err != nil {
			return nil, err
		}
		unread = append(unread, found...)
	}
	return slices.DeleteFunc(unread, p.Reads), nil
}

// stale returns records that have stale rows in a table.
func (p *Projection) stale(ctx context.Context, db DB, table string, unread []string, limit int) ([]Key, error) {
	sql := `
SELECT DISTINCT p.collection::text AS collection, p.did::text AS did, p.rkey::text AS rkey
FROM ?table AS p
WHERE p.collection = ANY ($1)
   OR NOT EXISTS (SELECT FROM records AS r WHERE r.collection = p.collection AND r.did = p.did AND r.rkey = p.rkey)
      AND ($2 OR EXISTS (SELECT FROM tombstones AS t WHERE ` + DeletesFrom("p.collection") + ` AND t.did = p.did AND t.rkey = p.rkey))
LIMIT $3`
	return All(ctx, db, "find stale rows in "+table, pgx.RowToStructByName[Key],
		strings.ReplaceAll(sql, "?table", pgx.Identifier{table}.Sanitize()), unread, p.Expires, limit)
}

// ProjectionRun is the progress of a run_projection job.
type ProjectionRun struct {
	State      string // of the job, as River names it
	Records    int64  // for which jobs were added
	Unfinished int64  // unfinished jobs among these; they have the lowest priority
	Problem    string // of the last failed attempt
}

// FindProjectionRun returns the progress of a run_projection job, or ErrNoRows.
func FindProjectionRun(ctx context.Context, db DB, job int64) (ProjectionRun, error) {
	const sql = `
SELECT j.state::text                                                                             AS state,
       coalesce((jsonb_path_query_first(j.metadata, 'strict $.**.count') #>> '{}')::bigint, 0)     AS records,
       (SELECT count(*) FROM river_job AS w WHERE w.kind = p.kind AND w.priority = 4 AND w.state IN ` + UnfinishedStates + `) AS unfinished,
       coalesce(j.errors[array_upper(j.errors, 1)] ->> 'error', '')                                AS problem
FROM river_job AS j
JOIN projections AS p ON p.name = j.args ->> 'name'
WHERE j.id = $1`
	return One(ctx, db, "read how far the projection is", pgx.RowToStructByName[ProjectionRun], sql, job)
}
