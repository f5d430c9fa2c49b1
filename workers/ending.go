package workers

import (
	"context"
	"errors"
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
// below know what their own errors mean: bluesky.Classify, schema.Classify.
func classify(err error) class {
	var cancelled *river.JobCancelError
	var snoozed *river.JobSnoozeError
	switch {
	case errors.As(err, &snoozed), bluesky.Classify(err) == bluesky.RateLimited:
		return notYet
	case errors.As(err, &cancelled), refused(err), schema.Classify(err) == schema.Data:
		return permanent
	}
	return retryable
}

// refused answers whether what was asked for is not to be had. A refused login
// says nothing about that: a person will correct it.
func refused(err error) bool {
	return err != nil && bluesky.Classify(err) == bluesky.Permanent && !errors.Is(err, bluesky.ErrLogin)
}

// ending is an error as River takes it, by its class.
func ending(err error) error {
	var cancelled *river.JobCancelError
	var snoozed *river.JobSnoozeError
	if err == nil || errors.As(err, &cancelled) || errors.As(err, &snoozed) {
		return err
	}
	switch classify(err) {
	case notYet:
		return river.JobSnooze(max(bluesky.RetryAfter(err), time.Second))
	case permanent:
		return river.JobCancel(err)
	}
	return err
}

// ruled is a worker whose jobs end by the one rule.
type ruled[T river.JobArgs] struct{ river.Worker[T] }

// Work works the job.
func (w ruled[T]) Work(ctx context.Context, job *river.Job[T]) error {
	return ending(w.Worker.Work(ctx, job))
}
