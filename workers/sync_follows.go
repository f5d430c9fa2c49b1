package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// SyncFollows makes the watched accounts of a watch what its listing says now,
// and has the feeds of new accounts read, in one transaction. It writes only
// after a complete listing: one that fails or breaks off removes nobody. Each
// page and the place behind it are one transaction, so that a long listing is
// read in turns, and a killed worker's goes on at the next page. Working it
// twice changes nothing the second time.
type SyncFollows struct {
	river.WorkerDefaults[jobs.SyncFollows]
	pool   *pgxpool.Pool
	api    *bluesky.Client
	log    *slog.Logger
	window time.Duration // how far back a new account's feed is read

	patience time.Duration // how long to read before others get their turn: less than the job may take
}

// settle is how long after an account is followed its feed is read: by then the
// consumers ask for its posts, and nothing falls between the two.
const settle = 3 * time.Second

// longestSettle is longer than that takes. If a job is to wait longer, the
// database's clock was set back after it was dated.
const longestSettle = 2 * time.Minute

// settled is when that is, of so many new accounts: tens of thousands take a
// second more to share out over the streams.
func settled(now time.Time, accounts int) time.Time {
	return now.Add(settle + time.Duration(accounts/10_000)*time.Second)
}

// secondRead is how long after its first read a new account's feed is read again:
// an AppView may index a post later than the stream brings it, and what was
// written before the consumers asked for it would be in neither.
const secondRead = time.Minute

const (
	maxListing  = 10_000           // pages: a million accounts
	longListing = 10 * time.Minute // one that takes longer is not begun anew before its end
	lostChunk   = 10_000           // rows of lost listings that one statement deletes
)

// listingPlace is how far a listing has been read. Whom it has named are rows in
// the table listing_members.
type listingPlace struct {
	Watch  schema.Watch `json:"watch"`  // as it was when the listing began
	Began  time.Time    `json:"began"`  // when the first page was asked for
	List   string       `json:"list"`   // of a starter pack
	Whom   string       `json:"whom"`   // of the second degree: whose follows are being read; empty: the target's
	Cursor string       `json:"cursor"` // of the next page
	Pages  int          `json:"pages"`  // of whom, or of the watch's own listing
	End    bool         `json:"end"`    // there is nothing more to read
}

// Timeout is longer than the other jobs': half a million accounts are taken over
// in one transaction.
func (w *SyncFollows) Timeout(*river.Job[jobs.SyncFollows]) time.Duration { return 10 * time.Minute }

// Work reads the listing and takes it over.
func (w *SyncFollows) Work(ctx context.Context, job *river.Job[jobs.SyncFollows]) error {
	if job.Args.Watch == 0 {
		return w.every(ctx)
	}
	return resumable(ctx, "read_listing", func(ctx context.Context, at listingPlace) error { return w.read(ctx, job, at) })
}

func (w *SyncFollows) read(ctx context.Context, job *river.Job[jobs.SyncFollows], at listingPlace) error {
	started := time.Now()
	if at.Began.IsZero() {
		watch, err := schema.FindWatch(ctx, w.pool, job.Args.Watch)
		if errors.Is(err, schema.ErrNoRows) {
			jobLog(ctx, w.log).Info("follows_not_synced", "watch", job.Args.Watch, "error", "the watch is gone")
			return nil
		}
		if err != nil {
			return err
		}
		at = listingPlace{Watch: watch, Began: started}
	}
	for whole := false; !whole; {
		if time.Since(started) > w.patience {
			return later(0) // to go on behind whoever waits
		}
		var err error
		if !at.End {
			err = w.page(ctx, job, &at)
		} else {
			whole, err = w.missing(ctx, job.ID, at.Watch.ID)
		}
		if err != nil {
			return w.failed(ctx, job, at, err)
		}
	}
	if err := w.finish(ctx, job, at); err != nil {
		return w.failed(ctx, job, at, err)
	}
	return nil
}

// missing asks about some of the members that the listing does not name: whoever
// is shown has been unfollowed, and whoever is not is hidden, which the stream may
// have told when nobody listened. done is true when there is nobody left to ask
// about.
func (w *SyncFollows) missing(ctx context.Context, job, watch int64) (done bool, err error) {
	dids, err := schema.MissingMembers(ctx, w.pool, job, watch, bluesky.MostProfiles)
	if err != nil || len(dids) == 0 {
		return err == nil, err
	}
	profiles, err := w.api.Profiles(ctx, dids)
	if err != nil {
		return false, err
	}
	shown := make([]string, len(profiles))
	for i, p := range profiles {
		shown[i] = p.DID
	}
	return false, schema.RecordMissingMembers(ctx, w.pool, job, dids, shown)
}

// failed ends a job that could not read a page, or not take the listing over. The
// watch holds the problem: a target that does not exist is no dead letter.
func (w *SyncFollows) failed(ctx context.Context, job *river.Job[jobs.SyncFollows], at listingPlace, err error) error {
	if errors.Is(err, schema.ErrNoRows) {
		jobLog(ctx, w.log).Info("follows_not_synced", "watch", at.Watch.ID, "error", "the watch is gone, was changed, or was read by somebody who began later")
		return schema.DropListing(ctx, w.pool, job.ID)
	}
	rowLog(ctx).Warn("listing_not_read", "watch", at.Watch.ID, "kind", at.Watch.Kind, "target", at.Watch.Target, "whom", at.Whom, "pages", at.Pages, "whole", at.End)
	if noted := schema.RecordWatchProblem(ctx, w.pool, at.Watch, at.Began, err.Error()); noted != nil {
		return errors.Join(err, noted)
	}
	if classify(err) == permanent { // the watch says why: nothing is left to do before the next sync
		jobLog(ctx, w.log).Warn("watch_not_readable", "watch", at.Watch.ID, "kind", at.Watch.Kind, "target", at.Watch.Target, "error", err)
		return schema.DropListing(ctx, w.pool, job.ID)
	}
	return err
}

// page reads one page and commits it with the place behind it.
func (w *SyncFollows) page(ctx context.Context, job *river.Job[jobs.SyncFollows], at *listingPlace) error {
	members, next, err := w.ask(ctx, at)
	unread := at.Whom != "" && refused(err)
	switch {
	case err != nil && !unread:
		return err
	case at.Pages >= maxListing:
		return nonRetryable(fmt.Errorf("the listing has more than %d pages", maxListing))
	}
	place := *at
	place.Cursor = next
	place.Pages++
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := schema.CheckListing(ctx, tx, at.Watch, at.Began); err != nil {
			return err
		}
		var err error
		if unread { // it counts for nobody
			err = schema.UncountFollows(ctx, tx, job.ID, at.Whom)
		} else {
			err = schema.AddListingMembers(ctx, tx, job.ID, at.Whom, members)
		}
		if err == nil && next == "" {
			err = place.turn(ctx, tx, job.ID)
		}
		if err != nil {
			return err
		}
		_, err = river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, place)
		return err
	})
	if err == nil {
		*at = place
	}
	return err
}

// turn goes on to the next listing that there is to read, if there is one.
func (p *listingPlace) turn(ctx context.Context, tx pgx.Tx, job int64) (err error) {
	if p.Watch.Kind == "second-degree" {
		p.Whom, err = schema.NextListingMember(ctx, tx, job, p.Whom)
		p.Pages = 0
	}
	p.End = p.Whom == ""
	return err
}

// finish takes a complete listing over.
func (w *SyncFollows) finish(ctx context.Context, job *river.Job[jobs.SyncFollows], at listingPlace) error {
	var members []schema.Member
	var hidden []string
	var changed schema.MemberChanges
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		var err error
		if at.Watch.Kind == "second-degree" {
			members, err = schema.ListingMembers(ctx, tx, job.ID, 2, at.Watch.AtLeast)
		} else {
			members, err = schema.ListingMembers(ctx, tx, job.ID, 1, 1)
		}
		if err != nil {
			return err
		}
		if hidden, err = schema.HiddenMembers(ctx, tx, job.ID); err != nil {
			return err
		}
		if changed, err = schema.SetMembers(ctx, tx, at.Watch, members, hidden, at.Began); err != nil {
			return err
		}
		priority := jobs.PriorityNewFollow
		if changed.First {
			priority = jobs.PriorityColdStart
		}
		now, err := schema.Now(ctx, tx)
		if err != nil {
			return err
		}
		if err := w.enqueueNew(ctx, tx, at, changed, priority, now); err != nil {
			return err
		}
		if err := schema.DropListing(ctx, tx, job.ID); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	if err == nil {
		jobLog(ctx, w.log).Info("follows_synced", "watch", at.Watch.ID, "kind", at.Watch.Kind, "target", at.Watch.Target, "members", len(members),
			"added", len(changed.Added), "removed", changed.Removed, "hidden", len(hidden))
	}
	return err
}

// enqueueNew has the feeds of new accounts read when the stream brings their
// posts, and once more a while later. Those that something is stored of are
// compared with their repositories: nobody has told of its edits and deletions.
func (w *SyncFollows) enqueueNew(ctx context.Context, tx pgx.Tx, at listingPlace, changed schema.MemberChanges, priority int, now time.Time) error {
	if len(changed.Added) == 0 {
		return nil
	}
	client, first := river.ClientFromContext[pgx.Tx](ctx), settled(now, len(changed.Added))
	since := now.Add(-w.window)
	if own := time.Now().Add(-w.window); own.Before(since) {
		since = own // the database's clock may be ahead
	}
	if _, err := enqueueBackfills(ctx, tx, client, changed.Added, since, priority, first); err != nil {
		return err
	}
	if _, err := enqueueBackfills(ctx, tx, client, changed.Stored, since, jobs.PriorityGap, first); err != nil {
		return err
	}
	again := jobs.RequestBackfill{Watch: at.Watch.ID, Began: at.Began, Since: since, Priority: priority}
	if _, err := client.InsertTx(ctx, tx, again, &river.InsertOpts{ScheduledAt: first.Add(secondRead)}); err != nil {
		return fmt.Errorf("enqueue %s: %w", again.Kind(), err)
	}
	return nil
}

// every adds a job for each watch, and one for each account that a gap waits for
// in vain or that could not be read before.
func (w *SyncFollows) every(ctx context.Context) error {
	for n := lostChunk; n == lostChunk; {
		var err error
		if n, err = schema.DropOrphanedListings(ctx, w.pool, lostChunk); err != nil {
			return err
		}
	}
	for _, find := range []func(context.Context, pgx.Tx) ([]string, time.Time, error){schema.GapAccountsWithoutJob, schema.AccountsToReread} {
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			dids, since, err := find(ctx, tx)
			if err != nil || len(dids) == 0 {
				return err
			}
			_, err = enqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), dids, since.Add(-time.Minute), jobs.PriorityGap, time.Time{})
			return err
		})
		if err != nil {
			return err
		}
	}
	watches, err := schema.DueWatches(ctx, w.pool, time.Now().Add(-longListing))
	if err != nil || len(watches) == 0 {
		return err
	}
	params := make([]river.InsertManyParams, len(watches))
	for i, watch := range watches {
		params[i] = river.InsertManyParams{Args: jobs.SyncFollows{Watch: watch.ID}, InsertOpts: &river.InsertOpts{Tags: []string{watch.Kind}}}
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertMany(ctx, params); err != nil {
		return fmt.Errorf("enqueue %s: %w", jobs.SyncFollows{}.Kind(), err)
	}
	return nil
}

// ask asks for the next page: whom it names, and the cursor behind it; empty:
// there is no more of this listing.
func (w *SyncFollows) ask(ctx context.Context, at *listingPlace) (members []schema.Member, next string, err error) {
	target, err := bluesky.ParseTarget(at.Watch.Target)
	if err != nil {
		return nil, "", nonRetryable(err)
	}
	var profiles []bluesky.Profile
	switch at.Watch.Kind {
	case "account":
		profiles, err = w.account(ctx, at.Watch, target)
		if err == nil && len(profiles) == 0 && at.Watch.Members == 0 {
			err = nonRetryable(fmt.Errorf("there is no account %s", target.Actor))
		}
	case "follows", "second-degree":
		profiles, next, err = w.api.Follows(ctx, cmp.Or(at.Whom, target.Actor), at.Cursor)
	case "starterpack":
		if at.List == "" {
			at.List, err = w.api.StarterPack(ctx, target.URI)
		}
		if err == nil {
			profiles, next, err = w.api.List(ctx, at.List, at.Cursor)
		}
	default:
		profiles, next, err = w.api.List(ctx, target.URI, at.Cursor)
	}
	for _, p := range profiles {
		members = append(members, schema.Member{DID: p.DID, Handle: p.Handle, DisplayName: p.DisplayName, Avatar: p.Avatar})
	}
	return members, next, err
}

// account is the one account of a watch; nobody, where it is not shown. A DID
// needs no AppView to be followed: its profile adds the names only. A later sync
// that fails changes nothing.
func (w *SyncFollows) account(ctx context.Context, watch schema.Watch, target bluesky.Target) ([]bluesky.Profile, error) {
	did := target.Actor
	named := !strings.HasPrefix(did, "did:")
	if named {
		var err error
		if did, err = w.api.ResolveHandle(ctx, did); err != nil {
			return nil, err
		}
	}
	profiles, err := w.api.Profiles(ctx, []string{did})
	if err == nil || named || watch.Members > 0 || classify(err) == notYet || ctx.Err() != nil {
		return profiles, err
	}
	jobLog(ctx, w.log).Warn("followed_without_profile", "watch", watch.ID, "did", did, "error", err)
	return []bluesky.Profile{{DID: did}}, nil
}
