package schema_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestMigrateSaysThatItLacksAnExtension shows the error to a role that may not
// create the extension, before anything is changed.
func TestMigrateSaysThatItLacksAnExtension(t *testing.T) {
	t.Parallel()
	admin := schematest.New(t)
	role := strings.ToLower("owner_" + rand.Text())
	for _, sql := range []string{
		`DROP SCHEMA public CASCADE`, `CREATE SCHEMA public`, `CREATE ROLE ` + role, `GRANT ALL ON SCHEMA public TO ` + role,
	} {
		_, err := admin.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		_, err := admin.Exec(context.WithoutCancel(t.Context()), `DROP OWNED BY `+role+` CASCADE; DROP ROLE `+role)
		require.NoError(t, err)
	})
	config := admin.Config()
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE `+role)
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	require.ErrorContains(t, schematest.Migrate(t.Context(), pool), "CREATE EXTENSION pg_trgm")
	require.Empty(t, column(t, admin, `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace`))

	_, err = admin.Exec(t.Context(), `CREATE EXTENSION pg_trgm`)
	require.NoError(t, err)
	require.NoError(t, schematest.Migrate(t.Context(), pool))
}

// TestMissingExtensionIsNamed shows that the error names what to install.
func TestMissingExtensionIsNamed(t *testing.T) {
	t.Parallel()
	require.ErrorContains(t, schema.RequireExtension(t.Context(), schematest.New(t), "pg_nowhere"),
		"the server lacks the Postgres extension pg_nowhere: install")
}
