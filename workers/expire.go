package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
)

// Retention says how long what is stored stays. A zero field has its default.
type Retention struct {
	Forever     bool          // posts, links and shares stay, also those of accounts no longer watched; Window means nothing
	Window      time.Duration // posts, and links that few share, with their shares; 24 h, and no less
	Tombstones  time.Duration // how long a replay or a backfill may bring back what was deleted; 7 days
	Gaps        time.Duration // closed gaps; 30 days
	DeadLetters time.Duration // since they were last seen; 90 days
	Grace       time.Duration // for links that lost sharers, and for accounts no longer watched; 24 h
	KeepSharers int           // links that so many accounts share stay; 5
}

// WithDefaults fills the fields that are zero. It answers an error for what
// would let something expire that is still shown or needed.
func (r Retention) WithDefaults() (Retention, error) {
	const day = 24 * time.Hour
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&r.Window, day}, {&r.Tombstones, 7 * day}, {&r.Gaps, 30 * day}, {&r.DeadLetters, 90 * day}, {&r.Grace, day}} {
		if *d.field == 0 {
			*d.field = d.value
		}
		if *d.field < 0 {
			return r, fmt.Errorf("a retention is %s: give one longer than nothing", *d.field)
		}
	}
	if r.KeepSharers == 0 {
		r.KeepSharers = 5
	}
	switch {
	case r.KeepSharers < 0:
		return r, fmt.Errorf("links that %d accounts share cannot be kept: give a number from 1 on", r.KeepSharers)
	case r.Window < ranking.LongestWindow:
		return r, fmt.Errorf("posts would be kept for %s: the ranking shows %s, give no less", r.Window, ranking.LongestWindow)
	}
	return r, nil
}

const (
	batchAim  = 25 * time.Millisecond // how long a batch should hold its locks: half of what it may
	batchMost = 1000
	busyTries = 40 // for about half a minute

	smallIndex    = 16 << 20         // bytes: not worth a rebuild
	rebuildWithin = 30 * time.Second // it waits for every older transaction; the next run clears up what is cut off
)

// Expire deletes what is older than its retention, in batches that each commit.
// What is due is decided in the transaction that deletes it: it may run twice,
// beside itself, or be killed anywhere, and the next run does what is left.
type Expire struct {
	river.WorkerDefaults[jobs.Expire]
	pool    *pgxpool.Pool
	log     *slog.Logger
	keep    Retention
	stored  collection.Registry // the retention of each collection but posts; what has no entry stays
	made    schema.Projections
	expired *prometheus.CounterVec
	budget  time.Duration // of one run
	tries   int           // to get a lock
	indexed bool          // indexes are rebuilt too
}

func newExpire(cfg Config, keep Retention) (*Expire, error) {
	keep, err := keep.WithDefaults()
	if err != nil {
		return nil, err
	}
	f := promauto.With(cfg.Registerer)
	return &Expire{
		pool: cfg.Pool, log: cfg.Logger, keep: keep, stored: cfg.Collections, made: cfg.Projections.Rows(), budget: 3 * time.Minute, tries: busyTries, indexed: !cfg.KeepIndexes,
		expired: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_expired_total",
			Help: "What retention has deleted: partitions for post_partitions, rows for the rest."}, []string{"what"}),
	}, nil
}

// Timeout is longer than the budget, after which a run ends by itself.
func (w *Expire) Timeout(*river.Job[jobs.Expire]) time.Duration { return w.budget + time.Minute }

// Work runs until nothing is due by any of the clocks, or goes on in a second when its time is up.
func (w *Expire) Work(ctx context.Context, _ *river.Job[jobs.Expire]) error {
	now, err := schema.EarliestTime(ctx, w.pool, time.Now())
	if err != nil {
		return err
	}
	err = w.Run(ctx, now)
	if errors.Is(err, errBudget) {
		return later(time.Second)
	}
	return err
}

// errBudget ends a run whose time is up.
var errBudget = errors.New("the time of this run is up")

// Run deletes what has expired at a moment. What others use for long is left to
// the next run, and said in the log.
func (w *Expire) Run(ctx context.Context, now time.Time) error {
	r := &expiry{Expire: w, log: jobLog(ctx, w.log), ctx: ctx, now: now, until: time.Now().Add(w.budget)}
	before := now.Add(-w.keep.Window)
	rule := schema.LinkRule{Now: now, Window: w.keep.Window, Grace: w.keep.Grace, Keep: w.keep.KeepSharers}
	posts := []func() error{
		func() error { return r.partitions(before) },
		func() error { return r.rows("posts", schema.ExpirePosts, before) },
	}
	links := func() error { return r.links(rule) }
	if w.keep.Forever {
		posts = nil
		links = func() error { return r.rows("lost_shares", schema.ForgetLostShares, now) }
	}
	for _, step := range append(posts,
		r.records,
		r.accounts, // its shares make links fall
		links,
		func() error { return r.rows("tombstones", schema.ExpireTombstones, now.Add(-w.keep.Tombstones)) },
		func() error { return r.rows("gaps", schema.ExpireGaps, now.Add(-w.keep.Gaps)) },
		func() error { return r.rows("dead_letters", schema.ExpireDeadLetters, now.Add(-w.keep.DeadLetters)) },
		func() error { return r.unneeded(now.Add(-w.keep.Tombstones)) },
		r.indexes,
	) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// expiry is one run.
type expiry struct {
	*Expire
	log   *slog.Logger
	ctx   context.Context
	now   time.Time // what is due is due at this moment
	until time.Time
}

// partitions drops those of posts whose time has left the window.
func (r *expiry) partitions(before time.Time) error {
	names, err := schema.ExpiredPostPartitions(r.ctx, r.pool, before)
	if err != nil {
		return err
	}
	for _, name := range names {
		err := r.batches("post_partitions", func(int) (looked, gone int, err error) {
			dropped, err := schema.DropPostPartition(r.ctx, r.pool, name)
			if dropped {
				gone = 1
			}
			return 0, gone, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *expiry) rows(what string, expire func(context.Context, schema.DB, time.Time, int) (int, error), before time.Time) error {
	return r.batches(what, func(limit int) (looked, gone int, err error) {
		gone, err = expire(r.ctx, r.pool, before, limit)
		return gone, gone, err
	})
}

// records deletes those of other collections, each under its own retention, from
// one collection to the next.
func (r *expiry) records() error {
	for after := ""; ; {
		names, err := schema.OtherCollections(r.ctx, r.pool, after, batchMost)
		if err != nil || len(names) == 0 {
			return err
		}
		var due []schema.ExpiryRule
		for _, name := range names {
			if e, ok := r.stored.Find(name); ok && e.Retention > 0 {
				due = append(due, schema.ExpiryRule{Collection: name, Before: r.now.Add(-e.Retention)})
			}
		}
		after = names[len(names)-1]
		if len(due) == 0 {
			continue
		}
		err = r.batches("records", func(limit int) (looked, gone int, err error) {
			gone, err = schema.ExpireRecords(r.ctx, r.pool, due, limit)
			return gone, gone, err
		})
		if err != nil {
			return err
		}
	}
}

func (r *expiry) links(rule schema.LinkRule) error {
	shares := 0
	err := r.batches("links", func(limit int) (looked, gone int, err error) {
		done, err := schema.ExpireLinks(r.ctx, r.pool, rule, limit)
		shares += done.Shares
		return done.Checked, done.Links, err
	})
	r.expired.WithLabelValues("shares").Add(float64(shares))
	return err
}

// indexes rebuilds what the shares of kept links have left sparse.
func (r *expiry) indexes() error {
	if !r.indexed {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, rebuildWithin)
	defer cancel()
	at := time.Now()
	rebuilt, err := ranking.RebuildShareIndexes(ctx, r.pool, smallIndex)
	if len(rebuilt) > 0 {
		r.log.Info("indexes_rebuilt", "indexes", rebuilt, "took", time.Since(at))
	}
	switch {
	case errors.Is(err, schema.ErrBusy):
		return nil // another expiry does it
	case err != nil && ctx.Err() != nil && r.ctx.Err() == nil:
		r.log.Warn("expire_left_to_the_next_run", "what", "indexes", "error", err)
		return nil
	}
	return err
}

// accounts purges those that are deleted or no longer watched, one after the
// other. Where posts stay for ever, those of accounts no longer watched do too.
func (r *expiry) accounts() error {
	unwatched := r.now.Add(-r.keep.Grace)
	if r.keep.Forever {
		unwatched = time.Time{}
	}
	for after := ""; ; {
		dids, err := schema.Purgeable(r.ctx, r.pool, r.now, unwatched, after, batchMost)
		if err != nil || len(dids) == 0 {
			return err
		}
		for _, did := range dids {
			if err := r.account(did); err != nil {
				return err
			}
		}
		after = dids[len(dids)-1]
	}
}

func (r *expiry) account(did string) error {
	records := func(ctx context.Context, db schema.DB, did string, limit int) (int, error) {
		return schema.PurgeRecords(ctx, db, did, r.stay(), limit)
	}
	type step struct {
		what  string
		purge func(context.Context, schema.DB, string, int) (int, error)
	}
	steps := []step{{"purged_records", records}}
	for _, table := range r.made.AllTables() {
		steps = append(steps, step{"purged_" + table, func(ctx context.Context, db schema.DB, did string, limit int) (int, error) {
			return schema.PurgeProjected(ctx, db, table, did, limit)
		}})
	}
	for _, step := range append(steps, step{"purged_dead_letters", schema.PurgeDeadLetters}) {
		err := r.batches(step.what, func(limit int) (looked, gone int, err error) {
			gone, err = step.purge(r.ctx, r.pool, did, limit)
			return gone, gone, err
		})
		if err != nil {
			return err
		}
	}
	done, err := schema.FinishPurge(r.ctx, r.pool, r.made, did, r.now, r.keep.Tombstones)
	if err == nil && !done {
		r.log.Warn("purge_unfinished", "did", did)
	}
	return err
}

// stay says which collections are kept for ever, of accounts no longer watched too.
func (r *expiry) stay() (all []schema.KeepRule) {
	for _, e := range r.stored.Entries() {
		all = append(all, schema.KeepRule{Pattern: e.Pattern, Keep: e.Retention == 0})
	}
	return all
}

// unneeded deletes the rows of accounts that nothing needs.
func (r *expiry) unneeded(before time.Time) error {
	return r.batches("accounts", func(limit int) (looked, gone int, err error) {
		done, err := schema.ExpireAccounts(r.ctx, r.pool, r.made, r.now, before, limit)
		return done.Checked, done.Deleted, err
	})
}

// batches repeats a step until it has looked at nothing, each time at as many
// rows as fit into a short transaction.
func (r *expiry) batches(what string, step func(limit int) (looked, gone int, err error)) error {
	begun, said := time.Now(), time.Now()
	limit, total, busy := 100, 0, 0
	var longest time.Duration
	say := func(message string) {
		r.log.Info(message, "what", what, "gone", total, "took", time.Since(begun), "longest_batch", longest)
	}
	for {
		if err := r.ctx.Err(); err != nil {
			return fmt.Errorf("expire %s: %w", what, err)
		}
		if time.Now().After(r.until) {
			return errBudget
		}
		at := time.Now()
		looked, gone, err := step(limit)
		took := time.Since(at)
		total += gone
		r.expired.WithLabelValues(what).Add(float64(gone))
		switch {
		case errors.Is(err, schema.ErrBusy):
			if busy++; busy >= r.tries {
				r.log.Warn("expire_left_to_the_next_run", "what", what, "gone", total, "error", err)
				return nil
			}
			limit = max(limit/2, 10)
			sleep(r.ctx, time.Duration(busy)*25*time.Millisecond+rand.N(50*time.Millisecond)) //nolint:errcheck // the next turn looks
			continue
		case err != nil:
			return err
		}
		busy, longest = 0, max(longest, took)
		if looked == 0 {
			break
		}
		if took > batchAim {
			limit = max(limit/2, 10)
		} else if took < batchAim/2 {
			limit = min(limit*2, batchMost)
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			say("expiring")
		}
		sleep(r.ctx, took/2) //nolint:errcheck // the next turn looks; those who waited for the batch go first
	}
	if total > 0 {
		say("expired")
	}
	return nil
}
