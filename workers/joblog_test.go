package workers

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// TestLogOfAJobIsInItsRow shows that a job's log is in its row, where River UI shows it, also for a
// job that completes in its own transaction.
func TestLogOfAJobIsInItsRow(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO watches (target, kind) VALUES ('did:plc:aaaaaaaaaaaaaaaaaaaaaaaa', 'account')`)
	require.NoError(t, err)
	eventually.True(t, func() bool {
		var followed bool
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM watch_members)`).Scan(&followed))
		return followed
	}, 20*time.Millisecond)
	_, err = pool.Exec(t.Context(),
		`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 hour', now(), 'test', now())`)
	require.NoError(t, err)
	var log string
	eventually.True(t, func() bool {
		err := pool.QueryRow(t.Context(), `
			SELECT coalesce(metadata -> 'river:log' -> 0 ->> 'log', '') FROM river_job WHERE kind = 'close_gap'`).Scan(&log)
		return err == nil && log != ""
	}, 20*time.Millisecond)
	require.Contains(t, log, "msg=gap_backfills_enqueued gap=1 accounts=1")
	require.Contains(t, log, "time=")
}

// logsOf waits until the log of one of a kind's jobs contains a text.
func (r *rig) logsOf(kind, want string) {
	r.t.Helper()
	const sql = `
		SELECT count(*) FROM river_job AS j CROSS JOIN jsonb_array_elements(coalesce(j.metadata -> 'river:log', '[]')) AS l
		WHERE j.kind = $1 AND l ->> 'log' LIKE $2`
	r.becomes(1, `SELECT least(1, (`+sql+`))`, kind, "%"+want+"%")
}

// TestEveryKindLogsItsResult shows that the result is in the job's row, and the error if it failed.
func TestEveryKindLogsItsResult(t *testing.T) {
	t.Parallel()
	h := newHook(t, func(i int, w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader([]int{http.StatusTooManyRequests, http.StatusOK}[min(i, 1)])
	})
	r := newRig(t, func(c *Config) {
		c.Audits = 24 * time.Hour
		c.Retry = func(context.Context, []schema.StoredDeadLetter) error { return nil }
		var err error
		c.Webhook, err = NewWebhook(h.URL+"/sesame", "")
		require.NoError(t, err)
	})
	r.logsOf("check_alerts", "msg=alerts_checked conditions=")
	for done, want := range []string{"msg=audited accounts=0", "msg=audit_not_due"} {
		_, err := r.client.Insert(t.Context(), jobs.Audit{}, nil)
		require.NoError(t, err)
		r.becomes(done+1, `SELECT count(*) FROM river_job WHERE kind = 'audit' AND state = 'completed'`)
		r.logsOf("audit", want)
	}

	_, err := r.client.Insert(t.Context(), jobs.SendAlert{Name: "WeirLag", Component: "s", At: time.Now()}, nil)
	require.NoError(t, err)
	r.logsOf("send_alert", `msg=attempt_failed attempt=1 outcome=snoozed error="send alert WeirLag: the webhook returned 429`)
	r.logsOf("send_alert", "msg=alert_sent name=WeirLag component=s resolved=false format=json")
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE metadata::text LIKE '%sesame%'`))

	require.NoError(t, (&schema.DeadLetter{
		Stage: schema.StageProcess, Key: schema.Key{DID: "did:plc:a"}, Cause: "x",
	}).Store(t.Context(), r.pool, ""))
	r.execute(`SELECT retry_dead_letters()`)
	r.logsOf("retry_dead_letters", "msg=dead_letters_retried dead_letters=1 first=1 last=1 passed=1 failed_again=0 retrying=0")

	r.execute(`INSERT INTO watches (target) VALUES ('nobody.example')`)
	r.logsOf("sync_follows", "msg=listing_failed watch=1 kind=follows target=nobody.example")
	r.logsOf("sync_follows", "msg=watch_unreadable watch=1 kind=follows target=nobody.example error=")
	r.execute(`SELECT enqueue_backfill('nobody.example', interval '1 hour')`)
	r.logsOf("request_backfill", "msg=attempt_failed attempt=1 outcome=cancelled error=")
}

// chatty is a job that logs a given amount.
type chatty struct {
	river.WorkerDefaults[jobs.Expire]
	lines int
}

func (w *chatty) Work(ctx context.Context, _ *river.Job[jobs.Expire]) error {
	log := JobLog(ctx, slog.New(slog.DiscardHandler))
	for range w.lines {
		log.Info(strings.Repeat("x", 1000))
	}
	return nil
}

// TestLogOfAJobIsBounded shows that the log in a job's row is bounded, and that a job without
// messages stores none.
func TestLogOfAJobIsBounded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for lines, most := range map[int]int{0: 0, 200: jobLogAttempt + 1000} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		defer tx.Rollback(t.Context()) // read only
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

// TestStopIsNoError shows that errors of work that a stop cancels are not logged, and that other
// errors with the same context are.
func TestStopIsNoError(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	log := quiet(slog.New(slog.NewTextHandler(&out, nil)))
	stopped, stop := context.WithCancel(t.Context())
	log.ErrorContext(stopped, "before", "error", "context canceled")
	stop()
	log.ErrorContext(stopped, "cancelled", "error", "begin: context canceled")
	log.ErrorContext(stopped, "closed", "err", "conn closed")
	log.ErrorContext(stopped, "broken", "error", "the disk is full")
	log.InfoContext(t.Context(), "chatter")
	require.Equal(t, 2, strings.Count(out.String(), "\n"), out.String())
	require.Contains(t, out.String(), "msg=before")
	require.Contains(t, out.String(), "msg=broken")
}
