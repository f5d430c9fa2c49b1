package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// addJob adds a job with one attempt by SQL.
func addJob(t *testing.T, pool *pgxpool.Pool, kind, queue, args string) (id int64) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if err := tx.QueryRow(t.Context(), `INSERT INTO river_job (args, kind, max_attempts, queue) VALUES ($1, $2, 1, $3) RETURNING id`, args,
			kind, queue).Scan(&id); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), `SELECT pg_notify(current_schema() || '.river_insert', '{"queue":"' || $1 || '"}')`, queue)
		return err
	}))
	return id
}

// letter waits until the only dead letter of a stage meets a condition, and returns it.
func letter(t *testing.T, pool *pgxpool.Pool, stage, cond string) schema.StoredDeadLetter {
	t.Helper()
	var id int64
	eventually.True(t, func() bool {
		return pool.QueryRow(t.Context(), `SELECT id FROM dead_letters WHERE stage = $1 AND `+cond, stage).Scan(&id) == nil
	}, 20*time.Millisecond, cond)
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dead_letters WHERE stage = $1`, stage).Scan(&n))
	require.Equal(t, 1, n)
	found, err := schema.FindDeadLetter(t.Context(), pool, id, 1<<20)
	require.NoError(t, err)
	return found
}

// TestDiscardedJobIsADeadLetter shows that a discarded job is a dead letter, the same one each
// time, and that a retry has the job's arguments.
func TestDiscardedJobIsADeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `ALTER TABLE chains RENAME TO elsewhere`)
	working(t, pool)
	const args = `{"records": ["did:plc:a/app.bsky.feed.post/1"]}`
	first := addJob(t, pool, "read_posts", "process", args)
	l := letter(t, pool, "job", "count = 1")
	require.Equal(t, []any{"job", "retryable", "open", "read_posts", "process", args},
		[]any{l.Stage, l.Class, l.State, l.Kind, l.Queue, string(l.Raw)})
	require.Equal(t, first, *l.Job)
	require.Contains(t, l.Cause, `relation "chains" does not exist`)
	execute(t, pool, `UPDATE dead_letters SET cause = 'the first'`)
	second := addJob(t, pool, "read_posts", "process", args)
	l = letter(t, pool, "job", "count = 2")
	require.Equal(t, []any{"the first", second, "open"}, []any{l.Cause, *l.Job, l.State})
	require.Contains(t, l.LastCause, `relation "chains" does not exist`)
	require.True(t, l.LastSeen.After(l.FirstSeen))

	execute(t, pool, `ALTER TABLE elsewhere RENAME TO chains`)
	execute(t, pool, `SELECT retry_dead_letter($1)`, l.ID)
	l = letter(t, pool, "job", "state = 'retried'")
	require.Equal(t, []any{int64(2), "the first"}, []any{l.Count, l.Cause})
	require.Greater(t, *l.Job, second)
}

// TestJobRetriedInRiverUISettlesItsDeadLetter shows that the dead letter is settled when the job
// succeeds.
func TestJobRetriedInRiverUISettlesItsDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	registered(t, pool)
	execute(t, pool, `ALTER TABLE chains RENAME TO elsewhere`)
	client := working(t, pool)
	id := addJob(t, pool, "read_posts", "process", `{"records": ["did:plc:a/app.bsky.feed.post/1"]}`)
	letter(t, pool, "job", "count = 1")
	_, err := client.JobRetry(t.Context(), id)
	require.NoError(t, err)
	letter(t, pool, "job", "count = 2 AND state = 'open'")
	execute(t, pool, `ALTER TABLE elsewhere RENAME TO chains`)
	_, err = client.JobRetry(t.Context(), id)
	require.NoError(t, err)
	letter(t, pool, "job", "state = 'retried'")
}

// TestJobThatCancelsItselfIsADeadLetter shows that such a job is a dead letter at once. Its retry
// fails again without losing anything, and succeeds after the fix.
func TestJobThatCancelsItselfIsADeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool)
	execute(t, pool, `SELECT enqueue_backfill_all()`)
	l := letter(t, pool, "job", "count = 1")
	require.Equal(t, []any{"permanent", "request_backfill", "network"}, []any{l.Class, l.Kind, l.Queue})
	require.Contains(t, l.Cause, "the whole network is followed")
	execute(t, pool, `UPDATE dead_letters SET cause = 'the first'`)
	execute(t, pool, `SELECT retry_dead_letters('job')`)
	again := letter(t, pool, "job", "count = 2")
	require.Equal(t, []any{"the first", "open"}, []any{again.Cause, again.State})
	require.Contains(t, again.LastCause, "the whole network is followed")

	execute(t, pool, `INSERT INTO watches (target, kind) VALUES ($1, 'account')`, alice)
	execute(t, pool, `INSERT INTO watch_members SELECT id, target FROM watches ON CONFLICT DO NOTHING`)
	execute(t, pool, `SELECT retry_dead_letters()`)
	letter(t, pool, "job", "kind = 'request_backfill' AND state = 'retried' AND count = 2")
	require.Len(t, backfillsOf(t, pool, alice), 1)
}

// TestJobCancelledByAnOperatorIsNoDeadLetter shows that such a job leaves none, because the
// operator knows about it.
func TestJobCancelledByAnOperatorIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	client, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	inserted, err := client.Insert(t.Context(), jobs.CloseGap{Gap: 1}, nil)
	require.NoError(t, err)
	_, err = client.JobCancel(t.Context(), inserted.Job.ID)
	require.NoError(t, err)
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM dead_letters`).Scan(&n))
	require.Zero(t, n)
	// A job that is lost, or discarded by hand, has no cause.
	execute(t, pool, `INSERT INTO river_job (args, kind, max_attempts, state) VALUES ('{}', 'x', 1, 'running')`)
	execute(t, pool, `UPDATE river_job SET state = 'discarded', finalized_at = now() WHERE kind = 'x'`)
	require.Equal(t, "it gave no reason", letter(t, pool, "job", "kind = 'x'").Cause)
}

// TestRetryOfAJobWithoutAWorker shows that such a retry fails again and does not delay other
// retries.
func TestRetryOfAJobWithoutAWorker(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool) // without retention: no worker processes expire
	for i, job := range [][2]string{
		{"of_another_version", `{}`}, {"expire", `{}`}, {"read_posts", `{"records": "not a list"}`}, {"read_posts", `{"records": []}`},
	} {
		execute(t, pool, `
			INSERT INTO dead_letters (key, stage, kind, cause, raw, raw_bytes, first_seen, last_seen)
			VALUES ($1, 'job', $2, 'first', $3, 1, now(), now())`,
			fmt.Appendf(nil, "%d", i), job[0], []byte(job[1]))
	}
	execute(t, pool, `SELECT retry_dead_letters()`)
	causes := func(state string) (all []string) {
		rows, err := pool.Query(t.Context(), `SELECT cause || ': ' || last_cause FROM dead_letters WHERE state = $1 ORDER BY id`, state)
		require.NoError(t, err)
		all, err = pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return all
	}
	eventually.True(t, func() bool { return len(causes("retried")) == 1 && len(causes("open")) == 3 }, 20*time.Millisecond)
	failed := causes("open")
	require.Contains(t, failed[0], `first: no worker processes jobs of kind "of_another_version"`)
	require.Contains(t, failed[1], `no worker processes jobs of kind "expire"`)
	require.Contains(t, failed[2], "read the arguments of a read_posts job")
}

// TestRetryPromotesAnUnfinishedJob shows that a retry promotes an unfinished job with the same
// effect. The end of that job settles the dead letter.
func TestRetryPromotesAnUnfinishedJob(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	client := working(t, pool) // its backfill queue is paused
	fromGo(t, pool, client, time.Now(), jobs.PriorityColdStart)
	execute(t, pool, `INSERT INTO dead_letters (key, stage, kind, cause, raw, raw_bytes, first_seen, last_seen)
		VALUES ('\x00', 'job', 'backfill_account', 'first', convert_to('{"did": "`+alice+
		`", "since": "2026-01-01T00:00:00Z", "not_before": "2026-01-01T00:00:00Z"}', 'UTF8'), 1, now(), now())`)
	for range 2 { // a second request changes nothing
		execute(t, pool, `SELECT retry_dead_letters(), retry_dead_letter((SELECT id FROM dead_letters))`)
		letter(t, pool, "job", "job IS NOT NULL AND state = 'retrying'")
		eventually.True(t, func() bool {
			var left int
			require.NoError(t, pool.QueryRow(t.Context(), `
				SELECT count(*) FROM river_job WHERE kind = 'retry_dead_letters' AND state <> 'completed'`).Scan(&left))
			return left == 0
		}, 20*time.Millisecond)
		found := backfillsOf(t, pool, alice)
		require.Len(t, found, 1)
		require.Equal(t, jobs.PriorityManual, found[0].Priority)
		require.Equal(t, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), found[0].Since.UTC())
	}
	execute(t, pool, `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE kind = 'backfill_account'`)
	letter(t, pool, "job", "state = 'retried'")
}

// TestInterruptedRetryContinues shows that requested dead letters stay requested, and that the job
// has the error.
func TestInterruptedRetryContinues(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t,
		(&schema.DeadLetter{Stage: schema.StageDecode, Cause: "first", Raw: []byte("{")}).Store(t.Context(), pool, "s"))
	execute(t, pool, `SELECT retry_dead_letters()`)
	w := &RetryDeadLetters{Shared: Shared{Pool: pool, Logger: slog.New(slog.DiscardHandler), JobTimeout: 2 * time.Minute},
		events: func(context.Context, []schema.StoredDeadLetter) error { return errors.New("the database is away") }}
	require.ErrorContains(t, w.Work(t.Context(), &river.Job[jobs.RetryDeadLetters]{}), "the database is away")
	require.Equal(t, int64(1), letter(t, pool, "decode", "state = 'retrying'").Count)
	w.JobTimeout = 0
	var snoozed *river.JobSnoozeError
	require.ErrorAs(t, w.Work(t.Context(), &river.Job[jobs.RetryDeadLetters]{}), &snoozed,
		"the job must snooze, so that others get their turn")
}

// TestJobWhoseRowsAreRefusedEndsAtOnce covers every registered worker.
func TestJobWhoseRowsAreRefusedEndsAtOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO watches (target, kind) VALUES ($1, 'account')`, alice)
	execute(t, pool, `INSERT INTO watch_members SELECT id, target FROM watches ON CONFLICT DO NOTHING`)
	execute(t, pool, `ALTER TABLE gap_backfills ADD CONSTRAINT strict CHECK (did = '')`)
	execute(t, pool, `DELETE FROM river_job`)
	execute(t, pool,
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 h', now(), 'too old', now())`)
	working(t, pool)
	l := letter(t, pool, "job", "kind = 'close_gap'")
	require.Equal(t, schema.ClassPermanent, l.Class)
	require.Contains(t, l.Cause, `"strict"`)
}

// TestWaitingEventsOccupyOneWorker shows that the job of the next minute is not added before the
// current one ends, however long the retry takes. A manual request adds a job anyway.
func TestWaitingEventsOccupyOneWorker(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	queue, err := Queue(pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	jobsOf := func() (n int) {
		t.Helper()
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job WHERE kind = 'retry_dead_letters'`).Scan(&n))
		return n
	}
	for range 3 {
		_, err = queue.Insert(t.Context(), jobs.RetryDeadLetters{}, nil)
		require.NoError(t, err)
	}
	require.Equal(t, 1, jobsOf())
	l := schema.DeadLetter{Stage: schema.StageDecode, Raw: []byte("{}")}
	require.NoError(t, l.Store(t.Context(), pool, "s"))
	_, err = pool.Exec(t.Context(), `SELECT retry_dead_letters()`)
	require.NoError(t, err)
	require.Equal(t, 2, jobsOf())
}
