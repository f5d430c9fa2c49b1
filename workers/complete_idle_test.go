package workers

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

type drain struct{}

func (drain) Kind() string { return "drain" }

func (drain) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByState: []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning,
		rivertype.JobStateScheduled}}}
}

// TestWorkAddedAtTheEndIsDone adds work before the job locks its row, and while it holds the lock.
func TestWorkAddedAtTheEndIsDone(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `CREATE TABLE drained (done boolean NOT NULL DEFAULT false)`)
	at, again := make(chan string), make(chan struct{}) // the step of the first run, and the signal to continue
	var runs atomic.Int32
	step := func(ctx context.Context, name string) {
		select {
		case at <- name:
			<-again
		case <-ctx.Done():
		}
	}
	bundle := river.NewWorkers()
	river.AddWorker(bundle, river.WorkFunc(func(ctx context.Context, job *river.Job[drain]) error {
		first := runs.Add(1) == 1
		for {
			if _, err := pool.Exec(ctx, `UPDATE drained SET done = true WHERE NOT done`); err != nil {
				return err
			}
			if first {
				step(ctx, "looked")
			}
			done, err := CompleteIdle(ctx, pool, job, func(ctx context.Context, db pgx.Tx) (bool, error) {
				left, err := schema.One(ctx, db, "count", pgx.RowTo[int], `SELECT count(*)::integer FROM drained WHERE NOT done`)
				if first && left == 0 {
					step(ctx, "idle")
				}
				return left == 0, err
			})
			if done || err != nil {
				return err
			}
		}
	}))
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Workers: bundle, Logger: slog.New(slog.DiscardHandler),
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 2}}})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() { stop(); <-client.Stopped() })
	require.NoError(t, client.Start(ctx))
	add := func() bool {
		execute(t, pool, `INSERT INTO drained DEFAULT VALUES`)
		added, err := client.Insert(ctx, drain{}, nil)
		require.NoError(t, err)
		return !added.UniqueSkippedAsDuplicate
	}
	require.True(t, add())
	require.Equal(t, "looked", <-at)
	require.False(t, add(), "no second job may be added while the job runs")
	again <- struct{}{}
	require.Equal(t, "looked", <-at, "once more")
	again <- struct{}{}
	require.Equal(t, "idle", <-at)
	added := make(chan bool)
	go func() { added <- add() }()
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, 10*time.Millisecond, "the insert waits for the end of the job")
	again <- struct{}{}
	require.True(t, <-added)
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM drained WHERE NOT done`) == 0 }, 10*time.Millisecond)
	require.EqualValues(t, 2, runs.Load())
}
