package schema

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An advisory lock of ours is a transaction's, never a session's: through a
// transaction pooler the session that has it may be another's a moment later.
// The transaction does nothing else. Its statements use the simple protocol: a
// portal of the extended one would keep its snapshot until the transaction ends,
// and REINDEX CONCURRENTLY would wait for that.

// withLock runs f while this process holds the advisory lock, and waits for it.
func withLock(ctx context.Context, pool *pgxpool.Pool, key int64, f func() error) error {
	return inLock(ctx, pool, func(tx pgx.Tx) (bool, error) {
		_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, pgx.QueryExecModeSimpleProtocol, key)
		return true, err
	}, f)
}

// TryLock is withLock, but answers ErrBusy where another process holds it.
func TryLock(ctx context.Context, pool *pgxpool.Pool, key int64, f func() error) error {
	return inLock(ctx, pool, func(tx pgx.Tx) (locked bool, err error) {
		err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1)`, pgx.QueryExecModeSimpleProtocol, key).Scan(&locked)
		return locked, err
	}, f)
}

func inLock(ctx context.Context, pool *pgxpool.Pool, lock func(pgx.Tx) (bool, error), f func() error) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// It is open and idle for as long as f takes. transaction_timeout is there
		// from Postgres 17 on.
		if _, err := tx.Exec(ctx, `SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('idle_in_transaction_session_timeout', 'transaction_timeout')`,
			pgx.QueryExecModeSimpleProtocol); err != nil {
			return fmt.Errorf("prepare a lock: %w", err)
		}
		locked, err := lock(tx)
		if err != nil {
			return fmt.Errorf("take a lock: %w", err)
		}
		if !locked {
			return ErrBusy
		}
		return f()
	})
}
