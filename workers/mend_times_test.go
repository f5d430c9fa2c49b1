package workers

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema/schematest"
)

// TestRetriesAreMendedAtTheStartAndWhenTheClockWentBack, and are not read between.
func TestRetriesAreMendedAtTheStartAndWhenTheClockWentBack(t *testing.T) {
	t.Parallel()
	m := mender{pool: schematest.New(t), started: time.Now(), retries: true}
	_, err := m.pool.Exec(t.Context(), `INSERT INTO river_queue (name, updated_at) VALUES ('default', now())`)
	require.NoError(t, err)
	mend := func(want int) {
		t.Helper()
		mended, err := m.mend(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, mended)
	}
	late := func() {
		_, err := m.pool.Exec(t.Context(), `INSERT INTO river_job (kind, args, max_attempts, state, scheduled_at, errors) VALUES ('late', '{}', 25, 'retryable', now() + interval '1 hour', '{"{}"}')`)
		require.NoError(t, err)
	}
	late()
	mend(1)
	late()
	mend(1) // until nothing is left
	mend(0)
	late()
	require.False(t, m.retries)
	m.clock.began = m.clock.began.Add(time.Hour) // so it was, before the database's clock was set back
	mend(1)
	mend(0)
	require.False(t, m.retries)
}

// TestFirstReadsAreMended: a backfill that nobody has begun starts within minutes
// of being asked for, so one that starts later was dated by a wrong clock. One
// that waits since a service asked it to keeps its time.
func TestFirstReadsAreMended(t *testing.T) {
	t.Parallel()
	m := mender{pool: schematest.New(t), started: time.Now()}
	for _, sql := range []string{
		`INSERT INTO river_queue (name, updated_at) VALUES ('default', now())`,
		`INSERT INTO river_job (kind, args, max_attempts, state, scheduled_at) SELECT kind, '{}', 25, 'scheduled', now() + interval '1 hour'
		 FROM unnest(ARRAY['backfill_account', 'request_backfill', 'other']) AS k (kind)`,
		`INSERT INTO river_job (kind, args, max_attempts, state, scheduled_at, attempted_at)
		 VALUES ('backfill_account', '{"did": "asked to wait"}', 25, 'scheduled', now() + interval '1 hour', now())`,
	} {
		_, err := m.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	mended, err := m.mend(t.Context())
	require.NoError(t, err)
	require.Equal(t, 2, mended)
	var late []string
	require.NoError(t, m.pool.QueryRow(t.Context(), `SELECT array_agg(kind || ' ' || args::text ORDER BY kind) FROM river_job WHERE scheduled_at > now() + interval '5 minutes'`).Scan(&late))
	require.Equal(t, []string{`backfill_account {"did": "asked to wait"}`, "other {}"}, late)
}

// TestClockSetBackIsSeen against the process's monotonic clock, in one step or in
// several; one that goes on, or is set ahead, is no news.
func TestClockSetBackIsSeen(t *testing.T) {
	t.Parallel()
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	var c clockStart
	for _, read := range []struct {
		database, elapsed time.Duration
		back              bool
	}{
		{0, 0, false},
		{5 * time.Second, 5 * time.Second, false},
		{10 * time.Second, 10100 * time.Millisecond, false}, // the answer took longer
		{13 * time.Second, 15 * time.Second, true},          // it went on, and less than it should
		{18 * time.Second, 20 * time.Second, false},         // once
		{time.Hour, 25 * time.Second, false},                // ahead
		{30 * time.Second, 30 * time.Second, true},          // and back
		{34400 * time.Millisecond, 35 * time.Second, false}, // a little
		{38800 * time.Millisecond, 40 * time.Second, true},  // and a little more
		{38800 * time.Millisecond, 40500 * time.Millisecond, false},
	} {
		require.Equal(t, read.back, c.wentBack(noon.Add(read.database), read.elapsed), "%+v", read)
	}
}
