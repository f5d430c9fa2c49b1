package schema_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestOneFunctionAddsJobs shows that everything that adds a job in SQL uses enqueue_job, which also
// wakes a worker.
func TestOneFunctionAddsJobs(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	rows, err := pool.Query(t.Context(), `SELECT proname::text FROM pg_proc WHERE prosrc ~* 'insert\s+into\s+river_job'`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.Equal(t, []string{"enqueue_job"}, names)

	conn, err := pool.Acquire(t.Context())
	require.NoError(t, err)
	defer conn.Release()
	_, err = conn.Exec(t.Context(), `LISTEN "public.river_insert"`)
	require.NoError(t, err)
	const gap = `
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '2 hours', now(), 'a test', now())`
	asks := map[string]string{
		`INSERT INTO watches (target) VALUES ('alice.example')`: `sync_follows network {"watch": 1}`,
		gap: `close_gap network {"gap": 1}`,
		`SELECT enqueue_job('expire', 'maintenance', '{}')`: `expire maintenance {}`,
	}
	for sql, want := range asks {
		require.Equal(t, want, added(t, conn, sql))
	}
	_, err = conn.Exec(t.Context(), `DELETE FROM river_job`)
	require.NoError(t, err)
	require.NoError(t, schema.SyncWatches(t.Context(), conn))
	require.Equal(t, `sync_follows network {"watch": 0}`, added(t, conn, `SELECT`))
}

// added returns the job that a statement adds, after its notification has arrived.
func added(t *testing.T, conn *pgxpool.Conn, sql string) (job string) {
	t.Helper()
	_, err := conn.Exec(t.Context(), sql)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	notified, err := conn.Conn().WaitForNotification(ctx)
	require.NoError(t, err)
	require.NoError(t,
		conn.QueryRow(t.Context(), `SELECT kind || ' ' || queue || ' ' || args::text FROM river_job ORDER BY id DESC LIMIT 1`).Scan(&job))
	require.Contains(t, job, " "+strings.Split(notified.Payload, `"`)[3]+" ")
	return job
}

// TestJobsOfTheLivingStayRunning shows that only jobs that have been running for longer are
// released.
func TestJobsOfTheLivingStayRunning(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
INSERT INTO river_job (kind, queue, args, max_attempts, state, attempted_at)
SELECT kind, 'process', '{}', 5, 'running', clock_timestamp() - age
FROM (VALUES ('a', interval '2 minutes'), ('a', interval '1 second'), ('b', interval '2 minutes')) AS j (kind, age)`)
	running := func() int { return ask[int](t, pool, `SELECT count(*) FROM river_job WHERE state = 'running'`) }
	require.NoError(t, schema.ReleaseJobs(t.Context(), pool, time.Minute, "a"))
	require.Equal(t, 2, running())
	require.NoError(t, schema.ReleaseJobs(t.Context(), pool, 0, "a"))
	require.Equal(t, 1, running())
}
