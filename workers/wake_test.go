package workers

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
)

// nap is a job that is snoozed once.
type nap struct{}

func (nap) Kind() string { return "nap" }

// InsertOpts names a queue that no other job wakes.
func (nap) InsertOpts() river.InsertOpts { return river.InsertOpts{Queue: jobs.QueueResync} }

type napper struct {
	river.WorkerDefaults[nap]
	naps atomic.Int64
}

func (w *napper) Work(context.Context, *river.Job[nap]) error {
	if w.naps.Add(1)%2 == 1 {
		return Snooze(time.Second)
	}
	return nil
}

// polling starts workers that poll their queues at an interval.
func polling(t *testing.T, pool *pgxpool.Pool, cfg Config) *Client {
	t.Helper()
	cfg.Pool, cfg.ID, cfg.Projections, cfg.Queues, cfg.Logger = pool, t.Name(), registered(t, pool), []string{jobs.QueueResync},
		slog.New(slog.DiscardHandler)
	cfg.Features = []func(Bundle) error{func(b Bundle) error {
		Add(b, &napper{})
		return nil
	}}
	client, err := New(withPosts(cfg))
	require.NoError(t, err)
	running(t, client)
	return client
}

// TestWaitingJobsWakeWorkers shows that no job waits for the poll: neither one that was inserted without a
// notification, nor one that is snoozed, for which River does not notify.
func TestWaitingJobsWakeWorkers(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	client := polling(t, pool, Config{Processing: Processing{PollInterval: 24 * time.Hour}})
	_, err := client.Insert(t.Context(), nap{}, nil)
	require.NoError(t, err)
	becomes(t, pool, []string{"completed"}, `SELECT state::text FROM river_job WHERE kind = 'nap'`)
	execute(t, pool, `INSERT INTO river_job (kind, args, max_attempts, queue) VALUES ('nap', '{}', 45, 'resync')`)
	becomes(t, pool, []string{"completed", "completed"}, `SELECT state::text FROM river_job WHERE kind = 'nap'`)
}

// TestPollSuffices shows that a job needs no notification: the workers do not listen.
func TestPollSuffices(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	polling(t, pool, Config{Processing: Processing{PollOnly: true}})
	execute(t, pool, `INSERT INTO river_job (kind, args, max_attempts, queue) VALUES ('nap', '{}', 45, 'resync')`)
	becomes(t, pool, []string{"completed"}, `SELECT state::text FROM river_job WHERE kind = 'nap'`)
}
