// Package schema owns the core of what Weir stores: the migrations, and the
// queries of the core tables, a file per table with the SQL inside the function
// that runs it. A feature such as ranking keeps its own queries. Functions take
// the smallest interface that serves, so that a pool and a transaction both do;
// time comes in as an argument unless it is the database's own clock that
// decides, as it does for leases.
package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:generate env WEIR_WRITE_SCHEMA=1 go test -count=1 -run TestDumpIsTrue .

// DB is what a query needs: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
