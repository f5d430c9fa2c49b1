package schema_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
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

// TestClockSetBackFreesTheLease covers a lease renewed in the future, before the clock was set
// back.
func TestClockSetBackFreesTheLease(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	old := take(t, pool, "first")
	do(t, pool,
		`UPDATE streams SET lease_renewed_at = lease_renewed_at + interval '1 hour', lease_expires_at = lease_expires_at + interval '1 hour'`)
	statuses, err := schema.StreamStatuses(t.Context(), pool)
	require.NoError(t, err)
	require.False(t, statuses[0].Leased)
	take(t, pool, "second")
	require.ErrorIs(t, renew(t, pool, old), schema.ErrFenced)
}

// TestCaughtUpIsNeverInTheFuture prevents a future time, which would hide a gap.
func TestCaughtUpIsNeverInTheFuture(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	beat := func(at time.Time) *time.Time {
		_, err := lease.Renew(t.Context(), pool, schema.Heartbeat{State: schema.StateQuiet, CaughtUp: at})
		require.NoError(t, err)
		return ask[*time.Time](t, pool, `SELECT caught_up_at FROM streams`)
	}
	now := time.Now().Truncate(time.Microsecond)
	require.Nil(t, beat(time.Time{}))
	require.Nil(t, beat(now.Add(time.Hour)))
	require.True(t, beat(now.Add(-time.Minute)).Equal(now.Add(-time.Minute)))
	require.True(t, beat(now.Add(-time.Hour)).Equal(now.Add(-time.Minute)), "the time must move forward")
	do(t, pool, `UPDATE streams SET caught_up_at = $1`, now.Add(time.Hour)) // as if written before the clock was set back
	require.True(t, beat(now.Add(-time.Hour)).Equal(now.Add(-time.Hour)))
}

// TestClockSetBackKeepsNoCallWaiting covers the turns that were reserved, and the slots of
// processes that died.
func TestClockSetBackKeepsNoCallWaiting(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	takeSlot := func(holder string) schema.APISlot {
		slot, err := schema.TakeAPISlot(t.Context(), pool, holder, 2, 100*time.Millisecond, time.Minute)
		require.NoError(t, err)
		return slot
	}
	takeSlot("dead 1")
	do(t, pool, `UPDATE api_schedule SET next_at = next_at + interval '1 hour'`)
	first := takeSlot("dead 2")
	require.NotNil(t, first.Slot)
	require.LessOrEqual(t, first.Wait, 2*200*time.Millisecond+time.Second, "as far as two slots can be reserved ahead")
	do(t, pool, `UPDATE api_slots SET expires_at = expires_at + interval '1 hour'`)
	require.Nil(t, takeSlot("alive").Slot, "both slots are held")
	require.True(t, ask[bool](t, pool, `SELECT max(expires_at) <= clock_timestamp() + interval '1 minute' FROM api_slots`))
}

// TestJobsAreRescheduledAfterTheClockIsSetBack shows that a waiting job waits at most its original
// delay, and that a due job is due.
func TestJobsAreRescheduledAfterTheClockIsSetBack(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	repair := func(back time.Duration) int {
		repaired, err := schema.RepairJobSchedule(t.Context(), pool, back)
		require.NoError(t, err)
		return repaired
	}
	const add = `
INSERT INTO river_job (kind, args, max_attempts, state, created_at, attempted_at, scheduled_at, finalized_at)
SELECT kind, '{}', 25, state::river_job_state, now() + created, now() + attempted, now() + scheduled,
    CASE state WHEN 'completed' THEN now() END
FROM (VALUES ('due',      'available', interval '-1 minute',  NULL::interval,        interval '-1 minute'),
             ('rescued',  'running',   interval '-1 day',     interval '-1 minute',  interval '-1 minute'),
             ('retried',  'retryable', interval '-1 day',     interval '-1 minute',  interval '10 minutes'),
             ('snoozed',  'scheduled', interval '-1 day',     interval '-1 minute',  interval '10 minutes'),
             ('planned',  'scheduled', interval '-1 minute',  NULL,                  interval '10 minutes'),
             ('far',      'scheduled', interval '-2 hours',   interval '-2 hours',   interval '1 hour'),
             ('done',     'completed', interval '-1 minute',  interval '-1 minute',  interval '-1 minute')) AS j (kind, state, created,
                 attempted, scheduled)`
	do(t, pool, add)
	require.Zero(t, repair(0), "the clock is right")
	do(t, pool, `
		UPDATE river_job SET created_at = created_at + interval '1 hour', attempted_at = attempted_at + interval '1 hour',
		    scheduled_at = scheduled_at + interval '1 hour'`)
	require.Equal(t, 5, repair(0))
	require.Zero(t, repair(0), "a second repair must change nothing")
	waits := func(kind string) time.Duration {
		return ask[time.Duration](t, pool, `
			SELECT date_trunc('minute', CASE state WHEN 'running' THEN attempted_at ELSE scheduled_at END - now() + interval '30 seconds')
			FROM river_job WHERE kind = $1`, kind)
	}
	for kind, want := range map[string]time.Duration{"due": 0, "rescued": 0, "retried": 11 * time.Minute, "snoozed": 11 * time.Minute,
		"planned": 11 * time.Minute, "far": 2 * time.Hour} { // two of its three hours have passed
		require.Equal(t, want, waits(kind), kind)
	}

	// The clock was a day ahead. Two jobs began before that and failed meanwhile; another one was
	// never attempted.
	do(t, pool, `UPDATE river_job SET scheduled_at = now() + interval '1 day 5 minutes' WHERE kind IN ('retried', 'snoozed', 'planned')`)
	require.Zero(t, repair(0))
	require.Equal(t, 2, repair(24*time.Hour))
	require.Zero(t, repair(24*time.Hour), "a second repair must change nothing")
	for kind, want := range map[string]time.Duration{
		"retried": 5 * time.Minute, "snoozed": 5 * time.Minute, "planned": 24*time.Hour + 5*time.Minute,
	} {
		require.Equal(t, want, waits(kind), kind)
	}

	// The job was due for an immediate retry, and the clock's step is noticed a second later.
	do(t, pool, `UPDATE river_job SET scheduled_at = now() + interval '1 day' - interval '2 seconds' WHERE kind = 'retried'`)
	require.Equal(t, 1, repair(24*time.Hour))
	require.Zero(t, waits("retried"))
	require.Zero(t, repair(24*time.Hour), "a second repair must change nothing")
}

// TestEarliestTime covers three clocks.
func TestEarliestTime(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := time.Now().Truncate(time.Microsecond)
	agreed := func(at time.Time) time.Time {
		agreed, err := schema.EarliestTime(t.Context(), pool, at)
		require.NoError(t, err)
		return agreed
	}
	require.Less(t, agreed(now.AddDate(2, 0, 0)).Sub(now), time.Hour, "the database's")
	require.True(t, agreed(now.Add(-time.Hour)).Equal(now.Add(-time.Hour)), "the process's")
	take(t, pool, "me")
	require.True(t, agreed(now.Add(-time.Hour)).Equal(now.Add(-time.Hour)), "no event has been received yet")
	do(t, pool, `UPDATE streams SET last_event_at = $1`, now.Add(-2*time.Hour))
	require.True(t, agreed(now).Equal(now.Add(-2*time.Hour)), "the server's")
}

// TestLatestTime covers a process's clock and the database's.
func TestLatestTime(t *testing.T) {
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
