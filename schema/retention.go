package schema

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// ErrBusy means that others hold a lock that was needed. Nothing was changed: try
// again.
var ErrBusy = errors.New("in use by others: try again later")

// Each function below is one short transaction in one round trip, so that a process
// that stops in between holds no locks. It can run concurrently with the stream, the
// workers and itself. Repeat it to expire the rest.

// ExpirePosts deletes posts in posts_default and posts_ahead that were stored at or
// before a time, at most limit of each, and returns how many. The date that their
// authors claim does not count.
func ExpirePosts(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	n, err := deleteOldest(ctx, db, "posts_default", "indexed_at", before, limit)
	if err != nil {
		return n, err
	}
	ahead, err := One(ctx, db, "find posts_ahead", pgx.RowTo[bool], `SELECT to_regclass('posts_ahead') IS NOT NULL`)
	if err != nil || !ahead {
		return n, err
	}
	m, err := deleteOldest(ctx, db, "posts_ahead", "indexed_at", before, limit)
	return n + m, err
}

// ExpiryRule expires the records of a collection that were stored at or before a time.
type ExpiryRule struct {
	Collection string
	Before     time.Time
}

// ExpireRecords deletes at most limit expired records of collections other than posts,
// the oldest of each first, and their rows in tables of projections. It returns how
// many. It skips locked records. With tables, db is a transaction.
func ExpireRecords(ctx context.Context, db DB, due []ExpiryRule, limit int, tables ...string) (int, error) {
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
	if len(tables) == 0 {
		return Change(ctx, db, "expire records", sql, collection, before, limit)
	}
	keys, err := All(ctx, db, "expire records", pgx.RowToStructByPos[Key], sql+` RETURNING collection, did, rkey`, collection, before, limit)
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	// Only a later snapshot sees the rows of a worker that held the record until now.
	ofCollection, did, rkey := Columns(len(keys), func(i int) Key { return keys[i] })
	for _, table := range tables {
		if _, err := db.Exec(ctx, deleteProjected(table, boundedKeys), ofCollection, did, rkey, slices.Min(rkey), slices.Max(rkey)); err != nil {
			return 0, fmt.Errorf("expire the %s of records: %w", table, err)
		}
	}
	return len(keys), nil
}

// ExpireTombstones deletes tombstones of deletions at or before a time.
func ExpireTombstones(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	return deleteOldest(ctx, db, "tombstones", "deleted_at", before, limit)
}

// ExpireGaps deletes gaps that were closed at or before a time.
func ExpireGaps(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	return deleteOldest(ctx, db, "gaps", "closed_at", before, limit)
}

// ExpireDeadLetters deletes dead letters last seen at or before a time.
func ExpireDeadLetters(ctx context.Context, db DB, before time.Time, limit int) (int, error) {
	return deleteOldest(ctx, db, "dead_letters", "last_seen", before, limit)
}

// deleteOldest deletes at most limit rows of a table whose indexed time column is at
// or before a time, oldest first, and returns how many. It skips locked rows.
func deleteOldest(ctx context.Context, db DB, table, moment string, before time.Time, limit int) (int, error) {
	const sql = `
DELETE FROM %[1]s
WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM %[1]s WHERE %[2]s <= $1
    ORDER BY %[2]s LIMIT $2 FOR UPDATE SKIP LOCKED
))`
	return Change(ctx, db, "expire "+table, fmt.Sprintf(sql, table, moment), before, limit)
}

// WithErrBusy adds ErrBusy to an error of a lock timeout.
func WithErrBusy(err error) error {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) && pgErr.Code == "55P03" {
		return errors.Join(ErrBusy, err)
	}
	return err
}
