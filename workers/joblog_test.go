package workers

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema/schematest"
)

// TestJobsLogIsInItsRow, where River UI shows it: also of a job that completes in
// a transaction of its own.
func TestJobsLogIsInItsRow(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool)
	for _, sql := range []string{
		`INSERT INTO watches (target, kind) VALUES ('did:plc:aaaaaaaaaaaaaaaaaaaaaaaa', 'account')`,
		`INSERT INTO watched (watch_id, did) SELECT id, 'did:plc:aaaaaaaaaaaaaaaaaaaaaaaa' FROM watches`,
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 hour', now(), 'test', now())`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	var log string
	require.Eventually(t, func() bool {
		err := pool.QueryRow(t.Context(), `SELECT coalesce(metadata -> 'river:log' -> 0 ->> 'log', '') FROM river_job WHERE kind = 'close_gap'`).Scan(&log)
		return err == nil && log != ""
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, log, "msg=gap_being_closed gap=1 accounts=1")
	require.Contains(t, log, "time=")
}

// chatty logs so much, and leaves what became of it.
type chatty struct {
	river.WorkerDefaults[jobs.Expire]
	lines int
}

func (w *chatty) Work(ctx context.Context, _ *river.Job[jobs.Expire]) error {
	log := jobLog(ctx, slog.New(slog.DiscardHandler))
	for range w.lines {
		log.Info(strings.Repeat("x", 1000))
	}
	return nil
}

// TestJobsLogIsBounded in a row, and nothing is stored of a job that says
// nothing.
func TestJobsLogIsBounded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for lines, most := range map[int]int{0: 0, 200: jobLogAttempt + 1000} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) //nolint:errcheck // only looked
		worker := rivertest.NewWorker[jobs.Expire](t, &riverDriver{}, &river.Config{Middleware: keepLogs()}, &chatty{lines: lines})
		done, err := worker.Work(t.Context(), t, tx, jobs.Expire{}, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, strings.Count(string(done.Job.Metadata), "x"), most)
		require.Equal(t, lines > 0, strings.Contains(string(done.Job.Metadata), "river:log"))
		if lines > 0 {
			require.Greater(t, strings.Count(string(done.Job.Metadata), "x"), jobLogAttempt/2)
		}
	}
}
