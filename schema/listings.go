package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// AddListingMembers stores the accounts on a page of a listing. The page belongs to
// the watch's own listing or, if by is set, to the follows of the account by. Each
// account is counted once per by, even if a page is read twice.
func AddListingMembers(ctx context.Context, tx pgx.Tx, job int64, by string, members []Member) error {
	const sql = `
INSERT INTO listing_members AS l (job_id, degree, did, handle, display_name, avatar, withheld, last_by)
SELECT DISTINCT ON (m.did) $1, CASE WHEN $2 = '' THEN 1 ELSE 2 END, m.did, m.handle, m.name, m.avatar, m.withheld, $2
FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::boolean[]) AS m (did, handle, name, avatar, withheld)
ORDER BY m.did
ON CONFLICT (job_id, degree, did) DO UPDATE
SET times = l.times + 1, last_by = excluded.last_by
WHERE l.last_by <> excluded.last_by`
	did, handle, name, avatar, withheld := memberColumns(members)
	return Exec(ctx, tx, fmt.Sprintf("store the accounts of the listing of job %d", job), sql, job, by, did, handle, name, avatar, withheld)
}

// UncountFollows undoes the counts of one account's follows, if by was the last
// account that was counted.
func UncountFollows(ctx context.Context, tx pgx.Tx, job int64, by string) error {
	const sql = `UPDATE listing_members SET times = times - 1, last_by = '' WHERE job_id = $1 AND degree = 2 AND last_by = $2`
	return Exec(ctx, tx, "undo the counts of the follows of "+by, sql, job, by)
}

// NextListingMember returns the first account of the watch's own listing that sorts
// after a DID, or an empty string.
func NextListingMember(ctx context.Context, tx pgx.Tx, job int64, after string) (did string, err error) {
	const sql = `SELECT did FROM listing_members WHERE job_id = $1 AND degree = 1 AND did > $2 ORDER BY did LIMIT 1`
	err = tx.QueryRow(ctx, sql, job, after).Scan(&did)
	if err != nil && !errors.Is(err, ErrNoRows) {
		return "", fmt.Errorf("find the account to read after %s: %w", after, err)
	}
	return did, nil
}

// ListingMembers returns the accounts of a listing, ordered by DID. For degree 1
// these are the accounts of the watch's own listing; for degree 2, those followed by
// at least atLeast of them.
func ListingMembers(ctx context.Context, tx pgx.Tx, job int64, degree, atLeast int) ([]Member, error) {
	const sql = `
SELECT did, handle, display_name, avatar, withheld FROM listing_members
WHERE job_id = $1 AND degree = $2 AND times >= $3
ORDER BY did`
	return All(ctx, tx, fmt.Sprintf("read the listing of job %d", job), pgx.RowToStructByPos[Member], sql, job, degree, atLeast)
}

// MissingMembers returns at most limit members of a watch that are not in its
// complete listing and were not looked up yet, ordered by DID. It skips deleted
// accounts.
func MissingMembers(ctx context.Context, db DB, job, watch int64, limit int) ([]string, error) {
	const sql = `
SELECT w.did FROM watch_members AS w
WHERE w.watch_id = $2
  AND NOT EXISTS (SELECT FROM listing_members AS l WHERE l.job_id = $1 AND l.degree IN (0, 1, 2) AND l.did = w.did)
  AND NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND a.status = 'deleted')
ORDER BY w.did
LIMIT $3`
	return All(ctx, db, fmt.Sprintf("find the members that the listing of job %d lacks", job), pgx.RowTo[string], sql, job, watch, limit)
}

// RecordMissingMembers stores which of the looked-up members the network shows.
func RecordMissingMembers(ctx context.Context, db DB, job int64, checked, shown []string) error {
	const sql = `
INSERT INTO listing_members (job_id, degree, did, handle, display_name, avatar, last_by, times)
SELECT $1, 0, m.did, '', '', '', '', CASE WHEN m.did = ANY ($3) THEN 1 ELSE 0 END FROM unnest($2::text[]) AS m (did)
ON CONFLICT DO NOTHING`
	return Exec(ctx, db, "store the hidden members", sql, job, checked, shown)
}

// HiddenMembers returns the members that are missing from a listing because the
// network hides them.
func HiddenMembers(ctx context.Context, tx pgx.Tx, job int64) ([]string, error) {
	const sql = `SELECT did FROM listing_members WHERE job_id = $1 AND degree = 0 AND times = 0 ORDER BY did`
	return All(ctx, tx, "read the hidden members", pgx.RowTo[string], sql, job)
}

// DropListing deletes a listing that was applied or abandoned.
func DropListing(ctx context.Context, db DB, job int64) error {
	return Exec(ctx, db, fmt.Sprintf("delete the listing of job %d", job), `DELETE FROM listing_members WHERE job_id = $1`, job)
}

// DropOrphanedListings deletes at most limit rows of listings whose jobs were deleted
// or failed permanently.
func DropOrphanedListings(ctx context.Context, db DB, limit int) (int, error) {
	const sql = `
WITH RECURSIVE jobs (id) AS (
    SELECT min(job_id) FROM listing_members
    UNION ALL
    SELECT (SELECT min(l.job_id) FROM listing_members AS l WHERE l.job_id > jobs.id) FROM jobs WHERE jobs.id IS NOT NULL
), lost AS (
    SELECT jobs.id FROM jobs
    WHERE NOT EXISTS (SELECT FROM river_job AS j WHERE j.id = jobs.id AND j.state IN ` + UnfinishedStates + `)
)
DELETE FROM listing_members AS l
WHERE l.ctid = ANY (ARRAY(SELECT l.ctid FROM listing_members AS l JOIN lost ON lost.id = l.job_id LIMIT $1))`
	return Change(ctx, db, "delete orphaned listings", sql, limit)
}

// CheckListing returns ErrNoRows if a listing that began at a time is obsolete: the
// watch was removed or changed, or has a listing that began later.
func CheckListing(ctx context.Context, tx pgx.Tx, w Watch, began time.Time) error {
	var first bool
	if err := tx.QueryRow(ctx, neverSynced, w.ID, w.Target, w.Kind, w.AtLeast, began).Scan(&first); err != nil {
		return fmt.Errorf("check watch %d: %w", w.ID, err)
	}
	return nil
}

// neverSynced selects whether a watch was never read. It selects no row if a listing
// that began at $5 is obsolete.
const neverSynced = `
SELECT synced_at IS NULL FROM watches
WHERE id = $1 AND target = $2 AND kind = $3 AND at_least = $4 AND (synced_at IS NULL OR synced_at <= $5 OR synced_at > clock_timestamp())`

// memberColumns returns the members as one array per column, for unnest.
func memberColumns(members []Member) (did, handle, name, avatar pgtype.FlatArray[string], withheld pgtype.FlatArray[bool]) {
	n := len(members)
	did, handle = make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n)
	name, avatar, withheld = make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[string], n), make(pgtype.FlatArray[bool], n)
	for i, m := range members {
		did[i], handle[i], name[i], avatar[i], withheld[i] = m.DID, m.Handle, Text(m.DisplayName), Text(m.Avatar), m.Withheld
	}
	return did, handle, name, avatar, withheld
}
