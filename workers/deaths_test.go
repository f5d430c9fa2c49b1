package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
