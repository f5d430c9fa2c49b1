package catalog

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/schema"
)

// Hook is what the archive does in the core's transactions. wire decodes the events that it makes of what was
// fetched, so that whoever reads the archive of a stream reads them too; empty: they are not archived.
func Hook(wire string) schema.Hook {
	h := schema.Hook{
		Deleted: func(q *pgx.Batch, b *schema.Batch) {
			queueForgotten(q, b)
			queueDeletedRecords(q, b)
		},
		// No list in the store names the account yet. Its purge waits for the list for at most a week.
		Purging: `EXISTS (SELECT FROM forgotten AS f WHERE f.did = $1 AND f.listed_at IS NULL AND f.at > $4::timestamptz - interval '7 days')`,
	}
	if wire != "" {
		h.Fetched = func(ctx context.Context, tx pgx.Tx, f schema.Fetched) error { return archiveFetched(ctx, tx, wire, f) }
	}
	return h
}

// archives is true if there is an archive that may have to forget data.
const archives = ` (EXISTS (SELECT FROM segments) OR EXISTS (SELECT FROM archive_open)) `

// queueForgotten queues the accounts that the batch deletes or erases for the archive to
// forget. It comes after the statements that delete and erase, because an event older than
// the stored state does neither.
func queueForgotten(q *pgx.Batch, b *schema.Batch) {
	const sql = `
INSERT INTO forgotten AS f (did, until, reason)
SELECT e.did, max(e.until), min(e.reason)
FROM unnest($1::text[], $2::timestamptz[], $3::text[], $4::timestamptz[], $5::text[]) AS e (did, until, reason, status_at, rev)
JOIN accounts AS a ON a.did = e.did
WHERE CASE e.reason WHEN 'deleted' THEN a.status = 'deleted' AND a.status_at = e.status_at ELSE a.erased_rev = e.rev END
    AND ($6 OR` + archives + `)
GROUP BY e.did
ORDER BY e.did
ON CONFLICT (did) DO UPDATE
SET until = excluded.until, reason = excluded.reason, at = now(), listed_at = NULL
WHERE excluded.until > f.until`
	var did, reason, rev pgtype.FlatArray[string]
	var until, at pgtype.FlatArray[time.Time]
	for _, s := range b.Statuses {
		if s.Status == "deleted" {
			did, reason, rev = append(did, s.DID), append(reason, archive.ReasonDeleted), append(rev, "")
			until, at = append(until, slices.MaxFunc([]time.Time{s.Sent, s.At}, time.Time.Compare)), append(at, s.At)
		}
	}
	for _, e := range b.Erasures {
		did, reason, rev = append(did, e.DID), append(reason, archive.ReasonErased), append(rev, e.Rev)
		until, at = append(until, e.At), append(at, e.At)
	}
	if len(did) > 0 {
		q.Queue(sql, did, until, reason, at, rev, b.OnCommit != nil)
	}
}

// queueDeletedRecords stores the deletions until no segment contains the records.
func queueDeletedRecords(q *pgx.Batch, b *schema.Batch) {
	const sql = `
INSERT INTO deleted_records AS d (did, collection, rkey, rev, deleted_at)
SELECT e.did, e.collection, e.rkey, e.rev, e.deleted_at
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::timestamptz[]) AS e (collection, did, rkey, rev, deleted_at)
WHERE $6 OR` + archives + `
ON CONFLICT (author, did, collection, rkey) DO UPDATE
SET rev = excluded.rev, deleted_at = excluded.deleted_at, at = now()
WHERE excluded.rev > d.rev`
	n := len(b.Deletions)
	if n == 0 {
		return
	}
	collection, did, rkey := schema.Columns(n, func(i int) schema.Key { return b.Deletions[i].Key })
	rev, at := make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[time.Time], n)
	for i := range b.Deletions {
		rev[i], at[i] = b.Deletions[i].Rev, b.Deletions[i].At
	}
	q.Queue(sql, collection, did, rkey, rev, at, b.OnCommit != nil)
}
