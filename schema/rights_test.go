package schema_test

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestRightsCoverEverything covers a migrated database, except the partitions
// of posts: a role without rights misses all of it.
func TestRightsCoverEverything(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	role := strings.ToLower("nobody_" + rand.Text())
	_, err := pool.Exec(t.Context(), `CREATE ROLE `+role)
	require.NoError(t, err)
	t.Cleanup(func() {
		_, err := pool.Exec(context.WithoutCancel(t.Context()), `DROP ROLE `+role)
		require.NoError(t, err)
	})
	_, err = pool.Exec(t.Context(), `REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC`)
	require.NoError(t, err)
	rows, err := pool.Query(t.Context(), `
SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p', 'v') AND relname !~ '^posts_[0-9]'
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace AND prorettype <> 'trigger'::regtype
    AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_proc'::regclass AND d.objid = pg_proc.oid AND d.deptype = 'e')
UNION ALL SELECT s.relname FROM pg_class AS s JOIN pg_depend AS d ON d.objid = s.oid AND d.deptype = 'a' WHERE s.relkind = 'S'`)
	require.NoError(t, err)
	there, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `SET LOCAL ROLE `+role); err != nil {
			return err
		}
		rights, err := schema.ReadRights(t.Context(), tx)
		require.NoError(t, err)
		require.False(t, rights.Partitions)
		var missed []string
		for _, m := range rights.Missing {
			_, what, _ := strings.Cut(strings.Replace(m, " sequence ", " ", 1), " on ")
			name, _, _ := strings.Cut(what, "(")
			missed = append(missed, name)
		}
		require.ElementsMatch(t, there, missed)
		return nil
	}))
}
