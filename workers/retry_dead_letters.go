package workers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// RetryDeadLetters retries the requested dead letters, and the events that wait as
// dead letters until they can be proven, oldest first. Events go through the
// stream's code, records through a job of the failed projection, and jobs are
// enqueued again. A dead letter leaves the state "retrying" in the transaction that
// settles it, so a killed worker continues where it stopped. Retrying twice changes
// nothing.
type RetryDeadLetters struct {
	river.WorkerDefaults[jobs.RetryDeadLetters]
	Shared
	events func(context.Context, []schema.StoredDeadLetter) error
	args   decoders
}

const (
	retryBatch      = 500     // dead letters read at once
	retryBatchBytes = 4 << 20 // limit of their input
)

// Work runs until no more dead letters are requested.
func (w *RetryDeadLetters) Work(ctx context.Context, _ *river.Job[jobs.RetryDeadLetters]) error {
	if _, err := schema.RequestDueRetries(ctx, w.Pool); err != nil {
		return err
	}
	for started := time.Now(); ; {
		if time.Since(started) > w.patience() {
			return Snooze(0)
		}
		requested, err := schema.DeadLettersToRetry(ctx, w.Pool, retryBatch, retryBatchBytes)
		if err != nil || len(requested) == 0 {
			return err
		}
		if err := w.retry(ctx, requested); err != nil {
			return err
		}
		ids := make([]int64, len(requested))
		for i := range requested {
			ids[i] = requested[i].ID
		}
		now, err := schema.CountDeadLetterStates(ctx, w.Pool, ids)
		if err != nil {
			return err
		}
		JobLog(ctx, w.Logger).Info("dead_letters_retried", "dead_letters", len(requested), "first", ids[0], "last", ids[len(ids)-1],
			"passed", now[schema.DeadLetterRetried], "failed_again", now[schema.DeadLetterOpen], "retrying", now[schema.DeadLetterRetrying])
	}
}

// retry retries dead letters by their stages.
func (w *RetryDeadLetters) retry(ctx context.Context, letters []schema.StoredDeadLetter) error {
	var events, records []schema.StoredDeadLetter
	for _, l := range letters {
		switch l.Stage {
		case schema.StageProcess, schema.StageLexicon, schema.StageRules, schema.StageReference:
			records = append(records, l)
		case schema.StageJob:
			if err := w.job(ctx, &l); err != nil {
				return err
			}
		default:
			events = append(events, l)
		}
	}
	if len(events) > 0 {
		if err := w.events(ctx, events); err != nil {
			return fmt.Errorf("retry dead-lettered events: %w", err)
		}
	}
	return w.records(ctx, records)
}

// records adds one job per projection. The job reads the current records: a deleted
// record needs no projection. A dead letter that counts many records names none,
// and is settled at once.
func (w *RetryDeadLetters) records(ctx context.Context, letters []schema.StoredDeadLetter) error {
	var nameless []int64
	byName := map[string][]*schema.StoredDeadLetter{}
	for i := range letters {
		if letters[i].Rkey == "" {
			nameless = append(nameless, letters[i].ID)
			continue
		}
		byName[letters[i].Projection] = append(byName[letters[i].Projection], &letters[i])
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		p, err := projectionNamed(w.Projections, name)
		if err != nil {
			for _, l := range byName[name] {
				again := schema.DeadLetter{ID: l.ID, Cause: err.Error()}
				if err := again.Store(ctx, w.Pool, ""); err != nil {
					return err
				}
			}
			continue
		}
		ids, keys := make([]int64, len(byName[name])), make([]schema.Key, len(byName[name]))
		for i, l := range byName[name] {
			ids[i], keys[i] = l.ID, l.Key()
		}
		records, _ := p.Of(schema.NotFresh(SortedKeys(keys)))
		if err := w.enqueue(ctx, ids, p.Job(jobs.Batch{Records: records})); err != nil {
			return err
		}
	}
	if len(nameless) == 0 {
		return nil
	}
	return schema.MarkRetried(ctx, w.Pool, nameless)
}

// job enqueues the job of a dead letter again, or marks an unfinished equivalent
// job. When that job ends, a trigger on river_job settles the dead letter.
func (w *RetryDeadLetters) job(ctx context.Context, l *schema.StoredDeadLetter) error {
	err := fmt.Errorf("no worker processes jobs of kind %q", l.Kind)
	if decode, ok := w.args[l.Kind]; ok {
		var args river.JobArgs
		if args, err = decode(l.Raw); err == nil {
			return w.enqueue(ctx, []int64{l.ID}, args)
		}
	}
	again := schema.DeadLetter{ID: l.ID, Cause: err.Error()}
	return again.Store(ctx, w.Pool, "")
}

// enqueue adds the job that retries dead letters. Its end settles them.
func (w *RetryDeadLetters) enqueue(ctx context.Context, ids []int64, args river.JobArgs) error {
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		locked, err := schema.LockDeadLettersToRetry(ctx, tx, ids)
		for marked := len(locked) == 0; !marked && err == nil; { // repeat if an equivalent job ends meanwhile
			var id int64
			if id, err = enqueueAgain(ctx, tx, w.Projections, args); err == nil {
				marked, err = schema.MarkRetry(ctx, tx, locked, id, jobs.TagDeadLetter)
			}
		}
		return err
	})
}

// enqueueAgain adds a job with its usual options. It returns the job's id, or the
// id of the unfinished job that makes it unnecessary.
func enqueueAgain(ctx context.Context, tx pgx.Tx, projections schema.Projections, args river.JobArgs) (int64, error) {
	result, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, args, optsOf(projections, args.Kind()))
	if err != nil {
		return 0, fmt.Errorf("enqueue %s: %w", args.Kind(), err)
	}
	if feed, ok := args.(jobs.BackfillAccount); ok && result.UniqueSkippedAsDuplicate {
		now, err := schema.Now(ctx, tx)
		if err != nil {
			return 0, err
		}
		if _, err := schema.PromoteBackfills(ctx, tx, []int64{result.Job.ID}, jobs.PriorityManual, jobs.Reasons(), feed.Since, now); err != nil {
			return 0, err
		}
	}
	return result.Job.ID, nil
}
