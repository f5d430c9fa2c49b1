package workers

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
)

const alice = "did:plc:aaaaaaaaaaaaaaaaaaaaaaaa"

// working starts the workers, with the backfill queue paused.
func working(t *testing.T, pool *pgxpool.Pool) *Client {
	t.Helper()
	client, err := New(withPosts(Config{
		Shared: Shared{Pool: pool, Projections: registered(t, pool), Bluesky: unreachable(t), Logger: slog.New(slog.DiscardHandler)},
		ID:     t.Name()}))
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO river_queue (name, paused_at, updated_at) VALUES ('backfill', now(), now())`)
	require.NoError(t, err)
	running(t, client)
	synced(t, pool)
	return client
}

// synced waits for the end of the sync at startup, which would read a test's watches again.
func synced(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	becomes(t, pool, []string{"1"},
		`SELECT count(*)::text FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' = '0' AND state = 'completed'`)
}

type backfillJob struct {
	Priority int
	Since    time.Time
	State    string
}

// backfillsOf returns an account's backfill jobs.
func backfillsOf(t *testing.T, pool *pgxpool.Pool, did string) []backfillJob {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
		SELECT priority, (args ->> 'since')::timestamptz, state::text FROM river_job WHERE kind = 'backfill_account' AND args ->> 'did' = $1
		ORDER BY id`, did)
	require.NoError(t, err)
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[backfillJob])
	require.NoError(t, err)
	return found
}

func fromGo(t *testing.T, pool *pgxpool.Pool, client inserter, since time.Time, priority int) (added int) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		var err error
		added, err = EnqueueBackfills(t.Context(), tx, client, []string{alice, alice}, since, priority, time.Now())
		return err
	}))
	return added
}

// fromSQL requests a backfill by SQL, as an operator would in psql, and waits
// until the request is processed.
func fromSQL(t *testing.T, pool *pgxpool.Pool, back string, priority int) {
	t.Helper()
	var id int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT enqueue_backfill($1, $2::text::interval, $3)`, alice, back, priority).Scan(&id))
	eventually.True(t, func() bool {
		var state string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT state::text FROM river_job WHERE id = $1`, id).Scan(&state))
		return state == "completed"
	}, 20*time.Millisecond)
}

// TestSQLAndGoShareOneJobPerAccount requests a backfill in both orders. The
// reason with the better priority wins.
func TestSQLAndGoShareOneJobPerAccount(t *testing.T) {
	t.Parallel()
	began := time.Now()
	t.Run("Go first", func(t *testing.T) {
		t.Parallel()
		pool := schematest.New(t)
		client := working(t, pool)
		hour := time.Now().Add(-time.Hour)
		require.Equal(t, 1, fromGo(t, pool, client, hour, jobs.PriorityColdStart))
		fromSQL(t, pool, "1 day", 2)
		found := backfillsOf(t, pool, alice)
		require.Len(t, found, 1)
		require.Equal(t, 2, found[0].Priority)
		require.WithinRange(t, found[0].Since, began.Add(-24*time.Hour), time.Now().Add(-24*time.Hour), "the wider window must win")
		require.Equal(t, 0, fromGo(t, pool, client, hour, jobs.PriorityGap))
		found = backfillsOf(t, pool, alice)
		require.Len(t, found, 1)
		require.Equal(t, 1, found[0].Priority)
		require.WithinRange(t, found[0].Since, began.Add(-24*time.Hour), time.Now().Add(-24*time.Hour), "a narrower window must change nothing")
	})
	t.Run("SQL first", func(t *testing.T) {
		t.Parallel()
		pool := schematest.New(t)
		client := working(t, pool)
		fromSQL(t, pool, "1 hour", 3)
		require.Equal(t, 0, fromGo(t, pool, client, time.Now().Add(-48*time.Hour), jobs.PriorityColdStart))
		found := backfillsOf(t, pool, alice)
		require.Len(t, found, 1)
		require.Equal(t, 3, found[0].Priority, "a worse reason must change nothing")
		require.WithinRange(t, found[0].Since, began.Add(-48*time.Hour), time.Now().Add(-48*time.Hour))
	})
	t.Run("before a retry in some hours", func(t *testing.T) {
		t.Parallel()
		pool := schematest.New(t)
		client := working(t, pool)
		fromGo(t, pool, client, time.Now(), jobs.PriorityManual)
		_, err := pool.Exec(t.Context(), `UPDATE river_job SET attempt = 11, state = 'retryable', scheduled_at = now() + interval '4 hours'
			WHERE kind = 'backfill_account'`)
		require.NoError(t, err)
		require.Equal(t, 0, fromGo(t, pool, client, time.Now(), jobs.PriorityManual))
		becomes(t, pool, []string{"available"}, `SELECT state::text FROM river_job WHERE kind = 'backfill_account'`)
	})
	t.Run("after the end", func(t *testing.T) {
		t.Parallel()
		pool := schematest.New(t)
		client := working(t, pool)
		fromGo(t, pool, client, time.Now(), jobs.PriorityManual)
		_, err := pool.Exec(t.Context(), `UPDATE river_job SET state = 'completed', finalized_at = now() WHERE kind = 'backfill_account'`)
		require.NoError(t, err)
		require.Equal(t, 1, fromGo(t, pool, client, time.Now(), jobs.PriorityManual), "a finished job must not prevent a new one")
	})
}

// TestMalformedRequestIsRefusedAtOnce shows that the SQL function itself
// refuses it.
func TestMalformedRequestIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, sql := range []string{
		`SELECT enqueue_backfill('nonsense')`, `SELECT enqueue_backfill(NULL)`, `SELECT enqueue_backfill('')`,
		`SELECT enqueue_backfill('a b.example')`,
		`SELECT enqueue_backfill('did:plc:')`, `SELECT enqueue_backfill(repeat('a', 5000) || '.example')`,
		`SELECT enqueue_backfill('alice.example', interval '-1 hour')`, `SELECT enqueue_backfill('alice.example', NULL)`,
		`SELECT enqueue_backfill('alice.example', interval '1 hour', 5)`, `SELECT enqueue_backfill_all(interval '0')`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.ErrorContains(t, err, "22023", sql)
	}
	var n int
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM river_job`).Scan(&n))
	require.Zero(t, n)
	_, err := pool.Exec(t.Context(), `SELECT enqueue_backfill('@Alice.Example'), enqueue_backfill('did:web:alice.example')`)
	require.NoError(t, err)
}

// TestWholeNetworkHasNoFeeds shows that a backfill fails if the whole network
// is followed, and that River UI shows the error.
func TestWholeNetworkHasNoFeeds(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool)
	var id int64
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT enqueue_backfill_all()`).Scan(&id))
	var cause string
	eventually.True(t, func() bool {
		err := pool.QueryRow(t.Context(), `SELECT errors[1] ->> 'error' FROM river_job WHERE id = $1 AND state = 'cancelled'`, id).Scan(&cause)
		return err == nil
	}, 20*time.Millisecond)
	require.Contains(t, cause, "the whole network is followed: name an account, or add a watch")
}

// TestCallsOfAllProcessesShareOneLimit runs three processes with many callers
// each. Each call lasts until another has begun, or until no other caller is
// left. The test checks the start times that the database assigned, because the
// time at which a caller uses its start depends on the machine.
func TestCallsOfAllProcessesShareOneLimit(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `
CREATE TABLE turns (n bigint GENERATED ALWAYS AS IDENTITY, at timestamptz);
CREATE FUNCTION note_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO turns (at) VALUES (NEW.next_at); RETURN NULL; END $$;
CREATE TRIGGER note_turn AFTER UPDATE ON api_schedule FOR EACH ROW EXECUTE FUNCTION note_turn()`)
	require.NoError(t, err)
	const slots, spacing, processes, callers, calls = 3, 20 * time.Millisecond, 3, 4, 5
	var mu sync.Mutex
	changed := sync.NewCond(&mu)
	left, running, most := processes*callers, 0, 0
	var all sync.WaitGroup
	for range processes {
		process := &Calls{Pool: pool, Slots: slots, Spacing: spacing, TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
		for range callers {
			all.Go(func() {
				for range calls {
					done, err := process.Take(t.Context())
					require.NoError(t, err)
					mu.Lock()
					running++
					most = max(most, running)
					changed.Broadcast()
					for running < 2 && left > 1 {
						changed.Wait()
					}
					running--
					mu.Unlock()
					done()
				}
				mu.Lock()
				left--
				changed.Broadcast()
				mu.Unlock()
			})
		}
	}
	all.Wait()
	require.LessOrEqual(t, most, slots)
	require.Greater(t, most, 1)
	var given, tooClose int
	require.NoError(t, pool.QueryRow(t.Context(), `
SELECT count(*), count(*) FILTER (WHERE at < before + $1::interval)
FROM (SELECT at, lag(at) OVER (ORDER BY n) AS before FROM turns) AS t`, spacing).Scan(&given, &tooClose))
	require.GreaterOrEqual(t, given, processes*callers*calls)
	require.Zero(t, tooClose)
}

// TestLateCallerReservesANewStart shows that a start is dropped if its
// reservation returned too late.
func TestLateCallerReservesANewStart(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	calls := &Calls{Pool: pool, Slots: 3, Spacing: 100 * time.Millisecond, TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	_, err := pool.Exec(t.Context(), `
CREATE SEQUENCE turns;
CREATE TABLE slow (turn bigint);
CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF nextval('turns') = (SELECT min(turn) FROM slow) THEN PERFORM pg_sleep(0.3); END IF;
    RETURN NULL;
END $$;
-- delays the commit
CREATE CONSTRAINT TRIGGER slow AFTER UPDATE ON api_schedule DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION slow()`)
	require.NoError(t, err)
	take := func() (turns int64) {
		t.Helper()
		done, err := calls.Take(t.Context())
		require.NoError(t, err)
		done()
		require.Zero(t, slotsTaken(t, pool))
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT last_value FROM turns`).Scan(&turns))
		return turns
	}
	first := take()
	require.GreaterOrEqual(t, first, int64(2), "the first reservations measure the delay")
	calls.clock.localTime(time.Now(), time.Now()) // a reply without delay: all those so far may have been late
	_, err = pool.Exec(t.Context(), `INSERT INTO slow VALUES ($1)`, first+1)
	require.NoError(t, err)
	require.GreaterOrEqual(t, take(), first+2)
}

// TestDatabaseClock shows that a delayed reply does not make its reading later,
// and that the estimate decays slowly.
func TestDatabaseClock(t *testing.T) {
	t.Parallel()
	var c databaseClock
	now := time.Now()
	reading := now.Add(-time.Hour) // another clock
	_, known := c.localTime(reading, now.Add(2*time.Millisecond))
	require.False(t, known)
	at, known := c.localTime(reading, now.Add(50*time.Millisecond))
	require.True(t, known)
	require.WithinDuration(t, now.Add(2*time.Millisecond), at, time.Millisecond)
	at, _ = c.localTime(reading, now.Add(time.Millisecond))
	require.WithinDuration(t, now.Add(time.Millisecond), at, time.Microsecond, "the shortest delay must be used")
	at, _ = c.localTime(reading.Add(time.Minute), now.Add(time.Minute+20*time.Millisecond))
	require.WithinDuration(t, now.Add(time.Minute+20*time.Millisecond), at, time.Microsecond, "a delay that stays longer must be used")
}

// TestJitterWidensTheSpacing shows that jitter widens the spacing at once,
// within bounds, and that this decays slowly.
func TestJitterWidensTheSpacing(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	calls := &Calls{Pool: pool, Slots: 3, Spacing: time.Millisecond, TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}
	calls.clock.localTime(time.Now(), time.Now())
	calls.jitter.record(time.Hour)
	require.Equal(t, maxJitter, calls.jitter.now())
	before := time.Now()
	done, err := calls.Take(t.Context())
	require.NoError(t, err)
	done()
	var next time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT next_at FROM api_schedule`).Scan(&next))
	require.GreaterOrEqual(t, next.Sub(before), margin+maxJitter*9/10)
	for range 200 {
		calls.jitter.record(0)
	}
	require.Less(t, calls.jitter.now(), time.Microsecond)
}

func slotsTaken(t *testing.T, pool *pgxpool.Pool) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM api_slots WHERE holder IS NOT NULL`).Scan(&n))
	return n
}

// TestSlotOfADeadProcessIsFreeAgain shows that a dead process's slot is free
// after its TTL.
func TestSlotOfADeadProcessIsFreeAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	dead := &Calls{Pool: pool, Slots: 1, TTL: time.Second, Logger: slog.New(slog.DiscardHandler)}
	_, err := dead.Take(t.Context())
	require.NoError(t, err)
	var until time.Time
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT expires_at FROM api_slots`).Scan(&until))
	done, err := (&Calls{Pool: pool, Slots: 1, TTL: time.Minute, Logger: slog.New(slog.DiscardHandler)}).Take(t.Context())
	require.NoError(t, err)
	var over bool
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT clock_timestamp() > $1`, until).Scan(&over))
	require.True(t, over)
	done()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = dead.Take(ctx)
	require.Error(t, err)
}
