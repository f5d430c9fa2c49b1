package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// AddListingMembers notes whom a page of a listing names: of the watch's own, or of the
// follows of one of its accounts, by. It counts each account once for each by,
// however often a page is read again.
func AddListingMembers(ctx context.Context, tx pgx.Tx, job int64, by string, members []Member) error {
	const sql = `
INSERT INTO listing_members AS l (job_id, degree, did, handle, display_name, avatar, last_by)
SELECT DISTINCT ON (m.did) $1, CASE WHEN $2 = '' THEN 1 ELSE 2 END, m.did, m.handle, m.name, m.avatar, $2
FROM unnest($3::text[], $4::text[], $5::text[], $6::text[]) AS m (did, handle, name, avatar)
ORDER BY m.did
ON CONFLICT (job_id, degree, did) DO UPDATE
SET times = l.times + 1, last_by = excluded.last_by
WHERE l.last_by <> excluded.last_by`
	did, handle, name, avatar := memberColumns(members)
	if _, err := tx.Exec(ctx, sql, job, by, did, handle, name, avatar); err != nil {
		return fmt.Errorf("note whom the listing of job %d names: %w", job, err)
	}
	return nil
}

// UncountFollows takes back what one account's follows have counted, where it was the
// last to be counted.
func UncountFollows(ctx context.Context, tx pgx.Tx, job int64, by string) error {
	const sql = `UPDATE listing_members SET times = times - 1, last_by = '' WHERE job_id = $1 AND degree = 2 AND last_by = $2`
	if _, err := tx.Exec(ctx, sql, job, by); err != nil {
		return fmt.Errorf("take back the follows of %s: %w", by, err)
	}
	return nil
}

// NextListingMember is the first account after one, in order, that the watch's own
// listing names; empty: there is none.
func NextListingMember(ctx context.Context, tx pgx.Tx, job int64, after string) (did string, err error) {
	const sql = `SELECT did FROM listing_members WHERE job_id = $1 AND degree = 1 AND did > $2 ORDER BY did LIMIT 1`
	err = tx.QueryRow(ctx, sql, job, after).Scan(&did)
	if err != nil && !errors.Is(err, ErrNoRows) {
		return "", fmt.Errorf("find whose follows to read after %s: %w", after, err)
	}
	return did, nil
}

// ListingMembers are those whom a listing names, in order: of degree 1, or of degree 2
// those whom so many follow.
func ListingMembers(ctx context.Context, tx pgx.Tx, job int64, degree, atLeast int) ([]Member, error) {
	const sql = `
SELECT did, handle, display_name, avatar FROM listing_members
WHERE job_id = $1 AND degree = $2 AND times >= $3
ORDER BY did`
	return all(ctx, tx, fmt.Sprintf("read the listing of job %d", job), pgx.RowToStructByPos[Member], sql, job, degree, atLeast)
}

// MissingMembers are members of a watch that its complete listing does not name and
// that were not asked about yet, in order and at most limit. Those that are
// deleted are left out.
func MissingMembers(ctx context.Context, db DB, job, watch int64, limit int) ([]string, error) {
	const sql = `
SELECT w.did FROM watch_members AS w
WHERE w.watch_id = $2
  AND NOT EXISTS (SELECT FROM listing_members AS l WHERE l.job_id = $1 AND l.degree IN (0, 1, 2) AND l.did = w.did)
  AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND a.status = 'deleted')
ORDER BY w.did
LIMIT $3`
	return all(ctx, db, fmt.Sprintf("find whom the listing of job %d leaves out", job), pgx.RowTo[string], sql, job, watch, limit)
}

// RecordMissingMembers notes which of those that were asked about are shown.
func RecordMissingMembers(ctx context.Context, db DB, job int64, asked, shown []string) error {
	const sql = `
INSERT INTO listing_members (job_id, degree, did, handle, display_name, avatar, last_by, times)
SELECT $1, 0, m.did, '', '', '', '', CASE WHEN m.did = ANY ($3) THEN 1 ELSE 0 END FROM unnest($2::text[]) AS m (did)
ON CONFLICT DO NOTHING`
	if _, err := db.Exec(ctx, sql, job, asked, shown); err != nil {
		return fmt.Errorf("note who is hidden: %w", err)
	}
	return nil
}

// HiddenMembers are the members that a listing does not name because they are hidden.
func HiddenMembers(ctx context.Context, tx pgx.Tx, job int64) ([]string, error) {
	const sql = `SELECT did FROM listing_members WHERE job_id = $1 AND degree = 0 AND times = 0 ORDER BY did`
	return all(ctx, tx, "read who is hidden", pgx.RowTo[string], sql, job)
}

// DropListing forgets a listing that is taken over, or never will be.
func DropListing(ctx context.Context, db DB, job int64) error {
	if _, err := db.Exec(ctx, `DELETE FROM listing_members WHERE job_id = $1`, job); err != nil {
		return fmt.Errorf("forget the listing of job %d: %w", job, err)
	}
	return nil
}

// DropOrphanedListings forgets listings of jobs that somebody dropped, or that
// failed for good: at most limit rows.
func DropOrphanedListings(ctx context.Context, db DB, limit int) (int, error) {
	const sql = `
WITH RECURSIVE jobs (id) AS (
    SELECT min(job_id) FROM listing_members
    UNION ALL
    SELECT (SELECT min(l.job_id) FROM listing_members AS l WHERE l.job_id > jobs.id) FROM jobs WHERE jobs.id IS NOT NULL
), lost AS (
    SELECT jobs.id FROM jobs
    WHERE NOT EXISTS (SELECT FROM river_job AS j WHERE j.id = jobs.id AND j.state IN ` + unfinished + `)
)
DELETE FROM listing_members AS l
WHERE l.ctid = ANY (ARRAY(SELECT l.ctid FROM listing_members AS l JOIN lost ON lost.id = l.job_id LIMIT $1))`
	return deleteRows(ctx, db, "forget lost listings", sql, limit)
}

// CheckListing is ErrNoRows when a listing that began then is of no use any
// more: the watch is gone, is of something else, or was read by somebody who
// began later.
func CheckListing(ctx context.Context, tx pgx.Tx, w Watch, began time.Time) error {
	var first bool
	if err := tx.QueryRow(ctx, neverSynced, w.ID, w.Target, w.Kind, w.AtLeast, began).Scan(&first); err != nil {
		return fmt.Errorf("look at watch %d: %w", w.ID, err)
	}
	return nil
}

// neverSynced answers whether a watch was never read; nothing, when a listing that
// began at $5 is of no use any more.
const neverSynced = `
SELECT synced_at IS NULL FROM watches
WHERE id = $1 AND target = $2 AND kind = $3 AND at_least = $4 AND (synced_at IS NULL OR synced_at <= $5)`

// memberColumns are accounts, a column each, as unnest takes them.
func memberColumns(members []Member) (did, handle, name, avatar pgtype.FlatArray[string]) {
	n := len(members)
	did, handle = make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	name, avatar = make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	for i, m := range members {
		did[i], handle[i], name[i], avatar[i] = m.DID, m.Handle, Text(m.DisplayName), Text(m.Avatar)
	}
	return did, handle, name, avatar
}
