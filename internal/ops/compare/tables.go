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

// kept leaves out accounts whose records the next purge deletes: it runs at a different
// time in each database.
const kept = ` NOT EXISTS (SELECT FROM accounts AS gone WHERE gone.did = k.did AND gone.status = 'deleted')
  AND NOT EXISTS (SELECT FROM purge_queue AS gone WHERE gone.did = k.did) `

// ofStored leaves out shares of posts that are not stored, and those that do not count.
const ofStored = ` (k.subject_did IS NULL OR EXISTS (
    SELECT FROM records AS p WHERE p.collection = k.subject_collection AND p.did = k.subject_did AND p.rkey = k.subject_rkey)
  AND EXISTS (
    SELECT FROM subjects AS u
    WHERE u.collection = k.subject_collection AND u.did = k.subject_did AND u.rkey = k.subject_rkey AND k.named_id = ANY (u.links))
  AND NOT EXISTS (SELECT FROM accounts AS gone WHERE gone.did = k.subject_did AND gone.status = 'deleted')) `

// Why rows are left out.
const (
	purged = "those of deleted accounts, through their posts, and of accounts that wait for a purge: the next purge deletes them, at another moment in each database"
	asked  = "those of quotes and reposts of posts that are not stored: the AppView is asked for their links again; and those of links that the post no longer has: they do not count, and the next check deletes them"
)

// Why columns are left out.
const (
	numbered = "every database numbers its own rows"
	clock    = "when this database did it"
	reading  = "how far servers were asked: it claims no more than the archive has, and is asked again"
	schedule = "when a job does it next"
	inLinks  = "compared as the identity of the link"
	inMerges = "link_merges says it"
	votes    = "the votes are counted again, and pages fetched again"
	expiries = "what a link's expired shares were: the archive may have older ones than the database"
	wordsOf  = "made from the record"
)

// Rows are rows that a feature leaves out of another's table.
type Rows struct {
	Table string
	Where string // they fulfil this SQL condition; k is the row
	Why   string
}

// Tables returns the tables that are compared, without these rows.
func Tables(without ...Rows) []Table {
	all := tables()
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
			From: `SELECT * FROM records AS k WHERE` + kept, Rows: purged, Without: map[string]string{"indexed_at": clock}},
		{Name: "tombstones", Key: []string{"collection", "did", "rkey"}, Columns: []string{"rev", "deleted_at"},
			From: `SELECT * FROM tombstones AS k WHERE` + kept + `AND NOT EXISTS (
    SELECT FROM records AS r WHERE r.collection = k.collection AND r.did = k.did AND r.rkey = k.rkey)`,
			Rows: purged + "; those of records that are stored again: they say nothing any more"},
		{Name: "accounts", Key: []string{"did"}, Columns: []string{"handle", "handle_at", "display_name", "avatar", "status", "status_at", "hidden_at", "erased_rev", "not_recommended"},
			From: `SELECT k.did, CASE WHEN k.status = 'active' THEN k.handle END AS handle, CASE WHEN k.status = 'active' THEN k.handle_at END AS handle_at, k.display_name, k.avatar, k.status, k.status_at, CASE WHEN k.status = 'hidden' THEN k.hidden_at END AS hidden_at, k.erased_rev, k.not_recommended
FROM accounts AS k
WHERE k.status <> 'active' OR k.erased_rev IS NOT NULL OR k.not_recommended OR EXISTS (SELECT FROM watch_members AS w WHERE w.did = k.did)`,
			Rows: "active accounts that are not followed: which of their handles are stored depends on how batches were cut; of an account that is not active, its last handle and when it had it: it is shown to nobody, and the archive forgets that of deleted accounts",
			Without: map[string]string{"handle_claimed": schedule, "handle_checked_at": schedule, "feed_since": reading, "feed_newest": reading, "feed_read_at": reading, "feed_problem": reading, "reread_since": reading, "reread_count": reading,
				"reread_at": schedule, "purged_for": schedule, "purge_at": schedule, "check_at": schedule}},
		{Name: "watches", Key: []string{"target", "kind"}, Columns: []string{"at_least", "added_at"},
			Without: map[string]string{"id": numbered, "synced_at": reading, "problem": reading}},
		{Name: "watch_members", Key: []string{"target", "kind", "did"}, Columns: []string{"added_at"},
			From:    `SELECT w.target, w.kind, m.did, m.added_at FROM watch_members AS m JOIN watches AS w ON w.id = m.watch_id`,
			Without: map[string]string{"watch_id": "compared as the target and kind of the watch"}},
		{Name: "shares", Key: []string{"collection", "did", "rkey", "named"}, Columns: []string{"link", "how", "shared_at", "subject_did", "subject_of", "subject_rkey", "gift", "copied"},
			From:    `SELECT k.*, CASE WHEN k.subject_did IS NOT NULL THEN k.subject_collection END AS subject_of, n.identity AS named, l.identity AS link FROM shares AS k JOIN links AS n ON n.id = k.named_id JOIN links AS l ON l.id = k.link_id WHERE` + kept + `AND` + ofStored,
			Rows:    purged + "; and " + asked,
			Without: map[string]string{"link_id": inLinks, "named_id": inLinks, "claim_id": numbered, "stored_at": clock, "words": wordsOf, "subject_collection": "compared as subject_of, if there is a subject"}},
		{Name: "links", Key: []string{"identity"}, Columns: []string{"site"},
			From: `SELECT * FROM links AS l WHERE EXISTS (SELECT FROM shares AS k WHERE k.named_id = l.id AND` + kept + `AND` + ofStored + `)`, Rows: "those without a share that is compared",
			Without: map[string]string{"id": numbered, "url": votes, "title": votes, "description": votes, "image": votes, "card_from": votes, "first_seen": clock,
				"kept_sharers": expiries, "kept_at": expiries, "merged_into": inMerges, "counts_as": inMerges}},
		{Name: "blocks", Key: []string{"kind", "target"}, Columns: []string{"added_at"}, Without: map[string]string{"id": numbered}},
		{Name: "link_merges", Key: []string{"identity"}, Columns: []string{"into", "why", "merged_at", "split_at"},
			From:    `SELECT l.identity, i.identity AS "into", m.why, m.merged_at, m.split_at FROM link_merges AS m JOIN links AS l ON l.id = m.link_id JOIN links AS i ON i.id = m.into_id`,
			Without: map[string]string{"link_id": inLinks, "into_id": inLinks}},
	}
}

// LeftOut returns the tables that are not compared, by reason: the comment of each says it, after
// "Not compared:".
func LeftOut(ctx context.Context, db schema.DB) (map[string][]string, error) {
	type left struct{ Name, Why string }
	const sql = `
SELECT c.relname::text AS name, rtrim(substring(obj_description(c.oid, 'pg_class') FROM 'Not compared: (.*)'), '.') AS why
FROM pg_class AS c
WHERE c.relnamespace = current_schema()::regnamespace AND c.relkind IN ('r', 'p') AND obj_description(c.oid, 'pg_class') LIKE '%Not compared: %'
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
