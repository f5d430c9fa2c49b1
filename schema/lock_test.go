package schema_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// limited returns a pool on the same database whose server ends transactions
// after three seconds, by those of the given settings that it has.
func limited(t *testing.T, pool *pgxpool.Pool, settings ...string) *pgxpool.Pool {
	t.Helper()
	config := pool.Config()
	for _, name := range column(t, pool, `SELECT name FROM pg_settings WHERE name = ANY ($1)`, settings) {
		config.ConnConfig.RuntimeParams[name] = "3s"
	}
	limited, err := pgxpool.NewWithConfig(context.Background(), config)
	require.NoError(t, err)
	t.Cleanup(limited.Close)
	return limited
}

// outlives runs f, which needs a lock that other holds. It ends other when the
// transaction of f's lock is older than the limits.
func outlives(t *testing.T, pool *pgxpool.Pool, lock string, other pgx.Tx, f func() error) {
	t.Helper()
	t.Cleanup(func() { other.Rollback(context.Background()) }) // f continues, whatever has failed
	done := make(chan error, 1)
	go func() { done <- f() }()
	eventually.True(t, func() bool {
		return len(column(t, pool, `SELECT pid::text FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE $1 AND pid <> pg_backend_pid() AND clock_timestamp() - xact_start > interval '4 s'`,
			lock)) > 0
	}, 20*time.Millisecond, "the lock's transaction was ended")
	require.NoError(t, other.Commit(t.Context()))
	require.NoError(t, <-done)
}

// TestMigrationWaitsLongerThanATransactionMay has another process migrate for
// longer than transaction_timeout (Postgres 17 and newer).
//
// The test fails if that setting is left unchanged.
func TestMigrationWaitsLongerThanATransactionMay(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	pool := schematest.New(t)
	other, err := pool.Begin(t.Context())
	require.NoError(t, err)
	execute(t, other, `SELECT pg_advisory_xact_lock($1)`, int64(0x77656972))
	waiting := limited(t, pool, "transaction_timeout")
	outlives(t, pool, `SELECT pg_advisory_xact_lock(%`, other,
		func() error { return schematest.Migrate(context.Background(), waiting) })
}
