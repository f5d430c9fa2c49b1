package workers

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/schema/schematest"
)

// TestJobOfADeadProcessIsDone though it was killed in its last try: River's
// rescuer takes it up, and no dead letter comes of it.
func TestJobOfADeadProcessIsDone(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
INSERT INTO river_job (kind, args, queue, max_attempts, attempt, state, attempted_at, attempted_by)
SELECT kind, args, queue, 5, 5, 'running', now() - interval '1 hour', ARRAY['dead']
FROM (VALUES ('audit', '{}'::jsonb, 'network'), ('close_gap', '{"gap": 7}', 'network'), ('process_posts', '{"posts": []}', 'process')) AS j (kind, args, queue)`)
	working(t, pool)
	require.Eventually(t, func() bool {
		var n int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE state = 'completed' AND 'dead' = ANY (attempted_by) AND attempt = 5 AND cardinality(errors) IS NULL`).Scan(&n))
		return n == 3
	}, 30*time.Second, 5*time.Millisecond, "the rescued jobs are done")
	var letters int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dead_letters`).Scan(&letters))
	require.Zero(t, letters)
}

// TestRiverRebuildsIndexesThatExist, and every one of its own: at midnight it
// warns about each that is missing.
func TestRiverRebuildsIndexesThatExist(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	var there []string
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT array_agg(indexrelid::regclass::text) FROM pg_index WHERE indrelid = 'river_job'::regclass`).Scan(&there))
	require.ElementsMatch(t, there, riverIndexes())
}

// TestStopDoesNotWaitForOthers: a job that waits to call an unreachable service
// again ends at once when the process stops, keeps its tries, and its watch has no
// problem.
func TestStopDoesNotWaitForOthers(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	api, err := bluesky.New(bluesky.Config{AppView: "http://127.0.0.1:1", Directory: "http://127.0.0.1:1", Logger: slog.New(slog.DiscardHandler),
		Retries: []time.Duration{time.Hour}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	client, err := New(Config{Pool: pool, Projections: registered(t, pool), ID: t.Name(), Bluesky: api, Logger: slog.New(slog.DiscardHandler), Stopping: ctx.Done()})
	require.NoError(t, err)
	require.NoError(t, client.Start(ctx))
	execute(t, pool, `INSERT INTO watches (target) VALUES ('alice.example')`)
	count := func(sql string) (n int) {
		require.NoError(t, pool.QueryRow(t.Context(), sql).Scan(&n))
		return n
	}
	require.Eventually(t, func() bool {
		return count(`SELECT count(*) FROM river_job WHERE args ->> 'watch' = '1' AND state = 'running'`) == 1
	}, time.Minute, 5*time.Millisecond)
	cancel()
	select {
	case <-client.Stopped():
	case <-time.After(15 * time.Second): // River itself gives up after 20 s
		require.Fail(t, "the stop waits for the call")
	}
	require.Equal(t, 1, count(`SELECT count(*) FROM river_job WHERE args ->> 'watch' = '1' AND state = 'available' AND attempt = 0 AND errors IS NULL`))
	require.Zero(t, count(`SELECT count(*) FROM watches WHERE problem <> ''`))
}
