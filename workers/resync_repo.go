package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// ResyncRepo fetches an account's repository, whose commit must be signed with the
// account's key, and makes the stored records equal to it. It writes, edits and deletes
// records at the revision of that commit, so newer records from the stream stay. Running
// the job twice changes nothing the second time.
//
// Forged events cause resyncs too. So there is a limit on how often repositories are
// fetched, per account and in total.
type ResyncRepo struct {
	river.WorkerDefaults[jobs.ResyncRepo]
	Shared
	read   ReadRepository
	limits ResyncLimits
	again  chan struct{} // a token for one account whose last comparison failed
}

// ReadRepository reads the CAR of a repository. It returns an error if the repository is
// not the account's, or not signed with the key.
type ReadRepository func(car []byte, did string, key atcrypto.PublicKey) (Repository, error)

// Repository is a verified copy of an account's repository. The keys of a collection are
// sorted.
type Repository interface {
	Rev() string
	Data() []byte // hash of the root of the repository's tree
	Collections() []string
	Len(collection string) int
	Key(collection string, i int) string
	Record(collection string, i int) (cid string, record []byte) // nil: the record cannot be read
}

// ResyncLimits limit how often repositories are fetched. Zero fields take the defaults.
type ResyncLimits struct {
	PerHour int           // 600: for all accounts together
	Useful  time.Duration // 1 min: the wait for one account after a resync that found a difference
	Useless time.Duration // 1 h: the wait after a resync that found none; it doubles up to a day
	First   time.Duration // 1 min: how long the first resync of an account may take
	Within  time.Duration // 9 min: how long a later one may take
}

const (
	resyncsAtOnce  = 2                  // repositories in memory
	resyncBusy     = 5 * time.Second    // maximum wait of accounts for each other at first, if their last comparison failed
	resyncBusyMost = 30 * time.Minute   // the same later, when many wait for slow ones
	resyncInactive = time.Hour          // how often an inactive account is checked
	resyncRefused  = 24 * time.Hour     // wait before the repository of a server that refuses is requested again
	resyncGivenUp  = 8 * 24 * time.Hour // an account that nobody follows is given up after failing for this long
	resyncBefore   = 8 * 24 * time.Hour // how far a stream may have reached back before the database was made
)

func newResyncRepo(cfg Config) *ResyncRepo {
	limits := ResyncLimits{PerHour: cmp.Or(cfg.Resync.PerHour, 600), Useful: cmp.Or(cfg.Resync.Useful, time.Minute),
		Useless: cmp.Or(cfg.Resync.Useless, time.Hour),
		First:   cmp.Or(cfg.Resync.First, time.Minute), Within: cmp.Or(cfg.Resync.Within, 9*time.Minute)}
	return &ResyncRepo{Shared: cfg.Shared, read: cfg.ReadRepository, limits: limits, again: make(chan struct{}, resyncsAtOnce-1)}
}

// EnqueueResyncs adds the jobs of accounts that a commit marked, in its transaction. An
// account has at most one job.
func EnqueueResyncs(queue inserter) func(context.Context, pgx.Tx, []schema.Resync) error {
	return func(ctx context.Context, tx pgx.Tx, resyncs []schema.Resync) error {
		params := make([]river.InsertManyParams, len(resyncs))
		for i, r := range resyncs {
			params[i] = river.InsertManyParams{Args: jobs.ResyncRepo{DID: r.DID}, InsertOpts: &river.InsertOpts{ScheduledAt: r.Due}}
		}
		if _, err := queue.InsertManyTx(ctx, tx, params); err != nil {
			return fmt.Errorf("enqueue %s: %w", jobs.ResyncRepo{}.Kind(), err)
		}
		return nil
	}
}

// within returns how long an attempt may take: the age of the job, within limits.
func (w *ResyncRepo) within(job *river.Job[jobs.ResyncRepo]) time.Duration {
	var age time.Duration
	if job.AttemptedAt != nil {
		age = job.AttemptedAt.Sub(job.CreatedAt)
	}
	return min(max(w.limits.First, age), w.limits.Within)
}

// Timeout leaves time to record that the comparison took too long. After a worker was
// killed, its job starts again only once the timeout has passed, so the timeout is short at
// first.
func (w *ResyncRepo) Timeout(job *river.Job[jobs.ResyncRepo]) time.Duration {
	return w.within(job) * 10 / 9
}

// Work compares the account if that is due and allowed. Accounts whose last comparison
// failed use at most one worker of the queue, because their servers may be slow.
func (w *ResyncRepo) Work(ctx context.Context, job *river.Job[jobs.ResyncRepo]) error {
	did := job.Args.DID
	again, release := w.takeAgain()
	defer release()
	state, err := schema.BeginResync(ctx, w.Pool, did, w.limits.PerHour, w.limits.Useful, again)
	if !state.Failed {
		release()
	}
	switch {
	case errors.Is(err, schema.ErrNoRows): // the account is synchronized
		return w.finish(ctx, job)
	case err != nil:
		return err
	case !state.Begun && state.Wait > 0: // the clocks differ, or another job of the account was faster
		return Snooze(state.Wait + 10*time.Millisecond)
	case state.Status == "deleted" || !state.Watched && !state.Everyone: // its records are purged
		return w.drop(ctx, job)
	case state.Status != "active": // its server would refuse
		return w.postpone(ctx, did, errors.New("the account is "+state.Status), resyncInactive)
	case state.Failed && !again:
		return Snooze(time.Second + rand.N(min(max(resyncBusy, time.Since(job.CreatedAt)), resyncBusyMost)))
	case !state.Begun: // too many have begun in this hour: this account's turn comes within the next
		return Snooze(time.Minute + rand.N(time.Hour))
	}
	log := JobLog(ctx, w.Logger).With("did", did)
	result := schema.ResyncResult{Useful: w.limits.Useful, Useless: w.limits.Useless}
	within := w.within(job)
	if !state.Failed { // it may have waited only for other accounts
		within = min(within, w.limits.First)
	}
	timed, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	faults, err := w.resync(timed, did, state.Sought, &result)
	if err != nil && timed.Err() != nil && ctx.Err() == nil {
		err = &unverifiedError{fmt.Errorf("the comparison did not end within %s: %w", within.Round(time.Second), err)}
	}
	if err != nil {
		return w.failed(ctx, job, log, &state, err)
	}
	crashpoint.At(ctx, "reconciliation: before its end")
	result.Changed = faults > 0
	wait, err := w.end(ctx, job, result)
	if err != nil {
		return err
	}
	log.Info("resynchronized", "rev", result.Rev, "repaired", faults, "again", wait)
	if wait > 0 {
		return Snooze(wait)
	}
	return nil
}

// takeAgain takes the token for an account whose last comparison failed, if the token is
// free. release returns it, once.
func (w *ResyncRepo) takeAgain() (taken bool, release func()) {
	select {
	case w.again <- struct{}{}:
		return true, sync.OnceFunc(func() { <-w.again })
	default:
		return false, func() {}
	}
}

// failed decides when to try again. If the account or its server caused the error, the job
// does not fail: the error is stored with the account. The next attempt comes after as long
// as the account has been desynchronized, at most a day.
func (w *ResyncRepo) failed(
	ctx context.Context, job *river.Job[jobs.ResyncRepo], log *slog.Logger, state *schema.ResyncState, err error,
) error {
	_, api := errors.AsType[*bluesky.Error](err)
	_, unverified := errors.AsType[*unverifiedError](err)
	keyless := errors.Is(err, bluesky.ErrNoKey)
	if ctx.Err() != nil || !api && !unverified && !keyless {
		return err
	}
	uncertain := errors.Is(err, bluesky.ErrUncertain)
	if errors.Is(err, bluesky.ErrGone) {
		log.Info("account_deleted", "error", err)
		if err := w.Fetched().markDeleted(ctx, w.Pool, job.Args.DID); err != nil {
			return err
		}
		return w.drop(ctx, job)
	}
	log.Warn("not_resynchronized", "error", err)
	wait := min(max(state.Age, w.limits.Useful), resyncRefused)
	switch {
	case !state.Watched && (keyless && !uncertain || state.Age > resyncGivenUp): // anybody can invent such an account
		return w.drop(ctx, job)
	case uncertain:
	case Refused(err), keyless:
		wait = resyncRefused
	case bluesky.Classify(err) == bluesky.RateLimited:
		wait = max(bluesky.RetryAfter(err), w.limits.Useful)
	}
	return w.postpone(ctx, job.Args.DID, err, wait)
}

// unverifiedError says why a repository is not the account's.
type unverifiedError struct{ error }

func (e *unverifiedError) Unwrap() error { return e.error }

// resync makes the stored records equal to the repository. It stores the repository's
// commit in r, and returns how many records differed.
func (w *ResyncRepo) resync(ctx context.Context, did, sought string, r *schema.ResyncResult) (faults int, err error) {
	since, err := w.since(ctx, did)
	if err != nil {
		return 0, err
	}
	repo := &repository{Shared: w.Shared, did: did}
	if repo.api, err = w.fetch(ctx, did, sought, r); err != nil {
		return 0, err
	}
	now, err := schema.EarliestTime(ctx, w.Pool, time.Now()) // retention uses this clock
	if err != nil {
		return 0, err
	}
	names, err := repo.collections(ctx)
	if err != nil {
		return 0, err
	}
	var at repositoryPlace
	for more := at.next(names); more; more = !at.End || at.next(names) {
		in, err := repo.span(ctx, at.Collection, since, since, now, aboveAll)
		if err != nil {
			return 0, err
		}
		c, err := repo.page(ctx, &at, in)
		if err != nil {
			return 0, err
		}
		if len(c.faults) == 0 {
			continue
		}
		faults += len(c.faults)
		if err := repo.repair(ctx, river.ClientFromContext[pgx.Tx](ctx), r.Rev, c, nil); err != nil {
			return 0, err
		}
	}
	if copied, ok := repo.api.(exported); ok {
		err = w.outdate(ctx, repo, copied)
	}
	return faults, err
}

// outdate gives records whose events wait as dead letters the state and the revision that
// they have in the repository. Otherwise a retry of such an event could restore a record
// that was deleted since, or undo an edit, because the stream has not brought the deletion
// or the edit.
func (w *ResyncRepo) outdate(ctx context.Context, repo *repository, copied exported) error {
	keys, err := schema.UnprovenRecords(ctx, w.Pool, repo.did)
	if err != nil {
		return err
	}
	for page := range slices.Chunk(keys, repositoryPage) {
		now, err := schema.LatestTime(ctx, w.Pool, time.Now())
		if err != nil {
			return err
		}
		var gone []schema.Deletion
		there := map[string]*compared{} // by collection
		for _, k := range page {
			i, ok := copied.find(k.Collection, k.Rkey)
			switch {
			case !w.Collections.Stores(k.Collection): // the copy does not have this collection
				continue
			case !ok:
				gone = append(gone, schema.Deletion{Key: k, Rev: copied.Rev(), At: now})
				continue
			}
			c := there[k.Collection]
			if c == nil {
				c = &compared{collection: k.Collection, listed: map[string]schema.SourceRecord{}}
				there[k.Collection] = c
			}
			if r := copied.record(repo.did, k.Collection, i); r.Record != nil {
				c.faults = append(c.faults, schema.Fault{DID: k.DID, Collection: k.Collection, Rkey: k.Rkey, Fault: schema.FaultMissing})
				c.listed[k.Rkey] = schema.SourceRecord{Rkey: k.Rkey, CID: r.CID, Record: r.Record}
			}
		}
		if err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error { return w.Fetched().bury(ctx, tx, gone) }); err != nil {
			return err
		}
		for _, c := range there {
			if err := repo.repair(ctx, river.ClientFromContext[pgx.Tx](ctx), copied.Rev(), *c, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// since returns the time since which the records of an account should be stored.
func (w *ResyncRepo) since(ctx context.Context, did string) (time.Time, error) {
	feed, err := schema.FindFeed(ctx, w.Pool, did)
	if err != nil {
		return time.Time{}, err
	}
	if feed.CompleteSince != nil {
		return *feed.CompleteSince, nil
	}
	made, err := schema.MadeAt(ctx, w.Pool)
	return made.Add(-resyncBefore), err
}

// fetch returns the listing of a repository, and stores its commit in r. It lists the
// verified copy or, if the repository is too large for one, the account's own server. The copy
// of a mirror must have the revision that is sought.
func (w *ResyncRepo) fetch(ctx context.Context, did, sought string, r *schema.ResyncResult) (listing, error) {
	key, err := w.Bluesky.SigningKey(ctx, did)
	if err != nil {
		return nil, err
	}
	var copied Repository
	err = w.Bluesky.Repository(ctx, did, func(mirror string, car []byte) (err error) {
		copied, err = verified(w.read, car, did, key)
		if err == nil && mirror != "" && copied.Rev() < sought {
			err = errors.New("its copy has revision " + copied.Rev() + ", which may be outdated")
		}
		return err
	})
	if errors.Is(err, bluesky.ErrTooLong) {
		r.Rev, err = w.Bluesky.LatestRev(ctx, did)
		return w.Bluesky, err
	}
	if err != nil {
		return nil, err
	}
	r.Rev, r.Data = copied.Rev(), copied.Data()
	return exported{copied}, nil
}

// verified reads a repository. Its error is an unverifiedError.
func verified(read ReadRepository, car []byte, did string, key atcrypto.PublicKey) (Repository, error) {
	copied, err := read(car, did, key)
	if err != nil {
		return nil, &unverifiedError{err}
	}
	return copied, nil
}

// finish ends the job of an account that is synchronized. A process that marks the account
// before the job has ended adds no other job, but locks this one, so the mark is checked
// again after the end.
func (w *ResyncRepo) finish(ctx context.Context, job *river.Job[jobs.ResyncRepo]) error {
	errMarked := errors.New("it was marked meanwhile")
	err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if _, err := river.JobCompleteTx[*riverDriver](ctx, tx, job); err != nil {
			return err
		}
		marked, err := schema.IsDesynchronized(ctx, tx, job.Args.DID)
		if marked {
			err = errMarked
		}
		return err
	})
	if errors.Is(err, errMarked) {
		return Snooze(0)
	}
	return err
}

// end records the result. It returns how long the job has to wait before it runs again,
// or zero if it is complete.
func (w *ResyncRepo) end(ctx context.Context, job *river.Job[jobs.ResyncRepo], r schema.ResyncResult) (wait time.Duration, err error) {
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if wait, err = schema.EndResync(ctx, tx, job.Args.DID, r); err != nil || wait > 0 {
			return err
		}
		_, err := river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	return wait, err
}

// postpone records why an account could not be compared, and waits.
func (w *ResyncRepo) postpone(ctx context.Context, did string, cause error, wait time.Duration) error {
	if err := schema.PostponeResync(ctx, w.Pool, did, cause.Error(), wait); err != nil {
		return err
	}
	return Snooze(wait)
}

// drop ends the job of an account of which nothing is stored any more.
func (w *ResyncRepo) drop(ctx context.Context, job *river.Job[jobs.ResyncRepo]) error {
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := schema.DropResync(ctx, tx, job.Args.DID); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
}
