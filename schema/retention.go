package schema

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrBusy means that others hold what was to be expired; nothing was changed.
// Try again.
var ErrBusy = errors.New("others use it: try again later")

// Every function below is one short transaction in one round trip: a process
// that stops in the middle of it holds nothing. Each may run beside the stream,
// the workers and itself, and running it again does the rest.

// ExpiredPostPartitions lists the partitions of posts whose time ended at or
// before a moment, the oldest first.
func ExpiredPostPartitions(ctx context.Context, db DB, before time.Time) ([]string, error) {
	const sql = `SELECT part FROM post_partitions WHERE part <> 'posts_ahead' AND upper <= tid_floor($1) ORDER BY lower`
	return all(ctx, db, "list the partitions of posts", pgx.RowTo[string], sql, before)
}

// DropPostPartition drops a partition. dropped is false where there is none.
// ErrBusy while somebody reads posts for longer than a moment.
func DropPostPartition(ctx context.Context, db DB, name string) (dropped bool, err error) {
	rows, err := db.Query(ctx, `SELECT drop_post_partition($1)`, name)
	if err == nil {
		dropped, err = pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool])
	}
	if err != nil {
		return false, fmt.Errorf("drop the partition %s: %w", name, withErrBusy(err))
	}
	return dropped, nil
}

// ExpirePosts deletes posts outside the partitions of a time, in posts_default
// and posts_ahead, that were stored at or before a moment, at most limit of
// each, and returns how many. What their authors claim does not count.
func ExpirePosts(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	n, err := deleteOldest(ctx, db, "posts_default", "indexed_at", before, limit)
	if err != nil {
		return n, err
	}
	ahead, err := one(ctx, db, "look for posts_ahead", pgx.RowTo[bool], `SELECT to_regclass('posts_ahead') IS NOT NULL`)
	if err != nil || !ahead {
		return n, err
	}
	m, err := deleteOldest(ctx, db, "posts_ahead", "indexed_at", before, limit)
	return n + m, err
}

// ExpiryRule says which records of a collection have expired: those that were stored at
// or before a moment.
type ExpiryRule struct {
	Collection string
	Before     time.Time
}

// ExpireRecords deletes the records of other collections than posts that have
// expired, the oldest of each first, at most limit, and returns how many. Records
// that somebody else holds are left to the next call.
func ExpireRecords(ctx context.Context, db DB, due []ExpiryRule, limit int) (int, error) {
	const sql = `
DELETE FROM records_other
WHERE ctid = ANY (ARRAY(
    SELECT r.ctid
    FROM unnest($1::text[], $2::timestamptz[]) AS d (collection, before)
    CROSS JOIN LATERAL (
        SELECT r.ctid FROM records_other AS r
        WHERE r.collection = d.collection AND r.indexed_at <= d.before
        ORDER BY r.indexed_at LIMIT $3
        FOR UPDATE SKIP LOCKED
    ) AS r
    LIMIT $3
))`
	collection, before := make(pgtype.FlatArray[string], len(due)), make(pgtype.FlatArray[time.Time], len(due))
	for i, d := range due {
		collection[i], before[i] = d.Collection, d.Before
	}
	return deleteRows(ctx, db, "expire records", sql, collection, before, limit)
}

// ExpireTombstones forgets deletions that happened at or before a moment.
func ExpireTombstones(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	return deleteOldest(ctx, db, "tombstones", "deleted_at", before, limit)
}

// ExpireGaps forgets gaps that were closed at or before a moment.
func ExpireGaps(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	return deleteOldest(ctx, db, "gaps", "closed_at", before, limit)
}

// ForgetLostShares clears the list of lost shares where links stay for ever and
// nobody asks which of them fell.
func ForgetLostShares(ctx context.Context, db DB, _ time.Time, limit int) (int, error) {
	const sql = `DELETE FROM lost_shares WHERE ctid = ANY (ARRAY(SELECT ctid FROM lost_shares ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED))`
	return deleteRows(ctx, db, "forget lost shares", sql, limit)
}

// ExpireDeadLetters forgets dead letters last seen at or before a moment.
func ExpireDeadLetters(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	return deleteOldest(ctx, db, "dead_letters", "last_seen", before, limit)
}

// deleteOldest deletes the rows of a table whose moment, an indexed column, is
// at or before another, the oldest first, at most limit, and answers how many.
// Rows that somebody else holds are left to the next call.
func deleteOldest(ctx context.Context, db DB, table, moment string, before time.Time, limit int) (int, error) {
	const sql = `
DELETE FROM %[1]s
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM %[1]s WHERE %[2]s <= $1
    ORDER BY %[2]s LIMIT $2 FOR UPDATE SKIP LOCKED
))`
	return deleteRows(ctx, db, "expire "+table, fmt.Sprintf(sql, table, moment), before, limit)
}

// LinkRule says which links stay.
type LinkRule struct {
	Now    time.Time
	Window time.Duration // a link goes when it was first seen, and last shared, so long ago,
	Grace  time.Duration // and fell below Keep so long ago,
	Keep   int           // unless this many accounts share it
}

// ExpiredLinks is what one call of ExpireLinks did. It has looked at LookedAt
// links; none means that no link is due.
type ExpiredLinks struct {
	Checked, Links, Shares int
}

// ExpireLinks looks at links that may have to go, at most limit, and deletes
// those that do, with their shares. A link without shares has the window too:
// workers add it before them. A link falls when it loses a sharer and is
// left with fewer than Keep, where those who shared it since the last look were
// as many. ErrBusy while workers write shares for longer than a moment.
func ExpireLinks(ctx context.Context, db DB, rule LinkRule, limit int) (ExpiredLinks, error) {
	const sql = `SELECT looked_at AS checked, links_gone AS links, shares_gone AS shares FROM expire_links($1, $2, $3, $4, $5)`
	rows, err := db.Query(ctx, sql, rule.Now, rule.Window, rule.Grace, rule.Keep, limit)
	if err != nil {
		return ExpiredLinks{}, fmt.Errorf("expire links: %w", withErrBusy(err))
	}
	gone, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[ExpiredLinks])
	if err != nil {
		return ExpiredLinks{}, fmt.Errorf("expire links: %w", withErrBusy(err))
	}
	return gone, nil
}

func deleteRows(ctx context.Context, db DB, what, sql string, args ...any) (int, error) {
	tag, err := db.Exec(ctx, sql, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return int(tag.RowsAffected()), nil
}

// withErrBusy adds ErrBusy to an error that says a lock was not to be had.
func withErrBusy(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return errors.Join(ErrBusy, err)
	}
	return err
}
