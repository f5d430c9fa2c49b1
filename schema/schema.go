// Package schema owns Weir's migrations and the queries of its core tables. Each
// function contains the SQL that it runs. A feature such as ranking has its own
// queries.
//
// Functions accept a DB, so a pool, a connection and a transaction all work. The
// current time is an argument, except where the database's clock decides, as for
// leases.
package schema

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

//go:generate go test -count=1 -run TestDumpIsTrue . -update

// DB runs queries: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}
