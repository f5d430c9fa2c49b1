package schema_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

func TestMigrationsRunOnceHoweverManyStart(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
	require.NoError(t, err)
	url := pool.Config().ConnString()
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			own, err := pgxpool.New(t.Context(), url)
			if err != nil {
				return err
			}
			defer own.Close()
			return schema.Migrate(t.Context(), own)
		})
	}
	require.NoError(t, g.Wait())
	require.NoError(t, schema.Check(t.Context(), pool))
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO weir_migration (version, name) VALUES (9999, '9999_future')`)
	require.NoError(t, err)
	var tooNew *schema.TooNewError
	require.ErrorAs(t, schema.Migrate(t.Context(), pool), &tooNew)
	require.Equal(t, 9999, tooNew.Database)
	require.ErrorContains(t, schema.Check(t.Context(), pool), "run the newer binary")

	_, err = pool.Exec(t.Context(), `DELETE FROM weir_migration WHERE version >= 2`)
	require.NoError(t, err)
	require.ErrorContains(t, schema.Check(t.Context(), pool), "run `weir migrate`")

	_, err = pool.Exec(t.Context(), `INSERT INTO river_migration (line, version) VALUES ('main', 99)`)
	require.NoError(t, err)
	require.ErrorAs(t, schema.Migrate(t.Context(), pool), &tooNew)
	require.Equal(t, "river", tooNew.What)
}

// TestPostsFindTheirPartition: the bounds of its hours are TIDs, and a post that
// came before its partition moves into it.
func TestPostsFindTheirPartition(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{
		post("3mptbyqhi7s2f", "1"), // a TID of 2026-07-04
		post("self", "1"),          // no TID
		post("3jzfcijpj2z2a", "1"), // a TID of 2023
	}})
	require.NoError(t, err)
	in := func(rkey string) (partition string) {
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT tableoid::regclass::text FROM posts WHERE rkey = $1`, rkey).Scan(&partition))
		return partition
	}
	require.Equal(t, "posts_default", in("3mptbyqhi7s2f"))
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 24*time.Hour))
	require.NoError(t, schema.EnsurePostPartitions(t.Context(), pool, now, 24*time.Hour))
	require.Equal(t, "posts_20260704_12", in("3mptbyqhi7s2f"))
	require.Equal(t, "posts_default", in("self"))
	require.Equal(t, "posts_default", in("3jzfcijpj2z2a"))
}
