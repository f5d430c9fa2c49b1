package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// one reads the row that a query answers; ErrNoRows where it answers none. what
// says in an error what was tried.
func one[T any](ctx context.Context, db DB, what string, row pgx.RowToFunc[T], sql string, args ...any) (T, error) {
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

// all reads every row that a query answers.
func all[T any](ctx context.Context, db DB, what string, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err == nil {
		var found []T
		if found, err = pgx.CollectRows(rows, row); err == nil {
			return found, nil
		}
	}
	return nil, fmt.Errorf("%s: %w", what, err)
}

// ApplySettings sets what every connection of Weir asks of the server.
//
// The server ends a transaction in which nothing happens for ten seconds. A
// process that is paused, or a host that falls silent, would otherwise keep its
// locks, and with them the stream, for as long as the server takes it to be
// alive: by default, hours.
//
// And it compiles no query: compiling the ranking takes longer than counting it.
func ApplySettings(ctx context.Context, conn *pgx.Conn) error {
	const sql = `SELECT set_config('idle_in_transaction_session_timeout', '10s', false), set_config('jit', 'off', false)`
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("apply the connection's settings: %w", err)
	}
	return nil
}

// One reads the row that a query returns; ErrNoRows where it returns none. what
// says in an error what was tried, such as "read the streams".
func One[T any](ctx context.Context, db DB, what string, row pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	return one(ctx, db, what, row, sql, args...)
}

// All reads every row that a query returns.
func All[T any](ctx context.Context, db DB, what string, row pgx.RowToFunc[T], sql string, args ...any) ([]T, error) {
	return all(ctx, db, what, row, sql, args...)
}

// Columns are the keys of n records, a column each, as unnest takes them.
func Columns(n int, key func(i int) Key) (collection, did, rkey pgtype.FlatArray[string]) {
	c := newKeyColumns(n)
	for i := range n {
		c.set(i, key(i))
	}
	return c.collection, c.did, c.rkey
}
