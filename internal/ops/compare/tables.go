package compare

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/schema"
)

// Table is a table to compare.
type Table struct {
	Name    string
	Key     []string // columns that identify a row in every database
	Columns []string
	From    string            // query for the rows, with these columns; empty: all rows of the table
	Rows    string            // which rows are not compared, and why; empty: all rows are compared
	Without map[string]string // the other columns of the table, and why they are not compared
}

// Kept is an SQL condition on rows k: it leaves out accounts whose records the next purge deletes: it runs at a different
// time in each database.
const Kept = ` NOT EXISTS (SELECT FROM accounts AS gone WHERE gone.did = k.did AND gone.status = 'deleted')
  AND NOT EXISTS (SELECT FROM purge_queue AS gone WHERE gone.did = k.did) `

// Purged is why rows are left out.
const Purged = "those of deleted accounts, through their posts, and of accounts that wait for a purge: the next purge deletes them, at " +
	"another moment in each database"

// Why columns are left out.
const (
	Numbered = "every database numbers its own rows"
	Clock    = "when this database did it"
	reading  = "how far servers were asked: it claims no more than the archive has, and is asked again"
	schedule = "when a job does it next"
)

// Rows are rows that a feature leaves out of another's table.
type Rows struct {
	Table string
	Where string // they fulfil this SQL condition; k is the row
	Why   string
}

// Tables returns the tables that are compared, with those of features, without these rows.
func Tables(of []Table, without ...Rows) []Table {
	all := append(tables(), of...)
	for _, out := range without {
		for i := range all {
			if all[i].Name == out.Table {
				all[i].From += " AND NOT " + out.Where
				all[i].Rows += "; and " + out.Why
			}
		}
	}
	return all
}

func tables() []Table {
	return []Table{
		{Name: "records", Key: []string{"collection", "did", "rkey"}, Columns: []string{"rev", "cid", "created_at", "record"},
			From: `SELECT * FROM records AS k WHERE` + Kept, Rows: Purged, Without: map[string]string{"indexed_at": Clock}},
		{Name: "tombstones", Key: []string{"collection", "did", "rkey"}, Columns: []string{"rev", "deleted_at"},
			From: `SELECT * FROM tombstones AS k WHERE` + Kept + `AND NOT EXISTS (
    SELECT FROM records AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey)`,
			Rows: Purged + "; those of records that are stored again: they say nothing any more"},
		{Name: "accounts", Key: []string{"did"}, Columns: []string{
			"handle", "handle_at", "display_name", "avatar", "status", "status_at", "hidden_at", "erased_rev", "not_recommended",
		},
			From: `SELECT k.did, CASE WHEN k.status = 'active' THEN k.handle END AS handle,
       CASE WHEN k.status = 'active' THEN k.handle_at END AS handle_at, k.display_name, k.avatar, k.status, k.status_at,
       CASE WHEN k.status = 'hidden' THEN k.hidden_at END AS hidden_at, k.erased_rev, k.not_recommended
FROM accounts AS k
WHERE k.status <> 'active' OR k.erased_rev IS NOT NULL OR k.not_recommended OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = k.did)`,
			Rows: "active accounts that are not followed: which of their handles are stored depends on how batches were cut; of an account that " +
				"is not active, its last handle and when it had it: it is shown to nobody, and the archive forgets that of deleted accounts",
			Without: map[string]string{"handle_unverified": schedule, "handle_checked_at": schedule, "read_since": reading, "feed_newest": reading,
				"feed_read_at": reading, "feed_problem": reading, "reread_since": reading, "reread_count": reading,
				"reread_at": schedule, "purged_for": schedule, "purge_at": schedule, "check_at": schedule}},
		{Name: "watches", Key: []string{"target", "kind"}, Columns: []string{"at_least", "added_at"},
			Without: map[string]string{"id": Numbered, "synced_at": reading, "problem": reading}},
		{Name: "watch_members", Key: []string{"target", "kind", "did"}, Columns: []string{"added_at"},
			From:    `SELECT w.target, w.kind, m.did, m.added_at FROM watch_members AS m JOIN watches AS w ON w.id = m.watch_id`,
			Without: map[string]string{"watch_id": "compared as the target and kind of the watch"}},
	}
}

// LeftOut returns the tables that are not compared, by reason: the comment of each says it, after
// "Not compared:".
func LeftOut(ctx context.Context, db schema.DB) (map[string][]string, error) {
	type left struct{ Name, Why string }
	const sql = `
SELECT c.relname::text AS name, rtrim(substring(obj_description(c.oid, 'pg_class') FROM 'Not compared: (.*)'), '.') AS why
FROM pg_class AS c
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND c.relkind IN ('r', 'p')
    AND obj_description(c.oid, 'pg_class') LIKE '%Not compared: %'
ORDER BY 1`
	all, err := schema.All(ctx, db, "read which tables are not compared", pgx.RowToStructByName[left], sql)
	if err != nil {
		return nil, err
	}
	reasons := map[string][]string{}
	for _, one := range all {
		reasons[one.Why] = append(reasons[one.Why], one.Name)
	}
	return reasons, nil
}
