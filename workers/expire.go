package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Retention is how long stored rows are kept. A zero field gets its default.
type Retention struct {
	Forever     bool          // keep posts, even of accounts no longer watched; Window is ignored
	Window      time.Duration // posts; 24 h, which is also the minimum
	Projected   time.Duration // what features keep after its records have expired; 7 days, at least 24 h
	Tombstones  time.Duration // deletions, so that no replay or backfill restores what was deleted; 7 days, or a day longer than Projected
	Gaps        time.Duration // closed gaps; 30 days, or a day longer than Projected
	DeadLetters time.Duration // dead letters, since they last occurred; 90 days
	Grace       time.Duration // for accounts no longer watched; 24 h
}

// WithDefaults fills the zero fields. It returns an error if a row could expire
// that is still shown or needed.
func (r Retention) WithDefaults() (Retention, error) {
	const day = 24 * time.Hour
	if r.Projected == 0 {
		r.Projected = 7 * day
	}
	longer := r.Projected + day // until then, a replay or closing a gap may still change it
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&r.Window, day}, {&r.Projected, 0}, {&r.Tombstones, max(7*day, longer)}, {&r.Gaps, max(30*day, longer)}, {&r.DeadLetters, 90 * day},
		{&r.Grace, day},
	} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return r, fmt.Errorf("invalid retention %s: expected a positive duration", *d.field)
		}
	}
	switch {
	case r.Window < MinRetention:
		return r, fmt.Errorf("invalid retention of posts %s: expected at least %s", r.Window, MinRetention)
	case r.Projected < MinRetention:
		return r, fmt.Errorf("invalid retention of what features keep %s: expected at least %s", r.Projected, MinRetention)
	case r.Tombstones < longer, r.Gaps < longer:
		return r, fmt.Errorf("invalid retention of tombstones %s and gaps %s: expected at least %s, a day longer than what features keep",
			r.Tombstones, r.Gaps, longer)
	}
	return r, nil
}

// MinRetention is the shortest retention of posts, and of what features keep.
const MinRetention = 24 * time.Hour

const (
	batchAim  = 25 * time.Millisecond // target for how long a batch holds its locks: half of the limit
	batchMost = 1000
	BusyTries = 40 // for about half a minute
)

// busyRetries returns the waits for a lock that others hold.
func busyRetries() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{
		InitialInterval: 50 * time.Millisecond, MaxInterval: 700 * time.Millisecond, Multiplier: 1.5, RandomizationFactor: 0.5,
	}
}

// WhileBusy repeats a call while others hold a lock that it needs.
func WhileBusy(ctx context.Context, tries int, call func() error) error {
	retries := busyRetries()
	err := call()
	for try := 1; try < tries && errors.Is(err, schema.ErrBusy) && ctx.Err() == nil; try++ {
		retry.Sleep(ctx, retries.NextBackOff()) // the next turn checks the context
		err = call()
	}
	return err
}

// Expire deletes rows that are older than their retention, in batches with a
// transaction each. That transaction also selects the rows. The job may run
// twice, beside itself, or be killed at any point: the next run continues.
type Expire struct {
	river.WorkerDefaults[jobs.Expire]
	Shared
	keep    Retention
	expired *prometheus.CounterVec
	budget  time.Duration // time of one run
	Tries   int           // attempts to get a lock

	before, after []expiryStep // of features
}

// expiryStep is a part of a run.
type expiryStep = func(context.Context, *Expiry) error

// NewExpire returns the worker of the expiry, with what the features of the bundle expire.
func NewExpire(b Bundle, keep Retention) (*Expire, error) {
	keep, err := keep.WithDefaults()
	if err != nil {
		return nil, err
	}
	f := promauto.With(b.Registerer)
	return &Expire{
		Shared: b.Shared, keep: keep, budget: 3 * time.Minute, Tries: BusyTries, before: b.before, after: b.after,
		expired: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_expired_total",
			Help: "What retention has deleted: partitions for post_partitions and share_partitions, rows for the rest."}, []string{"what"}),
	}, nil
}

// Timeout is longer than the budget, at the end of which a run stops.
func (w *Expire) Timeout(*river.Job[jobs.Expire]) time.Duration { return w.budget + time.Minute }

// Work runs until nothing is due by any of the clocks. If its time is up, the
// job continues after a second.
func (w *Expire) Work(ctx context.Context, _ *river.Job[jobs.Expire]) error {
	now, err := schema.EarliestTime(ctx, w.Pool, time.Now())
	if err != nil {
		return err
	}
	err = w.Run(ctx, now)
	if errors.Is(err, errBudget) {
		return Snooze(time.Second)
	}
	return err
}

// errBudget ends a run when its time is up.
var errBudget = errors.New("the time of this run is up")

// Run deletes what has expired at now. Rows that stay locked are left to the
// next run, and a warning is logged.
func (w *Expire) Run(ctx context.Context, now time.Time) error {
	r := &Expiry{Log: JobLog(ctx, w.Logger), Now: now, expire: w, until: time.Now().Add(w.budget)}
	before := now.Add(-w.keep.Window)
	posts := []func() error{
		func() error { return r.partitions(ctx, before) },
		func() error { return r.Rows(ctx, "posts", schema.ExpirePosts, before) },
	}
	if w.keep.Forever {
		posts = nil
	}
	for _, step := range append(posts,
		func() error { return r.steps(ctx, w.before) },
		func() error { return r.records(ctx) },
		func() error { return r.accounts(ctx) },
		func() error { return r.steps(ctx, w.after) }, // what accounts had is gone, so that what depends on it may expire
		func() error { return r.Rows(ctx, "tombstones", schema.ExpireTombstones, now.Add(-w.keep.Tombstones)) },
		func() error { return r.Rows(ctx, "gaps", schema.ExpireGaps, now.Add(-w.keep.Gaps)) },
		func() error { return r.Rows(ctx, "chains", schema.ExpireChains, now) },
		func() error { return r.Rows(ctx, "resyncs", schema.ExpireResyncs, now.Add(-w.keep.Tombstones)) },
		func() error {
			return r.Rows(ctx, "dead_letters", schema.ExpireDeadLetters, now.Add(-w.keep.DeadLetters))
		},
		func() error { return r.unneeded(ctx, now.Add(-w.keep.Tombstones)) },
	) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// Expiry is one run.
type Expiry struct {
	Log    *slog.Logger
	Now    time.Time // the time that decides what is due
	expire *Expire
	until  time.Time
}

// steps runs what features do.
func (r *Expiry) steps(ctx context.Context, all []expiryStep) error {
	for _, step := range all {
		if err := step(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

// WhileBusy repeats a call while others hold a lock that it needs.
func (r *Expiry) WhileBusy(ctx context.Context, call func() error) error {
	return WhileBusy(ctx, r.expire.Tries, call)
}

// partitions drops the partitions of posts that are older than the window.
func (r *Expiry) partitions(ctx context.Context, before time.Time) error {
	names, err := schema.ExpiredPartitions(ctx, r.expire.Pool, "posts", before)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := r.Drop(ctx, "post_partitions", func() (bool, error) {
			return schema.DropPartition(ctx, r.expire.Pool, name, nil)
		}); err != nil {
			return err
		}
	}
	return nil
}

// Drop drops a partition.
func (r *Expiry) Drop(ctx context.Context, what string, drop func() (bool, error)) error {
	return r.Batches(ctx, what, func(int) (examined, deleted int, err error) {
		dropped, err := drop()
		if dropped {
			deleted = 1
		}
		return 0, deleted, err
	})
}

// Rows repeats a function that deletes at most limit rows that are due before a time, until none is left.
func (r *Expiry) Rows(
	ctx context.Context, what string, expire func(context.Context, schema.DB, time.Time, int) (int, error), before time.Time,
) error {
	return r.Batches(ctx, what, func(limit int) (examined, deleted int, err error) {
		deleted, err = expire(ctx, r.expire.Pool, before, limit)
		return deleted, deleted, err
	})
}

// records deletes the expired records of the other collections, each by its own
// retention.
func (r *Expiry) records(ctx context.Context) error {
	for after := ""; ; {
		names, err := schema.OtherCollections(ctx, r.expire.Pool, after, batchMost)
		if err != nil || len(names) == 0 {
			return err
		}
		var due []schema.ExpiryRule
		for _, name := range names {
			if e, ok := r.expire.Collections.Find(name); ok && e.Retention > 0 {
				due = append(due, schema.ExpiryRule{Collection: name, Before: r.Now.Add(-e.Retention)})
			}
		}
		after = names[len(names)-1]
		if len(due) == 0 {
			continue
		}
		tables := r.expire.Projections.Expiring(names)
		err = r.Batches(ctx, "records", func(limit int) (examined, deleted int, err error) {
			err = pgx.BeginFunc(ctx, r.expire.Pool, func(tx pgx.Tx) (err error) {
				deleted, err = schema.ExpireRecords(ctx, tx, due, limit, tables...)
				return err
			})
			return deleted, deleted, err
		})
		if err != nil {
			return err
		}
	}
}

// accounts purges accounts that are deleted or no longer watched. If posts are kept
// for ever, accounts that are no longer watched are kept too.
func (r *Expiry) accounts(ctx context.Context) error {
	unwatched := r.Now.Add(-r.expire.keep.Grace)
	if r.expire.keep.Forever {
		unwatched = time.Time{}
	}
	for after := ""; ; {
		dids, err := schema.Purgeable(ctx, r.expire.Pool, r.Now, unwatched, after, batchMost)
		if err != nil || len(dids) == 0 {
			return err
		}
		for _, did := range dids {
			if err := r.account(ctx, did); err != nil {
				return err
			}
		}
		after = dids[len(dids)-1]
	}
}

func (r *Expiry) account(ctx context.Context, did string) error {
	records := func(ctx context.Context, db schema.DB, did string, limit int) (int, error) {
		return schema.PurgeRecords(ctx, db, did, r.expire.keptCollections(), limit)
	}
	type step struct {
		what  string
		purge func(context.Context, schema.DB, string, int) (int, error)
	}
	steps := []step{{"purged_records", records}}
	for _, table := range r.expire.Projections.AllTables() {
		steps = append(steps, step{"purged_" + table, func(ctx context.Context, db schema.DB, did string, limit int) (int, error) {
			return schema.PurgeProjected(ctx, db, table, did, r.expire.keptCollections(), limit)
		}})
	}
	for _, step := range append(steps, step{"purged_dead_letters", schema.PurgeDeadLetters}, step{"purged_histories", history.Purge}) {
		err := r.Batches(ctx, step.what, func(limit int) (examined, deleted int, err error) {
			deleted, err = step.purge(ctx, r.expire.Pool, did, limit)
			return deleted, deleted, err
		})
		if err != nil {
			return err
		}
	}
	done, err := schema.FinishPurge(ctx, r.expire.Pool, r.expire.Projections, did, r.expire.keptCollections(), r.Now, r.expire.keep.Tombstones,
		r.expire.Hooks...)
	if err == nil && !done {
		r.Log.Warn("purge_unfinished", "did", did)
	}
	return err
}

// keptCollections returns the collections that are kept for ever, even for accounts
// no longer watched.
func (w *Expire) keptCollections() (all []schema.KeepRule) {
	for _, e := range w.Collections.Entries() {
		all = append(all, schema.KeepRule{Pattern: e.Pattern, Keep: e.Retention == 0})
	}
	return all
}

// unneeded deletes the rows of accounts that no other row needs.
func (r *Expiry) unneeded(ctx context.Context, before time.Time) error {
	return r.Batches(ctx, "accounts", func(limit int) (examined, deleted int, err error) {
		done, err := schema.ExpireAccounts(ctx, r.expire.Pool, r.expire.Projections, r.Now, before, limit)
		return done.Checked, done.Deleted, err
	})
}

// Batches repeats a step until it examines no more rows. It adapts the number of
// rows to a short transaction.
func (r *Expiry) Batches(ctx context.Context, what string, step func(limit int) (examined, deleted int, err error)) error {
	began, logged := time.Now(), time.Now()
	limit, total, busy := 100, 0, 0
	retries := busyRetries()
	var longest time.Duration
	logProgress := func(message string) {
		r.Log.Info(message, "what", what, "deleted", total, "took", time.Since(began), "longest_batch", longest)
	}
	for {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("expire %s: %w", what, err)
		}
		if time.Now().After(r.until) {
			return errBudget
		}
		crashpoint.At(ctx, "expiry: before a batch")
		at := time.Now()
		examined, deleted, err := step(limit)
		took := time.Since(at)
		total += deleted
		r.expire.expired.WithLabelValues(what).Add(float64(deleted))
		switch {
		case errors.Is(err, schema.ErrBusy):
			if busy++; busy >= r.expire.Tries {
				r.Log.Warn("expiry_deferred", "what", what, "deleted", total, "error", err)
				return nil
			}
			limit = max(limit/2, 10)
			retry.Sleep(ctx, retries.NextBackOff()) // the next turn checks the context
			continue
		case err != nil:
			return err
		}
		busy, longest = 0, max(longest, took)
		retries.Reset()
		if examined == 0 {
			break
		}
		if took > batchAim {
			limit = max(limit/2, 10)
		} else if took < batchAim/2 {
			limit = min(limit*2, batchMost)
		}
		if time.Since(logged) > 10*time.Second {
			logged = time.Now()
			logProgress("expiring")
		}
		retry.Sleep(ctx, took/2) // the next turn checks the context; transactions that waited for the batch go first
	}
	if total > 0 {
		logProgress("expired")
	}
	return nil
}
