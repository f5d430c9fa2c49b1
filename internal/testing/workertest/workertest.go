// Package workertest has what the tests of workers share: statements and their results, and a scheduler of jobs
// that does not wait.
package workertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/internal/testing/eventually"
)

// Execute executes a statement.
func Execute(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	_, err := pool.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
}

// Strings returns the rows of a query of one text column.
func Strings(t testing.TB, pool *pgxpool.Pool, sql string) (all []string) {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err = pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}

// Count returns the number that a query selects.
func Count(t testing.TB, pool *pgxpool.Pool, sql string, args ...any) (n int) {
	t.Helper()
	require.NoError(t, pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// Becomes waits until a query of one text column returns these rows.
func Becomes(t testing.TB, pool *pgxpool.Pool, want []string, sql string) {
	t.Helper()
	eventually.True(t, func() bool { return fmt.Sprint(want) == fmt.Sprint(Strings(t, pool, sql)) }, 20*time.Millisecond, "%s: %s", want, sql)
}

// Samples returns a metric's values by its label values.
func Samples[N any](t *testing.T, registry *prometheus.Registry, metric string, value func(*dto.Metric) N) map[string]N {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	found := map[string]N{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == metric {
				name := ""
				for _, label := range m.GetLabel() {
					name += " " + label.GetValue()
				}
				found[strings.TrimSpace(name)] = value(m)
			}
		}
	}
	return found
}

// Schedules makes jobs available as soon as they are due, with River's own statement. River's
// leader does this every five seconds, which no setting changes, and most of the tests would wait
// for that several times. stop leaves it to the leader.
func Schedules(t testing.TB, pool *pgxpool.Pool) (stop func()) {
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
			err := MakeAvailable(ctx, pool)
			if err != nil && !errors.Is(err, context.Canceled) && !assert.NoError(t, err) {
				return
			}
			retry.Sleep(ctx, 50*time.Millisecond) // the loop checks the context
		}
	}()
	return stop
}

// MakeAvailable makes due jobs available and notifies their queues.
func MakeAvailable(ctx context.Context, pool *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		due, err := riverpgxv5.New(pool).UnwrapExecutor(tx).JobSchedule(ctx, &riverdriver.JobScheduleParams{Max: 1000})
		if err != nil {
			return err
		}
		for _, j := range due {
			if _, err := tx.Exec(ctx, `SELECT pg_notify(current_schema() || '.river_insert', jsonb_build_object('queue', $1::text)::text)`,
				j.Job.Queue); err != nil {
				return err
			}
		}
		return nil
	})
}
