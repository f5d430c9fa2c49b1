package workers

import (
	"context"
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// measure records the time of every job.
type measure struct {
	river.MiddlewareDefaults
	seconds *prometheus.HistogramVec
}

func newMeasure(r prometheus.Registerer) *measure {
	return &measure{seconds: promauto.With(r).NewHistogramVec(prometheus.HistogramOpts{Name: "weir_job_seconds",
		Help: "Time of a job's attempt, by kind and outcome: done, snoozed (continues later), cancelled (a retry cannot help), " +
			"failed (is retried), or panicked.",
		Buckets: prometheus.ExponentialBuckets(0.002, 2.5, 14)}, []string{"kind", "outcome"})}
}

// Work is River's middleware around a job.
func (m *measure) Work(ctx context.Context, job *rivertype.JobRow, inner func(context.Context) error) error {
	began := time.Now()
	outcome := "panicked"
	defer func() { m.seconds.WithLabelValues(job.Kind, outcome).Observe(time.Since(began).Seconds()) }()
	err := inner(ctx)
	outcome = outcomeOf(err)
	return err
}

func outcomeOf(err error) string {
	var snooze *river.JobSnoozeError
	var cancel *river.JobCancelError
	switch {
	case err == nil:
		return "done"
	case errors.As(err, &snooze):
		return "snoozed"
	case errors.As(err, &cancel):
		return "cancelled"
	}
	return "failed"
}
