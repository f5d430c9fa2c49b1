package lexicons

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/lexicon/rules"
	"github.com/weir-social/weir/internal/lexicon/verdict"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// JudgeRecords judges a batch of records. It holds their locks and uses what is stored at
// that time, so the order of jobs does not change the result.
//
// The records that they refer to are not locked. After each transaction the job checks
// whether these are still as it found them. If a record has changed, a job that is added in
// the same transaction judges the records that depend on it again.
type JudgeRecords struct {
	river.WorkerDefaults[JudgeRecordsArgs]
	*workers.Projector
	pool     *pgxpool.Pool
	catalogs *catalogs
	rules    rules.Rules
	judged   func(collection string) bool
}

// errTargetsChange means that the targets changed after each of several transactions.
var errTargetsChange = errors.New("the records that these refer to keep changing")

const tries = 5 // a job whose targets still change after this many transactions is retried

// Limits on what a transaction judges: it holds the locks of its records, for which the
// consumer may have to wait, and all of them are in memory. A record may have 1 MiB.
const (
	judgedAtOnce      = 128
	judgedBytesAtOnce = 1 << 20 // unless one record has more
)

// Work judges the job's records. For deleted records, it judges again the records that depend
// on them.
func (w *JudgeRecords) Work(ctx context.Context, job *river.Job[JudgeRecordsArgs]) error {
	keys := make([]schema.Key, len(job.Args.Records))
	for i, r := range job.Args.Records {
		keys[i] = schema.Key(r)
	}
	keys = workers.SortedKeys(keys)
	sizes, err := verdict.Sizes(ctx, w.pool, keys)
	if err != nil {
		return err
	}
	for chunk := range chunksOf(keys, sizes) {
		if err := w.chunk(ctx, job.JobRow, chunk); err != nil {
			return err
		}
	}
	return nil
}

// chunksOf cuts keys into parts within the limits.
func chunksOf(keys []schema.Key, sizes map[schema.Key]int) iter.Seq[[]schema.Key] {
	return func(yield func([]schema.Key) bool) {
		from, bytes := 0, 0
		for i, key := range keys {
			if i > from && (i-from == judgedAtOnce || bytes+sizes[key] > judgedBytesAtOnce) {
				if !yield(keys[from:i]) {
					return
				}
				from, bytes = i, 0
			}
			bytes += sizes[key]
		}
		if from < len(keys) {
			yield(keys[from:])
		}
	}
}

// chunk judges records, and repeats that until no target has changed since the last
// transaction.
func (w *JudgeRecords) chunk(ctx context.Context, job *rivertype.JobRow, keys []schema.Key) error {
	seen := targetsSeen{}
	for i := 0; len(keys) > 0; i++ {
		if i == tries {
			return errTargetsChange
		}
		if err := w.ProjectKeys(ctx, job, keys, func(ctx context.Context, tx pgx.Tx, records []schema.Record) error {
			return w.judge(ctx, tx, job, records, seen)
		}); err != nil {
			return err
		}
		crashpoint.At(ctx, "judgment: after its transaction")
		if i == 0 {
			gone := slices.DeleteFunc(slices.Clone(keys), func(k schema.Key) bool { return seen[k] != nil })
			if err := w.deleted(ctx, gone); err != nil {
				return err
			}
		}
		var err error
		if keys, err = seen.changed(ctx, w.pool, keys); err != nil {
			return err
		}
	}
	return nil
}

// deleted settles the dead letters of records that are not stored, unless they have been
// stored again since, and enqueues the records that depend on them to be judged again.
func (w *JudgeRecords) deleted(ctx context.Context, gone []schema.Key) error {
	if len(gone) == 0 {
		return nil
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := verdict.UseIndexes(ctx, tx); err != nil {
			return err
		}
		if err := verdict.SettleDeleted(ctx, tx, gone); err != nil {
			return err
		}
		return w.enqueueDependents(ctx, tx, gone)
	})
}

// judge is one transaction.
func (w *JudgeRecords) judge(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, records []schema.Record, seen targetsSeen) error {
	if err := verdict.UseIndexes(ctx, tx); err != nil {
		return err
	}
	catalog, _, err := w.catalogs.lock(ctx, tx)
	if err != nil {
		return err
	}
	keys := make([]schema.Key, len(records))
	for i := range records {
		keys[i] = records[i].Key
	}
	before, err := verdict.ReadBefore(ctx, tx, keys)
	if err != nil {
		return err
	}
	j := &judging{worker: w, tx: tx, catalog: catalog, contents: map[schema.Key]content{}}
	for i := range records {
		j.add(&records[i], cmp.Or(before[records[i].Key], &verdict.Before{}))
	}
	if err := j.decide(ctx); err != nil {
		return err
	}
	judged := make([]*verdict.Judgment, len(j.records))
	for i, r := range j.records {
		judged[i] = &r.Judgment
		seen[r.Judgment.Key] = j.seenBy(r)
	}
	if err := verdict.Store(ctx, tx, judged); err != nil {
		return err
	}
	if err := w.storeDeadLetters(ctx, tx, job, j.records); err != nil {
		return err
	}
	return w.enqueueAfter(ctx, tx, j.records)
}

// storeDeadLetters stores dead letters for records that fail, and settles those of records
// that have changed.
func (w *JudgeRecords) storeDeadLetters(ctx context.Context, tx pgx.Tx, job *rivertype.JobRow, judged []*judgedRecord) error {
	var settled []schema.Key
	var failing []*judgedRecord
	for _, r := range judged {
		if r.differs() {
			settled = append(settled, r.Judgment.Key)
		}
		if r.stage() != "" {
			failing = append(failing, r)
		}
	}
	retried := map[schema.Key]int64{}
	if len(failing) > 0 {
		var err error
		if retried, err = verdict.RetriedBy(ctx, tx, job.ID); err != nil {
			return err
		}
	}
	var deadLetters []schema.DeadLetter
	for _, r := range failing {
		if id := retried[r.Judgment.Key]; id != 0 || r.differs() {
			deadLetters = append(deadLetters, r.deadLetter(w.Name(), id))
			w.Count(r.stage(), r.Judgment.Key.Collection)
		}
	}
	return verdict.ReplaceDeadLetters(ctx, tx, settled, deadLetters)
}

// enqueueAfter adds the job that judges the records that depend on changed records, and the
// job that looks for the records that they wait for.
func (w *JudgeRecords) enqueueAfter(ctx context.Context, tx pgx.Tx, judged []*judgedRecord) error {
	var changed []schema.Key
	waits := false
	for _, r := range judged {
		if r.changed() {
			changed = append(changed, r.Judgment.Key)
		}
		for _, target := range r.Judgment.Waits {
			if _, waited := r.before.Waits[target]; !waited {
				waits = true
			}
		}
	}
	if err := w.enqueueDependents(ctx, tx, changed); err != nil || !waits {
		return err
	}
	return enqueueCheck(ctx, tx, time.Now().Add(verdict.FirstRetry()))
}

// enqueueDependents adds the job that judges the records that depend on changed ones, if
// there are any.
func (w *JudgeRecords) enqueueDependents(ctx context.Context, tx pgx.Tx, changed []schema.Key) error {
	if len(changed) == 0 {
		return nil
	}
	targets, err := verdict.HaveDependents(ctx, tx, changed)
	if err != nil || len(targets) == 0 {
		return err
	}
	return enqueueDependents(ctx, tx, targets)
}

func enqueueDependents(ctx context.Context, tx pgx.Tx, targets []schema.Key) error {
	client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
	if err != nil {
		return nil // outside a client, nothing is enqueued
	}
	args := JudgeDependentsArgs{}
	for _, target := range workers.SortedKeys(targets) {
		args.Targets = append(args.Targets, jobs.Record(target))
	}
	if _, err := client.InsertTx(ctx, tx, args, nil); err != nil {
		return fmt.Errorf("enqueue the dependents: %w", err)
	}
	return nil
}

// enqueueCheck adds the job that looks for the records that parked records wait for, in the
// transaction that parks them. If there already is a job, it sees the new rows: it cannot end
// before this transaction has.
func enqueueCheck(ctx context.Context, tx pgx.Tx, at time.Time) error {
	return insertCheck(ctx, tx, at.Unix()+1)
}

// insertCheck adds the job for a second since 1970. There is one per second.
func insertCheck(ctx context.Context, tx pgx.Tx, due int64) error {
	client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
	if err != nil {
		return nil // outside a client, nothing is enqueued
	}
	if _, err := client.InsertTx(ctx, tx, CheckParkedArgs{Due: due}, nil); err != nil {
		return fmt.Errorf("enqueue a check of parked records: %w", err)
	}
	return nil
}

// targetsSeen holds the targets of judged records, as their judgments found them.
type targetsSeen map[schema.Key]map[schema.Key]verdict.Target

// changed returns those records with a target that has changed since it was read.
func (s targetsSeen) changed(ctx context.Context, db schema.DB, keys []schema.Key) (changed []schema.Key, err error) {
	var targets []schema.Key
	for _, key := range keys {
		for target := range s[key] {
			targets = append(targets, target)
		}
	}
	now, err := verdict.Targets(ctx, db, workers.SortedKeys(targets))
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		for target, then := range s[key] {
			if now[target] != then {
				changed = append(changed, key)
				break
			}
		}
	}
	return changed, nil
}
