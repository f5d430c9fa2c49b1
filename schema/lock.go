package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Advisory locks belong to a transaction, never to a session: a transaction pooler
// may give the session to another client. The transaction does nothing else. Its
// statements use the simple protocol, because a portal of the extended protocol
// keeps its snapshot until the transaction ends, which holds back vacuum.

// withLock waits for an advisory lock and runs f while holding it.
func withLock(ctx context.Context, pool *pgxpool.Pool, key int64, f func() error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// The transaction is idle for as long as f takes. Postgres has
		// transaction_timeout since version 17.
		if _, err := tx.Exec(ctx, `
			SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')`,
			pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("prepare a lock: %w", err)
		}
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, pgx.QueryExecModeSimpleProtocol, key); err != nil {
			return fmt.Errorf("take a lock: %w", err)
		}
		return f()
	})
}
