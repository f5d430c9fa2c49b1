package schema_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/schema/schematest"
)

// ask reads one value.
func ask[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	v, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return v
}

func do(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// TestClockSetBackFreesTheLease: what was renewed in the future is of a clock
// that has been set back since.
func TestClockSetBackFreesTheLease(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	old := take(t, pool, "first")
	do(t, pool, `UPDATE streams SET lease_renewed_at = lease_renewed_at + interval '1 hour', lease_expires_at = lease_expires_at + interval '1 hour'`)
	statuses, err := schema.StreamStatuses(t.Context(), pool)
	require.NoError(t, err)
	require.False(t, statuses[0].Leased)
	take(t, pool, "second")
	require.ErrorIs(t, renew(t, pool, old), schema.ErrFenced)
}

// TestCaughtUpIsNeverInTheFuture: it would hide a gap.
func TestCaughtUpIsNeverInTheFuture(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	beat := func(at time.Time) *time.Time {
		_, err := lease.Renew(t.Context(), pool, schema.Beat{State: schema.StateQuiet, CaughtUp: at})
		require.NoError(t, err)
		return ask[*time.Time](t, pool, `SELECT caught_up_at FROM streams`)
	}
	now := time.Now().Truncate(time.Microsecond)
	require.Nil(t, beat(time.Time{}))
	require.Nil(t, beat(now.Add(time.Hour)))
	require.True(t, beat(now.Add(-time.Minute)).Equal(now.Add(-time.Minute)))
	require.True(t, beat(now.Add(-time.Hour)).Equal(now.Add(-time.Minute)), "it moves forward")
	do(t, pool, `UPDATE streams SET caught_up_at = $1`, now.Add(time.Hour)) // by a clock that was set back since
	require.True(t, beat(now.Add(-time.Hour)).Equal(now.Add(-time.Hour)))
}

// TestClockSetBackKeepsNoCallWaiting: neither for the turns that were reserved,
// nor for the slots of those who died with them.
func TestClockSetBackKeepsNoCallWaiting(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	takeSlot := func(holder string) schema.CallSlot {
		slot, err := schema.TakeCallSlot(t.Context(), pool, holder, 2, 100*time.Millisecond, time.Minute)
		require.NoError(t, err)
		return slot
	}
	takeSlot("dead 1")
	do(t, pool, `UPDATE call_clock SET next_at = next_at + interval '1 hour'`)
	first := takeSlot("dead 2")
	require.NotNil(t, first.Slot)
	require.Less(t, first.Wait, 5*time.Second)
	do(t, pool, `UPDATE call_slots SET expires_at = expires_at + interval '1 hour'`)
	require.Nil(t, takeSlot("alive").Slot, "both are held")
	require.True(t, ask[bool](t, pool, `SELECT max(expires_at) <= clock_timestamp() + interval '1 minute' FROM call_slots`))
}

const addJob = `INSERT INTO river_job (kind, args, max_attempts, state, scheduled_at, attempted_at, attempt, errors)
VALUES ('process_posts', '{}', 25, $1::river_job_state, now() + $2::interval, now() + $2::interval, 1, $3::jsonb[]) RETURNING id`

// TestJobsAreDatedByTheDatabase: the clock of the process that adds or ends a job
// may be wrong.
func TestJobsAreDatedByTheDatabase(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, wrong := range []time.Duration{72 * time.Hour, -72 * time.Hour} {
		id := ask[int64](t, pool, addJob, "available", wrong, nil)
		require.True(t, ask[bool](t, pool, `SELECT scheduled_at <= now() FROM river_job WHERE id = $1`, id))
		for failures, want := range []time.Duration{1: time.Second, 2: 16 * time.Second, 3: 81 * time.Second} {
			if failures == 0 {
				continue
			}
			do(t, pool, `UPDATE river_job SET state = 'running' WHERE id = $1`, id)
			wait := ask[time.Duration](t, pool, `UPDATE river_job SET state = 'retryable', errors = errors || '{}'::jsonb, scheduled_at = now() + $2::interval
				WHERE id = $1 RETURNING scheduled_at - now()`, id, wrong)
			require.InDelta(t, want.Seconds(), wait.Seconds(), want.Seconds()/10+0.001)
		}
		do(t, pool, `UPDATE river_job SET state = 'running' WHERE id = $1`, id)
		require.LessOrEqual(t, ask[time.Duration](t, pool, `UPDATE river_job SET state = 'available', scheduled_at = now() + $2::interval
			WHERE id = $1 RETURNING scheduled_at - now()`, id, wrong), 5*time.Second)
	}
}

// TestClockSetBackKeepsNothingWaiting: jobs, and the leader of the workers.
func TestClockSetBackKeepsNothingWaiting(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	due := func() int {
		return ask[int](t, pool, `SELECT count(*) FROM river_job WHERE CASE state WHEN 'running' THEN attempted_at ELSE scheduled_at END <= clock_timestamp() + interval '2 seconds'`)
	}
	mend := func(retries bool) int {
		mended, err := schema.MendTimes(t.Context(), pool, retries)
		require.NoError(t, err)
		return mended
	}
	do(t, pool, `INSERT INTO river_queue (name, updated_at) VALUES ('default', now())`) // as whoever serves it does
	ids := []int64{}
	for _, state := range []string{"available", "retryable", "running"} {
		ids = append(ids, ask[int64](t, pool, addJob, state, time.Duration(0), []string{"{}"}))
	}
	ids = append(ids, ask[int64](t, pool, addJob, "scheduled", 24*time.Hour, nil))
	require.Zero(t, mend(true))
	do(t, pool, `UPDATE river_job SET scheduled_at = scheduled_at + interval '1 hour', attempted_at = attempted_at + interval '1 hour' WHERE id = ANY ($1)`, ids)
	do(t, pool, `INSERT INTO river_leader (elected_at, expires_at, leader_id) VALUES (now(), now() + interval '1 hour', 'dead')`)
	require.Zero(t, due())
	require.Equal(t, 4, mend(false), "all but the one to be tried again")
	require.Equal(t, 1, due(), "the running one")
	require.Equal(t, 1, mend(true))
	require.Equal(t, 2, due(), "the one to be tried again too")
	require.Equal(t, 1, ask[int](t, pool, `SELECT count(*) FROM river_job WHERE scheduled_at > clock_timestamp() + interval '5 seconds'`), "the scheduled one")
	require.True(t, ask[bool](t, pool, `SELECT max(scheduled_at) <= clock_timestamp() + interval '1 day' FROM river_job`))
	require.Zero(t, ask[int](t, pool, `SELECT count(*) FROM river_leader`))
	require.Zero(t, mend(true))
}

// TestAgreedTimeIsTheEarliest of three clocks.
func TestAgreedTimeIsTheEarliest(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Now().Truncate(time.Microsecond)
	agreed := func(at time.Time) time.Time {
		agreed, err := schema.AgreedTime(t.Context(), pool, at)
		require.NoError(t, err)
		return agreed
	}
	require.Less(t, agreed(now.AddDate(2, 0, 0)).Sub(now), time.Hour, "the database's")
	require.True(t, agreed(now.Add(-time.Hour)).Equal(now.Add(-time.Hour)), "the process's")
	take(t, pool, "me")
	require.True(t, agreed(now.Add(-time.Hour)).Equal(now.Add(-time.Hour)), "no event has come yet")
	do(t, pool, `UPDATE streams SET last_event_at = $1`, now.Add(-2*time.Hour))
	require.True(t, agreed(now).Equal(now.Add(-2*time.Hour)), "the server's")
}

// TestLatestTimeIsTheLaterOne of a process's and the database's.
func TestLatestTimeIsTheLaterOne(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Now().Truncate(time.Microsecond)
	latest := func(at time.Time) time.Time {
		latest, err := schema.LatestTime(t.Context(), pool, at)
		require.NoError(t, err)
		return latest
	}
	require.False(t, latest(now.Add(-time.Hour)).Before(now), "the database's")
	require.True(t, latest(now.AddDate(2, 0, 0)).Equal(now.AddDate(2, 0, 0)), "the process's")
}
