package e2e

import (
	"errors"
	"net/url"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// as is the URL of a database for another role.
func as(t *testing.T, role, database string) string {
	t.Helper()
	u, err := url.Parse(database)
	require.NoError(t, err)
	u.User = url.UserPassword(role, "secret of "+role)
	return u.String()
}

// withRoles creates or updates the roles of deploy/roles.sql in a database.
func withRoles(t *testing.T, database string) {
	t.Helper()
	execute(t, database, read(t, "deploy/roles.sql"))
	execute(t, database, `ALTER ROLE weir_owner PASSWORD 'secret of weir_owner'; ALTER ROLE weir_app PASSWORD 'secret of weir_app'`)
}

// TestLeastPrivilege has the owner migrate. The role that owns nothing serves,
// is killed, serves again, and loses nothing. Partitions are created and
// dropped. The role has no privileges that it does not need.
func TestLeastPrivilege(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	server := schematest.Server(t)
	database := server.URL("weir")
	withRoles(t, database)
	k := prepare(t, busyNetwork(t), server, as(t, "weir_owner", database), as(t, "weir_app", database))
	withRoles(t, database) // as an upgrade does
	stop := live(t, k.net, 100)
	k.killedAt(8, "commit: before its end")
	k.process = start(t, k.env, "serve")
	k.progress(3)
	stop()
	k.compare()
	require.Contains(t, k.process.stderr.String(), "indexes_left_to_the_owner")

	app, owner := open(t, as(t, "weir_app", database)), open(t, as(t, "weir_owner", database))
	day := time.Now().AddDate(1, 0, 0)
	part := day.UTC().Truncate(schema.PartitionSpan).Format("posts_20060102_15")
	partitioned(t, app, day)
	require.Positive(t, count(t, owner, `SELECT count(*) FROM pg_class WHERE relname = '`+part+`' AND relowner = 'weir_owner'::regrole`))
	eventually.True(t, func() bool {
		dropped, err := schema.DropPartition(t.Context(), app, part, nil)
		return err == nil && dropped
	}, 10*time.Millisecond)
	_, err := app.Exec(t.Context(), `SELECT make_record_view('com.example.town.tree', 'example', 'tree', '[]')`)
	require.NoError(t, err)
	require.Zero(t, count(t, app, `SELECT count(*) FROM example.tree`))
	_, err = ranking.ExpireLinks(t.Context(), app, ranking.LinkRule{Now: time.Now(), Sharers: 5, Grace: time.Hour}, 100)
	require.NoError(t, err)

	for _, sql := range []string{
		`DROP TABLE posts`, `ALTER TABLE streams ADD COLUMN x int`, `CREATE TABLE x (y int)`, `CREATE TEMPORARY TABLE x (y int)`,
		`TRUNCATE records`,
		`ALTER FUNCTION drop_partition(text) SECURITY INVOKER`, `UPDATE weir_migration SET version = 1`, `DELETE FROM river_migration`,
		`CREATE ROLE x`, `SELECT * FROM pg_authid`, `COPY records TO PROGRAM 'cat'`, `SET ROLE weir_owner`,
	} {
		_, err := app.Exec(t.Context(), sql)
		var refused *pgconn.PgError
		require.ErrorAs(t, err, &refused, sql)
		require.Equal(t, "42501", refused.Code, "%s: %v", sql, err)
	}
	_, err = owner.Exec(t.Context(), `CREATE ROLE stranger LOGIN`)
	require.Error(t, err, "the owner cannot create roles")
	execute(t, database, `CREATE ROLE stranger LOGIN PASSWORD 'secret of stranger'`)
	for _, sql := range []string{`SELECT * FROM posts`, `SELECT drop_partition('posts_20260101_00')`, `CREATE TABLE public.x (y int)`} {
		_, err := open(t, as(t, "stranger", database)).Exec(t.Context(), sql)
		require.ErrorContains(t, err, "permission denied", sql)
	}
}

// partitioned creates the partitions of posts and shares around a time, as soon as it can lock the
// tables.
func partitioned(t testing.TB, pool *pgxpool.Pool, at time.Time) {
	t.Helper()
	var err error
	eventually.True(t, func() bool {
		if err = schema.EnsurePostPartitions(t.Context(), pool, at, 24*time.Hour); err == nil {
			err = ranking.EnsureDays(t.Context(), pool, at, 7*24*time.Hour)
		}
		return !errors.Is(err, schema.ErrBusy)
	}, 10*time.Millisecond)
	require.NoError(t, err)
}
