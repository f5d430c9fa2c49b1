package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestTwoProcessesMigrate starts weir migrate twice while the test holds the lock of the migrations: both wait, one
// migrates, and both succeed. What they print was to be done, River's migrations too.
func TestTwoProcessesMigrate(t *testing.T) {
	t.Parallel()
	url := schematest.NewURL(t)
	pool, env := open(t, url), []string{"DATABASE_URL=" + url}
	execute(t, url, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
	plan := succeed(t, env, "migrate", "--dry-run")
	require.Contains(t, plan, "pending  river/0001_create_river_migration\n")
	require.Contains(t, plan, "pending  core/0001_jobs\n")
	require.Contains(t, plan, "nothing was changed")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace`))

	lock, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = lock.Exec(t.Context(), `SELECT pg_advisory_xact_lock(x'77656972'::int)`)
	require.NoError(t, err)
	both := []*process{start(t, env, "migrate"), start(t, env, "migrate")}
	eventually.True(t, func() bool {
		waiting, err := tryCount(pool, `SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = x'77656972'::int AND NOT granted`)
		return err == nil && waiting == 2
	}, 10*time.Millisecond)
	require.NoError(t, lock.Rollback(t.Context()))
	for _, p := range both {
		require.Zero(t, p.wait(t, patience), p.stderr.String())
		require.Equal(t, strings.Count(plan, "\n"), strings.Count(p.stdout.String(), "\n"))
		require.Contains(t, p.stdout.String(), "pending  core/0001_jobs\n")
		require.Contains(t, p.stdout.String(), "the database has this binary's schema\n")
	}
	done := succeed(t, env, "migrate", "--dry-run")
	require.NotContains(t, done, "pending  ")
	require.Contains(t, done, "would apply 0 of ")
}
