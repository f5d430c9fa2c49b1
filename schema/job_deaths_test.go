package schema_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema/schematest"
)

// attempts begins the next attempt of a job, as River does.
const attempts = `UPDATE river_job SET state = 'running', attempt = attempt + 1, attempted_at = now() WHERE id = $1`

// dies is what River's rescuer does with the job of a process that died.
const dies = `
UPDATE river_job
SET errors       = array_append(errors, jsonb_build_object('at', now(), 'attempt', attempt, 'error', 'Stuck job rescued by JobRescuer', 'trace', '')),
    finalized_at = CASE WHEN attempt >= max_attempts THEN now() END,
    scheduled_at = now() + interval '1 hour',
    metadata     = metadata || jsonb_build_object('river:rescue_count', coalesce((metadata ->> 'river:rescue_count')::int, 0) + 1),
    state        = CASE WHEN attempt >= max_attempts THEN 'discarded' ELSE 'retryable' END::river_job_state
WHERE id = $1`

// fails is what River does with a job that returns an error.
const fails = `
UPDATE river_job
SET errors       = array_append(errors, jsonb_build_object('at', now(), 'attempt', attempt, 'error', 'a bug', 'trace', '')),
    finalized_at = CASE WHEN attempt >= max_attempts THEN now() END,
    scheduled_at = now() + interval '1 second',
    state        = CASE WHEN attempt >= max_attempts THEN 'discarded' ELSE 'retryable' END::river_job_state
WHERE id = $1`

// outcome is what became of a job and its dead letter.
type outcome struct {
	State    string
	Attempt  int
	Errors   int
	Letters  int
	Due      bool
	Finished bool
}

func outcomeOf(t *testing.T, pool *pgxpool.Pool, job int64) outcome {
	t.Helper()
	var o outcome
	require.NoError(t, pool.QueryRow(t.Context(), `
SELECT state::text, attempt, coalesce(cardinality(errors), 0), (SELECT count(*) FROM dead_letters WHERE state = 'open' AND dead_letters.job = j.id),
       scheduled_at <= now(), finalized_at IS NOT NULL
FROM river_job AS j WHERE id = $1`, job).Scan(&o.State, &o.Attempt, &o.Errors, &o.Letters, &o.Due, &o.Finished))
	return o
}

func jobOf(t *testing.T, pool *pgxpool.Pool, kind string, tries int) int64 {
	t.Helper()
	return ask[int64](t, pool, `INSERT INTO river_job (kind, args, queue, max_attempts) VALUES ($1, '{}', 'network', $2) RETURNING id`, kind, tries)
}

// TestDeathIsNoFailedTry: a job that died with its process is due at once, with
// as many tries as before, and is done at last. One that dies each time is a dead
// letter that names its deaths.
func TestDeathIsNoFailedTry(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	killed := jobOf(t, pool, "close_gap", 2)
	for round := range 50 {
		do(t, pool, attempts, killed)
		do(t, pool, dies, killed)
		require.Equal(t, outcome{State: "available", Due: true}, outcomeOf(t, pool, killed), "round %d", round)
		if round%15 == 14 { // its turn ended: it goes on behind others
			do(t, pool, attempts, killed)
			do(t, pool, `UPDATE river_job SET state = 'scheduled', attempt = attempt - 1, scheduled_at = now() + interval '1 minute' WHERE id = $1`, killed)
			do(t, pool, `UPDATE river_job SET state = 'available', scheduled_at = now() WHERE id = $1`, killed)
		}
	}
	do(t, pool, attempts, killed)
	do(t, pool, `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE id = $1`, killed)
	require.Equal(t, outcome{State: "completed", Attempt: 1, Due: true, Finished: true}, outcomeOf(t, pool, killed))

	killer := jobOf(t, pool, "close_gap", 25)
	for range 19 {
		do(t, pool, attempts, killer)
		do(t, pool, dies, killer)
	}
	require.Equal(t, outcome{State: "available", Due: true}, outcomeOf(t, pool, killer))
	do(t, pool, attempts, killer)
	do(t, pool, dies, killer)
	o := outcomeOf(t, pool, killer)
	require.Equal(t, "discarded", o.State)
	require.Equal(t, 1, o.Letters)
	require.True(t, o.Finished)
	require.Contains(t, ask[string](t, pool, `SELECT cause FROM dead_letters`), "the process died, or the job never returned, 20 times in a row")
}

// TestErrorsUseUpTheTries, deaths between them or not.
func TestErrorsUseUpTheTries(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	job := jobOf(t, pool, "close_gap", 25)
	for try := range 25 {
		require.Equal(t, 0, outcomeOf(t, pool, job).Letters, "try %d", try)
		do(t, pool, attempts, job)
		do(t, pool, dies, job)
		do(t, pool, attempts, job)
		do(t, pool, fails, job)
	}
	o := outcomeOf(t, pool, job)
	require.Equal(t, []any{"discarded", 25, 25, 1}, []any{o.State, o.Attempt, o.Errors, o.Letters})
	require.Equal(t, "a bug", ask[string](t, pool, `SELECT cause FROM dead_letters`))
}

// TestPeriodicJobOutOfTriesIsNoDeadLetter: the next run does the same. A replay of
// an earlier dead letter that fails is open again.
func TestPeriodicJobOutOfTriesIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, kind := range []string{"expire", "check_alerts", "audit", "sync_follows"} {
		job := jobOf(t, pool, kind, 1)
		do(t, pool, attempts, job)
		do(t, pool, fails, job)
		require.Equal(t, "discarded", outcomeOf(t, pool, job).State)
		require.Zero(t, ask[int](t, pool, `SELECT count(*) FROM dead_letters`), kind)
	}
	job := jobOf(t, pool, "expire", 1)
	do(t, pool, `INSERT INTO dead_letters (key, stage, kind, job, cause, raw, raw_bytes, first_seen, last_seen, state) VALUES ('k', 'job', 'expire', $1, 'x', '{}', 2, now(), now(), 'replaying')`, job)
	do(t, pool, attempts, job)
	do(t, pool, fails, job)
	require.Equal(t, 1, outcomeOf(t, pool, job).Letters)
}

// TestRemovedWatchLeavesNoDeadLetter open, whoever removes it.
func TestRemovedWatchLeavesNoDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `INSERT INTO watches (target) VALUES ('gone.example'), ('kept.example')`)
	do(t, pool, `UPDATE river_job SET state = 'running' WHERE kind = 'sync_follows'`)
	do(t, pool, `UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE kind = 'sync_follows'`)
	require.Equal(t, 2, ask[int](t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'open'`))
	do(t, pool, `DELETE FROM watches WHERE target = 'gone.example'`)
	require.Equal(t, `{"watch": 2}`, ask[string](t, pool, `SELECT string_agg(convert_from(raw, 'UTF8'), ' ') FROM dead_letters WHERE state = 'open'`))
}
