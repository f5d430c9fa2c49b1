package schema_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestJobsOfLapsedProcessesAreRescued shows that only running jobs whose last attempt is by a process without a heartbeat start again.
func TestJobsOfLapsedProcessesAreRescued(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const lapse = 20 * time.Second
	execute(t, pool, `
INSERT INTO workers (name, seen_at, alive_since) VALUES
    ('me',     clock_timestamp(),                       clock_timestamp() - interval '1 hour'),
    ('live',   clock_timestamp(),                       clock_timestamp() - interval '1 hour'),
    ('dead',   clock_timestamp() - interval '1 minute', clock_timestamp() - interval '1 hour'),
    ('future', clock_timestamp() + interval '1 hour',   clock_timestamp() - interval '1 hour')`)
	execute(t, pool, `
INSERT INTO river_job (kind, queue, args, attempt, max_attempts, state, attempted_at, attempted_by, metadata, finalized_at) VALUES
    ('a', 'process', '{}', 2, 45, 'running',   now(), '{live,dead}', '{"river:rescue_count": 1}', NULL),
    ('b', 'process', '{}', 5, 5,  'running',   now(), '{dead}',      '{}',                        NULL),
    ('c', 'process', '{}', 1, 5,  'running',   now(), '{future}',    '{"cancel_attempted_at": 1}', NULL),
    ('d', 'process', '{}', 2, 45, 'running',   now(), '{dead,live}', '{}', NULL),
    ('e', 'process', '{}', 1, 45, 'running',   now(), '{unknown}',   '{}', NULL),
    ('f', 'process', '{}', 1, 45, 'completed', now(), '{dead}',      '{}', now())`)
	states := func() string {
		return ask[string](t, pool,
			`SELECT string_agg(kind || ' ' || state || ' ' || cardinality(errors) || ' ' || (metadata ->> 'river:rescue_count'), ', ' ORDER BY kind)
			FROM river_job WHERE errors IS NOT NULL`)
	}
	names, err := schema.Beat(t.Context(), pool, "me", lapse)
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"dead", "future"}, names)
	n, err := schema.RescueJobs(t.Context(), pool, append(names, "live"), lapse)
	require.NoError(t, err)
	require.EqualValues(t, 3, n)
	require.Equal(t, "a available 1 2, b discarded 1 1, c cancelled 1 1", states())
	require.Equal(t, "d running, e running, f completed",
		ask[string](t, pool, `SELECT string_agg(kind || ' ' || state, ', ' ORDER BY kind) FROM river_job WHERE errors IS NULL`))
	require.Equal(t, "live, me", ask[string](t, pool, `SELECT string_agg(name, ', ' ORDER BY name) FROM workers`))
}

// TestNobodyLapsesWhileTheDatabaseIsAway shows that a process judges others only after heartbeats of its own for as long: after a pause of
// the database, or a step of its clock, all processes seem to have lapsed.
func TestNobodyLapsesWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	beat := func(age string) []string {
		execute(t, pool, `UPDATE workers SET seen_at = clock_timestamp() - interval '`+age+`', alive_since = alive_since - interval '`+age+`'`)
		names, err := schema.Beat(t.Context(), pool, "me", 20*time.Second)
		require.NoError(t, err)
		return names
	}
	execute(t, pool, `INSERT INTO workers (name, seen_at, alive_since) VALUES ('other', clock_timestamp(), clock_timestamp())`)
	require.Empty(t, beat("1 hour"), "it has just begun")
	require.Empty(t, beat("1 hour"), "the database was away")
	require.Empty(t, beat("-1 hour"), "the clock was set back")
	execute(t, pool, `UPDATE workers SET seen_at = clock_timestamp() - interval '1 minute' WHERE name = 'other';
		UPDATE workers SET alive_since = clock_timestamp() - interval '21 seconds'`)
	names, err := schema.Beat(t.Context(), pool, "me", 20*time.Second)
	require.NoError(t, err)
	require.Equal(t, []string{"other"}, names)
}
