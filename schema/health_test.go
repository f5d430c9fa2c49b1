package schema_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

var queues = []string{"alerts", "backfill", "maintenance", "network", "process"}

// TestCountingCostsTheSameForDeepQueues shows that the frequent queries read no more jobs than they
// count. This holds whether the planner's statistics are correct, missing or outdated.
func TestCountingCostsTheSameForDeepQueues(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const deep = 120_000
	// backlog inserts a deep queue, and one with many retries, behind completed jobs.
	const backlog = `
INSERT INTO river_job (kind, args, max_attempts, priority, queue, state, scheduled_at, finalized_at, errors)
SELECT 'process_posts', '{}', 25, 1 + n % 4, s.queue, s.state::river_job_state, s.at, s.ended, s.errors
FROM (VALUES ('process', 'completed', now() - interval '1 hour', now(), NULL), ('process', 'available', now() - interval '1 hour', NULL,
    NULL),
             ('backfill', 'retryable', now() + interval '10 minutes', NULL, array_fill('{}'::jsonb, ARRAY[5]))) AS s (queue, state, at,
                 ended, errors)
CROSS JOIN generate_series(1, $1::int) AS n`
	for name, known := range map[string]struct{ before, after string }{
		"no statistics":  {``, ``},
		"statistics":     {``, `ANALYZE river_job`},
		"old statistics": {`ANALYZE river_job`, ``},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := schematest.New(t)
			do(t, pool, `ALTER TABLE river_job DISABLE TRIGGER USER, SET (autovacuum_enabled = off)`)
			do(t, pool, `INSERT INTO river_queue (name, updated_at) SELECT unnest($1::text[]), now()`, queues)
			do(t, pool, backlog, 100)
			do(t, pool, known.before)
			do(t, pool, backlog, deep)
			do(t, pool, known.after)

			oldest := ask[time.Time](t, pool, `SELECT min(scheduled_at) FROM river_job WHERE queue = 'process' AND state = 'available'`)
			read := jobsRead(t, pool, func(tx pgx.Tx) {
				found, err := schema.Queues(t.Context(), tx, queues)
				require.NoError(t, err)
				require.Len(t, found, len(queues))
				for _, q := range found {
					switch q.Name {
					case "process":
						require.EqualValues(t, schema.CountedJobs+1, q.Available)
						require.True(t, oldest.Equal(*q.Oldest), "%s, not %s", q.Oldest, oldest)
					case "backfill":
						require.EqualValues(t, schema.CountedJobs+1, q.Retryable)
					default:
						require.Nil(t, q.Oldest)
					}
				}
			})
			require.LessOrEqual(t, read, 2*(schema.CountedJobs+1)+4*len(queues))
			for queue, want := range map[string]int{"process": 1001, "alerts": 0} {
				require.LessOrEqual(t, jobsRead(t, pool, func(tx pgx.Tx) {
					depth, err := schema.DeepestQueue(t.Context(), tx, []string{queue}, 1001)
					require.NoError(t, err)
					require.Equal(t, want, depth)
				}), 1001)
			}
		})
	}
}

// jobsRead counts the entries of river_job and of its indexes that a query reads.
func jobsRead(t *testing.T, pool interface {
	Begin(context.Context) (pgx.Tx, error)
}, ask func(pgx.Tx)) (read int) {
	t.Helper()
	const sql = `
SELECT pg_stat_get_xact_tuples_returned('river_job'::regclass)
       + (SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid)) FROM pg_index WHERE indrelid = 'river_job'::regclass)::int`
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context()) // read only
	var before int
	require.NoError(t, tx.QueryRow(t.Context(), sql).Scan(&before))
	ask(tx)
	require.NoError(t, tx.QueryRow(t.Context(), sql).Scan(&read))
	return read - before
}

// TestCountsCanPassTheLargestLimit shows that counts can exceed the largest WEIR_QUEUE_LIMIT.
func TestCountsCanPassTheLargestLimit(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `ALTER TABLE river_job DISABLE TRIGGER USER`)
	const add = `
		INSERT INTO river_job (kind, args, max_attempts, queue, state) SELECT 'process_posts', '{}', 25, 'process', 'available'
		FROM generate_series(1, $1::int)`
	for step, want := range []struct{ add, want int64 }{
		{schema.CountedJobs, schema.CountedJobs}, {1, schema.CountedJobs + 1}, {5, schema.CountedJobs + 1},
	} {
		do(t, pool, add, want.add)
		found, err := schema.Queues(t.Context(), pool, []string{"process"})
		require.NoError(t, err)
		require.Equal(t, want.want, found[0].Available, "step %d", step)
	}
}
