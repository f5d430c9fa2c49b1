package workers

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// RetryDeadLetters tries again the dead letters that somebody asked for, first
// parked first: events by the stream's way, records by a job of the projection
// that failed, jobs by enqueueing them anew. A letter leaves the state "retrying" in the transaction
// that settles it, so that a killed worker goes on where it stood; whatever is
// replayed twice changes nothing the second time.
type RetryDeadLetters struct {
	river.WorkerDefaults[jobs.RetryDeadLetters]
	pool     *pgxpool.Pool
	log      *slog.Logger
	events   func(context.Context, []schema.StoredDeadLetter) error
	args     decoders
	patience time.Duration // how long to go on before others get their turn: less than the job may take

	projections *Projections
}

const (
	retryDeadLetters = 500     // read at once
	replayBytes      = 4 << 20 // of their input
)

// Work replays until nothing is asked for.
func (w *RetryDeadLetters) Work(ctx context.Context, _ *river.Job[jobs.RetryDeadLetters]) error {
	for started := time.Now(); ; {
		if time.Since(started) > w.patience {
			return later(0)
		}
		asked, err := schema.DeadLettersToRetry(ctx, w.pool, retryDeadLetters, replayBytes)
		if err != nil || len(asked) == 0 {
			return err
		}
		if err := w.replay(ctx, asked); err != nil {
			return err
		}
		ids := make([]int64, len(asked))
		for i := range asked {
			ids[i] = asked[i].ID
		}
		now, err := schema.CountDeadLetterStates(ctx, w.pool, ids)
		if err != nil {
			return err
		}
		jobLog(ctx, w.log).Info("dead_letters_replayed", "letters", len(asked), "first", ids[0], "last", ids[len(ids)-1],
			"passed", now[schema.DeadLetterRetried], "failed_again", now[schema.DeadLetterOpen], "under_way", now[schema.DeadLetterRetrying])
	}
}

// replay tries letters by what their stages call for.
func (w *RetryDeadLetters) replay(ctx context.Context, letters []schema.StoredDeadLetter) error {
	var events, records []schema.StoredDeadLetter
	for _, l := range letters {
		switch l.Stage {
		case schema.StageProcess:
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
			return fmt.Errorf("replay parked events: %w", err)
		}
	}
	return w.records(ctx, records)
}

// records adds one job for the records of each projection. A job reads what is
// stored when it runs: a record that is gone has nothing to project. A dead letter
// that stands for many names no record, and needs nothing.
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
		p, err := w.projections.named(name)
		if err != nil {
			for _, l := range byName[name] {
				again := schema.DeadLetter{ID: l.ID, Cause: err.Error(), At: time.Now()}
				if err := again.Store(ctx, w.pool, ""); err != nil {
					return err
				}
			}
			continue
		}
		ids, keys := make([]int64, len(byName[name])), make([]schema.Key, len(byName[name]))
		for i, l := range byName[name] {
			ids[i], keys[i] = l.ID, l.Key()
		}
		if err := w.enqueue(ctx, ids, p.Job(jobs.Batch{Records: p.of(sortedKeys(keys))})); err != nil {
			return err
		}
	}
	if len(nameless) == 0 {
		return nil
	}
	return schema.MarkRetried(ctx, w.pool, nameless)
}

// job enqueues the job of a letter anew, or marks the unfinished one that does
// the same. The end of that job settles the letter, by a trigger of river_job.
func (w *RetryDeadLetters) job(ctx context.Context, letter *schema.StoredDeadLetter) error {
	err := fmt.Errorf("nobody works jobs of kind %q", letter.Kind)
	if decode, ok := w.args[letter.Kind]; ok {
		var args river.JobArgs
		if args, err = decode(letter.Raw); err == nil {
			return w.enqueue(ctx, []int64{letter.ID}, args)
		}
	}
	again := schema.DeadLetter{ID: letter.ID, Cause: err.Error(), At: time.Now()}
	return again.Store(ctx, w.pool, "")
}

// enqueue adds the job that retries dead letters. Its end settles them.
func (w *RetryDeadLetters) enqueue(ctx context.Context, ids []int64, args river.JobArgs) error {
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		asked, err := schema.LockDeadLettersToRetry(ctx, tx, ids)
		for marked := len(asked) == 0; !marked && err == nil; { // again where the job that does the same ends meanwhile
			var id int64
			if id, err = enqueueAnew(ctx, tx, w.projections, args); err == nil {
				marked, err = schema.MarkRetry(ctx, tx, asked, id, jobs.TagDeadLetter)
			}
		}
		return err
	})
}

// enqueueAnew adds a job as whoever adds such jobs does, and answers its id, or
// that of the unfinished one which makes it superfluous.
func enqueueAnew(ctx context.Context, tx pgx.Tx, projections *Projections, args river.JobArgs) (int64, error) {
	result, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, args, projections.optsOf(args.Kind()))
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
