package workers

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/schema"
)

// class is what an error means for a job.
type class uint8

const (
	retryable class = iota // the network, a server, a bug: retried with growing delays, then a dead letter
	permanent              // a retry cannot help: a dead letter at once
	postponed              // not the job's fault: it is snoozed, which counts as no failed attempt
)

// classify decides how an error ends a job; nothing else does. bluesky.Classify
// and schema.Classify classify the errors of their packages. A worker marks its
// own errors as NonRetryable where a retry cannot help.
func classify(err error) class {
	webhook, isWebhook := errors.AsType[*webhookError](err)
	_, marked := errors.AsType[*permanentError](err)
	switch {
	case marked:
		return permanent
	case isWebhook:
		return classOfStatus(webhook.status)
	case bluesky.Classify(err) == bluesky.RateLimited:
		return postponed
	case Refused(err), schema.Classify(err) == schema.Data:
		return permanent
	}
	return retryable
}

// classOfStatus returns the class of an HTTP status outside 2xx.
func classOfStatus(status int) class {
	switch {
	case status == http.StatusTooManyRequests:
		return postponed
	case status/100 == 5, status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return retryable
	}
	return permanent
}

// NonRetryable marks an error as permanent: a retry cannot help.
func NonRetryable(err error) error { return &permanentError{err} }

type permanentError struct{ error }

func (e *permanentError) Unwrap() error { return e.error }

// Snooze ends an attempt that has not failed. The job continues after the wait,
// behind more urgent jobs.
func Snooze(wait time.Duration) error { return river.JobSnooze(wait) }

// Refused reports whether the service permanently refuses the request. A refused
// login does not count: the operator can correct it.
func Refused(err error) bool {
	return err != nil && bluesky.Classify(err) == bluesky.Permanent && !errors.Is(err, bluesky.ErrLogin)
}

// riverError converts an error to what River expects for its class. River's own
// errors pass unchanged: a snooze by the worker, or a cancellation from outside
// through the context.
func riverError(err error) error {
	var cancelled *river.JobCancelError
	var snoozed *river.JobSnoozeError
	if err == nil || errors.As(err, &cancelled) || errors.As(err, &snoozed) {
		return err
	}
	switch classify(err) {
	case postponed:
		return river.JobSnooze(max(retryAfter(err), time.Second))
	case permanent:
		return river.JobCancel(err)
	}
	return err
}

// retryAfter returns how long the service asks callers to wait, or 0 if it does not
// say.
func retryAfter(err error) time.Duration {
	if webhook, ok := errors.AsType[*webhookError](err); ok {
		return webhook.retryAfter
	}
	return bluesky.RetryAfter(err)
}

// classifiedWorker is a worker whose errors classify decides on.
type classifiedWorker[T river.JobArgs] struct {
	river.Worker[T]
	log      *slog.Logger
	stopping <-chan struct{} // nil: the job is not interrupted
}

// Work processes the job. It also logs a failure in the job's row, because River
// keeps neither the error of a snooze nor an outcome, and logs a job that will not
// be retried, because a periodic job leaves no dead letter.
func (w classifiedWorker[T]) Work(ctx context.Context, job *river.Job[T]) error {
	err := checkDeaths(job.JobRow)
	if err == nil {
		err = w.interruptible(ctx, job)
	}
	result := riverError(err)
	if _, snoozed := errors.AsType[*river.JobSnoozeError](err); err != nil && !snoozed {
		RowLog(ctx).Warn("attempt_failed", "attempt", job.Attempt, "outcome", outcomeOf(result), "error", err)
		if outcome := outcomeOf(result); outcome == "cancelled" || outcome == "failed" && job.Attempt >= job.MaxAttempts && !errors.Is(err,
			context.Canceled) {
			w.log.Error("job_given_up", "kind", job.Kind, "job", job.ID, "attempt", job.Attempt, "outcome", outcome, "error", err)
		}
	}
	return result
}

// interruptible processes the job, and cancels it when the process stops. That
// is not a failed attempt.
func (w classifiedWorker[T]) interruptible(ctx context.Context, job *river.Job[T]) error {
	if w.stopping == nil {
		return w.Worker.Work(ctx, job)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	interrupted := make(chan bool, 1)
	go func() {
		select {
		case <-w.stopping:
			cancel()
			interrupted <- true
		case <-ctx.Done():
			interrupted <- false
		}
	}()
	err := w.Worker.Work(ctx, job)
	cancel()
	if <-interrupted && err != nil {
		return Snooze(0)
	}
	return err
}
