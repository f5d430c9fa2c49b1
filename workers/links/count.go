package links

import (
	"context"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/workers"
)

const (
	countInterval = time.Second
	countBackoff  = 30 * time.Second // the longest wait after an error
	checkedLinks  = 300              // per check of a sample

	advanceInterval = 10 * time.Second // how often the windows advance while nothing is pending

	countsCheckInterval = 10 * time.Minute
)

// counter keeps the counts of the ranking up to date. Every worker process has one, and
// one of them writes at a time. It is not a job, because it runs every second and reads
// are exact without it.
type counter struct {
	pool *pgxpool.Pool
	log  *slog.Logger
	took *prometheus.HistogramVec

	advanced time.Time // when the counts were last up to date
	announcer
}

func newCounter(b workers.Bundle, announced time.Duration) *counter {
	return &counter{pool: b.Pool, announcer: announcer{every: announced}, log: b.Logger,
		took: promauto.With(b.Registerer).NewHistogramVec(prometheus.HistogramOpts{Name: "weir_counts_seconds",
			Help:    "Time of a step that brings the ranking's counts up to date, by outcome: counted, failed.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 12)}, []string{"outcome"})}
}

// run counts until ctx ends.
func (c *counter) run(ctx context.Context, _ *river.Client[pgx.Tx]) {
	retries := backoff.ExponentialBackOff{InitialInterval: 2 * countInterval, MaxInterval: countBackoff, Multiplier: 2}
	for pause := countInterval; ; {
		if retry.Sleep(ctx, pause) != nil {
			return
		}
		if err := c.count(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			pause = retries.NextBackOff()
			c.log.Error("counting_failed", "error", err, "retry_in", pause)
			continue
		}
		retries.Reset()
		pause = countInterval
		c.announce(ctx)
	}
}

// count counts everything that is pending, and has the windows advance from time to time.
func (c *counter) count(ctx context.Context) error {
	if time.Since(c.advanced) < advanceInterval {
		if pending, err := ranking.Pending(ctx, c.pool); err != nil || !pending {
			return err
		}
	}
	for tries := 0; ; {
		began := time.Now()
		done, err := ranking.Count(ctx, c.pool, began)
		outcome := "counted"
		if err != nil {
			outcome = "failed"
		}
		if !done.Busy {
			c.took.WithLabelValues(outcome).Observe(time.Since(began).Seconds())
		}
		c.changed = c.changed || done.Everything || done.Pending+done.Sharers+done.Links > 0
		switch {
		case err != nil && ranking.Overtaken(err) && tries < 3: // another counter committed first
			tries++
		case err != nil:
			return err
		case done.Everything:
			c.log.Info("everything_counted", "took", time.Since(began))
		case !done.More:
			c.advanced = time.Now()
			return nil
		}
	}
}

// CheckCounts compares the counts of some links with the shares, and stores how many
// differ. It changes no counts, so it may run twice.
type CheckCounts struct {
	river.WorkerDefaults[CheckCountsArgs]
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Work checks a sample.
func (w *CheckCounts) Work(ctx context.Context, _ *river.Job[CheckCountsArgs]) error {
	wrong, err := ranking.CheckSample(ctx, w.pool, checkedLinks, time.Now(), func(d ranking.Difference) {
		workers.JobLog(ctx, w.log).Error("count_wrong", "what", d.String())
	})
	workers.RowLog(ctx).Info("counts_checked", "wrong", wrong)
	return err
}
