package workers

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/stretchr/testify/assert"

	"github.com/weir-social/weir/internal/retry"
)

// schedules makes jobs available as soon as they are due, with River's own statement. River's
// leader does this every five seconds, which no setting changes, and most of the tests would wait
// for that several times. stop leaves it to the leader.
func schedules(t testing.TB, pool *pgxpool.Pool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	stop = func() {
		cancel()
		<-ended
	}
	t.Cleanup(stop)
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			err := makeAvailable(ctx, pool)
			if err != nil && !errors.Is(err, context.Canceled) && !assert.NoError(t, err) {
				return
			}
			retry.Sleep(ctx, 50*time.Millisecond) //nolint:errcheck // the loop checks the context
		}
	}()
	return stop
}

// makeAvailable makes due jobs available and notifies their queues.
func makeAvailable(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		due, err := riverpgxv5.New(pool).UnwrapExecutor(tx).JobSchedule(ctx, &riverdriver.JobScheduleParams{Max: 1000})
		if err != nil {
			return err
		}
		for _, j := range due {
			if _, err := tx.Exec(ctx, `SELECT pg_notify(current_schema() || '.river_insert', jsonb_build_object('queue', $1::text)::text)`, j.Job.Queue); err != nil {
				return err
			}
		}
		return nil
	})
}
