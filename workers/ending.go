package workers

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/schema"
)

// class says what an error calls for.
type class uint8

const (
	retryable class = iota // the network, a server, a bug: tried again, later each time, then a dead letter
	permanent              // no retry would help: a dead letter at once
	notYet                 // no fault of the job: it waits, and the wait is no failed try
)

// classify is the one place that decides how an error ends a job. The packages
// below know what their own errors mean: bluesky.Classify, schema.Classify. A
// worker makes an error of its own nonRetryable where no retry would help.
func classify(err error) class {
	webhook, answered := errors.AsType[*webhookError](err)
	_, given := errors.AsType[*nonRetryableError](err)
	switch {
	case given:
		return permanent
	case answered:
		return classOfStatus(webhook.status)
	case bluesky.Classify(err) == bluesky.RateLimited:
		return notYet
	case refused(err), schema.Classify(err) == schema.Data:
		return permanent
	}
	return retryable
}

// classOfStatus is the class of an HTTP answer that is no success.
func classOfStatus(status int) class {
	switch {
	case status == http.StatusTooManyRequests:
		return notYet
	case status/100 == 5, status == http.StatusRequestTimeout, status == http.StatusTooEarly:
		return retryable
	}
	return permanent
}

// nonRetryable is an error that no retry would help.
func nonRetryable(err error) error { return &nonRetryableError{err} }

type nonRetryableError struct{ error }

func (e *nonRetryableError) Unwrap() error { return e.error }

// later ends an attempt that has not failed: the job goes on after a wait, behind
// whoever is more urgent.
func later(wait time.Duration) error { return river.JobSnooze(wait) }

// refused answers whether what was asked for is not to be had. A refused login
// says nothing about that: a person will correct it.
func refused(err error) bool {
	return err != nil && bluesky.Classify(err) == bluesky.Permanent && !errors.Is(err, bluesky.ErrLogin)
}

// ending is an error as River takes it, by its class. What is River's already is
// a worker's later, or a cancel from outside, which comes through the context.
func ending(err error) error {
	var cancelled *river.JobCancelError
	var snoozed *river.JobSnoozeError
	if err == nil || errors.As(err, &cancelled) || errors.As(err, &snoozed) {
		return err
	}
	switch classify(err) {
	case notYet:
		return river.JobSnooze(max(retryAfter(err), time.Second))
	case permanent:
		return river.JobCancel(err)
	}
	return err
}

// retryAfter is how long whoever was asked wants to be left alone; 0: they did
// not say.
func retryAfter(err error) time.Duration {
	if webhook, ok := errors.AsType[*webhookError](err); ok {
		return webhook.retryAfter
	}
	return bluesky.RetryAfter(err)
}

// ruled is a worker whose jobs end by the one rule.
type ruled[T river.JobArgs] struct {
	river.Worker[T]
	log      *slog.Logger
	stopping <-chan struct{} // nil: the job is not cut short
}

// Work works the job. Why it failed is in its log too: River keeps no cause of a
// wait, and not what the cause came to. The process logs a job that is given up:
// a periodic one leaves no dead letter.
func (w ruled[T]) Work(ctx context.Context, job *river.Job[T]) error {
	err := fatal(job.JobRow)
	if err == nil {
		err = w.work(ctx, job)
	}
	ended := ending(err)
	if _, goesOn := errors.AsType[*river.JobSnoozeError](err); err != nil && !goesOn {
		rowLog(ctx).Warn("attempt_failed", "attempt", job.Attempt, "outcome", outcomeOf(ended), "cause", err)
		if outcome := outcomeOf(ended); outcome == "cancelled" || outcome == "failed" && job.Attempt >= job.MaxAttempts && !errors.Is(err, context.Canceled) {
			w.log.Error("job_given_up", "kind", job.Kind, "job", job.ID, "attempt", job.Attempt, "outcome", outcome, "error", err)
		}
	}
	return ended
}

// work works the job, and cuts it short when the process stops: that is no failed
// try.
func (w ruled[T]) work(ctx context.Context, job *river.Job[T]) error {
	if w.stopping == nil {
		return w.Worker.Work(ctx, job)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cut := make(chan bool, 1)
	go func() {
		select {
		case <-w.stopping:
			cancel()
			cut <- true
		case <-ctx.Done():
			cut <- false
		}
	}()
	err := w.Worker.Work(ctx, job)
	cancel()
	if <-cut && err != nil {
		return later(0)
	}
	return err
}
