package schema

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// One reads the row that a query returns, or returns ErrNoRows. what names the
// operation in an error, such as "read the streams".
func One[T any](ctx context.Context, db DB, what string, row pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		var v T
		if v, err = pgx.CollectExactlyOneRow(rows, row); err == nil {
			return v, nil
		}
	}
	var none T
	return none, fmt.Errorf("%s: %w", what, err)
}

// All reads all rows that a query returns.
func All[T any](ctx context.Context, db DB, what string, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		var found []T
		if found, err = pgx.CollectRows(rows, row); err == nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", what, err)
}

// Each reads the rows that a query returns into targets, one after the other, and calls f after each.
func Each(ctx context.Context, db DB, what string, targets []any, f func() error, sql string, args ...any) error {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		_, err = pgx.ForEachRow(rows, targets, f)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// Change runs a statement, and returns how many rows it has changed.
func Change(ctx context.Context, db DB, what, sql string, args ...any) (rows int, err error) {
	tag, err := db.Exec(ctx, sql, args...)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	return int(tag.RowsAffected()), nil
}

// Exec runs a statement.
func Exec(ctx context.Context, db DB, what, sql string, args ...any) error {
	_, err := Change(ctx, db, what, sql, args...)
	return err
}

// Send runs the statements of a batch in one round trip.
func Send(ctx context.Context, db Batcher, what string, q *pgx.Batch) error {
	if q.Len() == 0 {
		return nil
	}
	if err := db.SendBatch(ctx, q).Close(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// QueueAll queues a query. Once the batch has been read, to contains all its rows.
func QueueAll[T any](q *pgx.Batch, what string, row pgx.RowToFunc[T], to *[]T, sql string, args ...any) {
	q.Queue(sql, args...).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, row)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		*to = found
		return nil
	})
}

// ApplySettings sets the server's settings for a connection of Weir.
//
// The server ends a transaction that is idle for ten seconds. Otherwise a paused
// process or a silent host would keep its locks, and with them the stream, until the
// server notices: by default, after hours.
//
// JIT compilation is off, because compiling a long query takes longer than running it.
func ApplySettings(ctx context.Context, conn *pgx.Conn) error {
	const sql = `SELECT set_config('idle_in_transaction_session_timeout', '10s', false), set_config('jit', 'off', false)`
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("apply the connection's settings: %w", err)
	}
	return nil
}

// Columns returns n keys as one array per column, for unnest.
func Columns(n int, key func(i int) Key) (collection, did, rkey pgtype.FlatArray[string]) {
	c := newKeyColumns(n)
	for i := range n {
		c.set(i, key(i))
	}
	return c.collection, c.did, c.rkey
}

// Text makes an untrusted string storable: valid UTF-8, without NUL, of limited
// length.
func Text(s string) string {
	const limit = 2000
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
