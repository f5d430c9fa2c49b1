package schema_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestWhoLocksAStreamForAMomentIsNotEnded covers a stream whose lease ended long ago. No process
// held it for a while, and one has just begun to divide its accounts, or to take the lease.
func TestWhoLocksAStreamForAMomentIsNotEnded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	take(t, pool, "dead")
	execute(t, pool, `UPDATE streams SET lease_expires_at = clock_timestamp() - interval '1 hour'`)
	for _, sql := range []string{`SELECT FROM streams FOR NO KEY UPDATE`, `
		UPDATE streams SET epoch = epoch + 1, lease_expires_at = clock_timestamp() + interval '10 seconds'`} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(context.WithoutCancel(t.Context())) // rolled back, or the test has failed
		_, err = tx.Exec(t.Context(), sql)
		require.NoError(t, err)
		_, ok, err := schema.TakeLease(t.Context(), pool, "s", "wire", "other", ttl)
		require.NoError(t, err)
		require.False(t, ok)
		ended, err := schema.EndStalled(t.Context(), pool, "s", schema.StalledAfter)
		require.NoError(t, err)
		require.False(t, ended)
		require.NoError(t, tx.Rollback(t.Context()))
	}
}
