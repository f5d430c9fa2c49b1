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
