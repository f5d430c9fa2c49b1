package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
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
