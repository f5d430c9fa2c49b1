package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// SyncFollows sets the members of a watch to its current listing, and enqueues
// backfills of new accounts, in one transaction. Only a complete listing changes
// members: a listing that fails removes no account. Each page and the new position
// are committed in one transaction, so a long listing is read in several turns, and
// a retry continues at the next page. Running the job twice changes nothing.
type SyncFollows struct {
	river.WorkerDefaults[jobs.SyncFollows]
	Shared
	window time.Duration // how far back a new account's feed is read
}

// settle is how long after a follow the account's feed is read. By then the
// consumers have requested its posts, so no post is missed between feed and stream.
const settle = 3 * time.Second

// longestSettle is longer than any such wait. If a job is to wait longer, the
// database's clock was set back after the job was scheduled.
const longestSettle = 2 * time.Minute

// settled returns when the feeds of new accounts are read. Distributing tens of
// thousands of accounts over the streams takes a second more.
func settled(now time.Time, accounts int) time.Time {
	return now.Add(settle + time.Duration(accounts/10_000)*time.Second)
}

// secondRead is how long after its first read a new account's feed is read
// again: an AppView may index a post late, and the stream does not deliver posts
// written before the consumers requested the account.
const secondRead = time.Minute

const (
	maxListing  = 10_000           // pages: a million accounts
	longListing = 10 * time.Minute // after this time a listing may be started again
	lostChunk   = 10_000           // rows of abandoned listings that one statement deletes
)

// listingPlace is the position in a listing. The accounts listed so far are in
// the table listing_members.
type listingPlace struct {
	Watch  schema.Watch `json:"watch"`  // the watch, as it was when the listing began
	Began  time.Time    `json:"began"`  // time of the first request
	List   string       `json:"list"`   // of a starter pack
	Source string       `json:"source"` // for the second degree: the account whose follows are being read; empty: the target
	Cursor string       `json:"cursor"` // of the next page
	Pages  int          `json:"pages"`  // of Source's listing, or of the watch's own
	End    bool         `json:"end"`    // all pages are read
}

// Timeout is long because half a million accounts are stored in one transaction.
func (w *SyncFollows) Timeout(*river.Job[jobs.SyncFollows]) time.Duration { return 10 * time.Minute }

// Work reads the listing and stores it.
func (w *SyncFollows) Work(ctx context.Context, job *river.Job[jobs.SyncFollows]) error {
	if job.Args.Watch == 0 {
		return w.enqueueAll(ctx)
	}
	return Resumable(ctx, "read_listing", func(ctx context.Context, at listingPlace) error { return w.read(ctx, job, at) })
}

func (w *SyncFollows) read(ctx context.Context, job *river.Job[jobs.SyncFollows], at listingPlace) error {
	started := time.Now()
	if at.Began.IsZero() {
		watch, err := schema.FindWatch(ctx, w.Pool, job.Args.Watch)
		if errors.Is(err, schema.ErrNoRows) {
			JobLog(ctx, w.Logger).Info("follow_sync_skipped", "watch", job.Args.Watch, "error", "the watch is gone")
			return nil
		}
		if err != nil {
			return err
		}
		// By the database's clock, which all workers share: if there are two
		// listings, the one that began later is used.
		began, err := schema.Now(ctx, w.Pool)
		if err != nil {
			return err
		}
		at = listingPlace{Watch: watch, Began: began}
	}
	network, target, err := w.Networks.ParseTarget(at.Watch.Target)
	if err != nil {
		return w.failed(ctx, job, at, NonRetryable(err))
	}
	for whole := false; !whole; {
		if time.Since(started) > w.patience() {
			return Snooze(0) // continue behind the waiting jobs
		}
		var err error
		switch {
		case at.End && network != nil:
			whole = true
		case network != nil:
			err = w.fromNetwork(ctx, job, &at, network, target)
		case at.End:
			whole, err = w.missing(ctx, job.ID, at.Watch.ID)
		default:
			err = w.page(ctx, job, &at)
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

// missing looks up some of the members that the listing lacks. A member with a
// profile has been unfollowed. A member without one is hidden; the stream's event
// for that may have been missed. done reports that no member is left to look up.
func (w *SyncFollows) missing(ctx context.Context, job, watch int64) (done bool, err error) {
	dids, err := schema.MissingMembers(ctx, w.Pool, job, watch, bluesky.MostProfiles)
	if err != nil || len(dids) == 0 {
		return err == nil, err
	}
	profiles, err := w.Bluesky.Profiles(ctx, dids)
	if err != nil {
		return false, err
	}
	shown := make([]string, len(profiles))
	for i, p := range profiles {
		shown[i] = p.DID
	}
	return false, schema.RecordMissingMembers(ctx, w.Pool, job, dids, shown)
}

// failed ends a job that could not read a page or store the listing. The watch
// stores the problem: a target that does not exist leaves no dead letter.
func (w *SyncFollows) failed(ctx context.Context, job *river.Job[jobs.SyncFollows], at listingPlace, err error) error {
	if errors.Is(err, schema.ErrNoRows) {
		JobLog(ctx, w.Logger).Info("follow_sync_skipped", "watch", at.Watch.ID, "error",
			"the watch is gone, was changed, or was read by a job that began later")
		return schema.DropListing(ctx, w.Pool, job.ID)
	}
	RowLog(ctx).Warn("listing_failed", "watch", at.Watch.ID, "kind", at.Watch.Kind, "target", at.Watch.Target, "source", at.Source, "pages",
		at.Pages, "whole", at.End)
	if failed := schema.RecordWatchProblem(ctx, w.Pool, at.Watch, at.Began, err.Error()); failed != nil {
		return errors.Join(err, failed)
	}
	if classify(err) == permanent { // the watch stores the error, and the next sync tries again
		JobLog(ctx, w.Logger).Warn("watch_unreadable", "watch", at.Watch.ID, "kind", at.Watch.Kind, "target", at.Watch.Target, "error", err)
		return schema.DropListing(ctx, w.Pool, job.ID)
	}
	return err
}

// page reads one page and commits it with the new position.
func (w *SyncFollows) page(ctx context.Context, job *river.Job[jobs.SyncFollows], at *listingPlace) error {
	members, next, err := w.list(ctx, at)
	unread := at.Source != "" && Refused(err)
	switch {
	case err != nil && !unread:
		return err
	case at.Pages >= maxListing:
		return NonRetryable(fmt.Errorf("the listing has more than %d pages", maxListing))
	}
	place := *at
	place.Cursor = next
	place.Pages++
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := schema.CheckListing(ctx, tx, at.Watch, at.Began); err != nil {
			return err
		}
		var err error
		if unread { // the account's follows do not count
			err = schema.UncountFollows(ctx, tx, job.ID, at.Source)
		} else {
			err = schema.AddListingMembers(ctx, tx, job.ID, at.Source, members)
		}
		if err == nil && next == "" {
			err = place.nextListing(ctx, tx, job.ID)
		}
		if err != nil {
			return err
		}
		crashpoint.At(ctx, "follows: before a page's end")
		_, err = river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, place)
		return err
	})
	if err == nil {
		*at = place
	}
	return err
}

// nextListing moves to the next listing to read, if there is one.
func (p *listingPlace) nextListing(ctx context.Context, tx pgx.Tx, job int64) (err error) {
	if p.Watch.Kind == "second-degree" {
		p.Source, err = schema.NextListingMember(ctx, tx, job, p.Source)
		p.Pages = 0
	}
	p.End = p.Source == ""
	return err
}

// finish stores a complete listing.
func (w *SyncFollows) finish(ctx context.Context, job *river.Job[jobs.SyncFollows], at listingPlace) error {
	var members []schema.Member
	var hidden []string
	var changed schema.MemberChanges
	err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
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
		// Their servers say whether they are deleted.
		if _, err := EnqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), changed.Hidden, at.Began, jobs.PriorityGap,
			time.Time{}); err != nil {
			return err
		}
		if err := w.enqueueNew(ctx, tx, at, changed, priority, now); err != nil {
			return err
		}
		if err := schema.DropListing(ctx, tx, job.ID); err != nil {
			return err
		}
		crashpoint.At(ctx, "follows: before the end")
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	if err == nil {
		JobLog(ctx, w.Logger).Info("follows_synced", "watch", at.Watch.ID, "kind", at.Watch.Kind, "target", at.Watch.Target,
			"members", len(members),
			"added", len(changed.Added), "removed", changed.Removed, "hidden", len(hidden))
	}
	return err
}

// enqueueNew enqueues backfills of new accounts: one when the stream delivers
// their posts, and another a while later. Accounts with stored records are
// compared with their repositories, because edits and deletions were missed
// while they were not followed.
func (w *SyncFollows) enqueueNew(
	ctx context.Context, tx pgx.Tx, at listingPlace, changed schema.MemberChanges, priority int, now time.Time,
) error {
	if len(changed.Added) == 0 {
		return nil
	}
	client, first := river.ClientFromContext[pgx.Tx](ctx), settled(now, len(changed.Added))
	since := now.Add(-w.window)
	if own := time.Now().Add(-w.window); own.Before(since) {
		since = own // the database's clock may be ahead
	}
	if _, err := EnqueueBackfills(ctx, tx, client, changed.Added, since, priority, first); err != nil {
		return err
	}
	if _, err := EnqueueBackfills(ctx, tx, client, changed.Stored, since, jobs.PriorityGap, first); err != nil {
		return err
	}
	again := jobs.RequestBackfill{Watch: at.Watch.ID, Began: at.Began, Since: since, Priority: priority}
	if _, err := client.InsertTx(ctx, tx, again, &river.InsertOpts{ScheduledAt: first.Add(secondRead)}); err != nil {
		return fmt.Errorf("enqueue %s: %w", again.Kind(), err)
	}
	return nil
}

// enqueueAll adds a job for each watch, and a backfill for each account that a
// gap still waits for without a job or that could not be read before.
func (w *SyncFollows) enqueueAll(ctx context.Context) error {
	for n := lostChunk; n == lostChunk; {
		var err error
		if n, err = schema.DropOrphanedListings(ctx, w.Pool, lostChunk); err != nil {
			return err
		}
	}
	for _, find := range []func(context.Context, pgx.Tx) ([]string, time.Time, error){schema.GapAccountsWithoutJob, schema.AccountsToReread} {
		err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
			dids, since, err := find(ctx, tx)
			if err != nil || len(dids) == 0 {
				return err
			}
			_, err = EnqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), dids, since.Add(-time.Minute), jobs.PriorityGap, time.Time{})
			return err
		})
		if err != nil {
			return err
		}
	}
	lost, err := schema.NetworkBackfillsWithoutJob(ctx, w.Pool)
	if err != nil {
		return err
	}
	for _, id := range lost {
		if _, err := river.ClientFromContext[pgx.Tx](ctx).Insert(ctx, jobs.BackfillNetwork{Backfill: id}, nil); err != nil {
			return fmt.Errorf("enqueue %s: %w", jobs.BackfillNetwork{}.Kind(), err)
		}
	}
	watches, err := schema.DueWatches(ctx, w.Pool, time.Now().Add(-longListing))
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

// list reads the next page. It returns the listed accounts and the next cursor;
// an empty cursor ends this listing.
func (w *SyncFollows) list(ctx context.Context, at *listingPlace) (members []schema.Member, next string, err error) {
	target, err := bluesky.ParseTarget(at.Watch.Target)
	if err != nil {
		return nil, "", NonRetryable(err)
	}
	var profiles []bluesky.Profile
	switch at.Watch.Kind {
	case "account":
		profiles, err = w.account(ctx, at.Watch, target)
		if err == nil && len(profiles) == 0 && at.Watch.Members == 0 {
			err = NonRetryable(fmt.Errorf("there is no account %s", target.Actor))
		}
	case "follows", "second-degree":
		profiles, next, err = w.Bluesky.Follows(ctx, cmp.Or(at.Source, target.Actor), at.Cursor)
	case "starterpack":
		if at.List == "" {
			at.List, err = w.Bluesky.StarterPack(ctx, target.URI)
		}
		if err == nil {
			profiles, next, err = w.Bluesky.List(ctx, at.List, at.Cursor)
		}
	default:
		profiles, next, err = w.Bluesky.List(ctx, target.URI, at.Cursor)
	}
	for _, p := range profiles {
		members = append(members, schema.Member{DID: p.DID, Handle: p.Handle, DisplayName: p.DisplayName, Avatar: p.Avatar, Withheld: p.Withheld})
	}
	return members, next, err
}

// account returns the one account of a watch, or nothing if it is hidden. A DID
// can be followed without an AppView: its profile adds only the names. A later
// sync that fails changes nothing.
func (w *SyncFollows) account(ctx context.Context, watch schema.Watch, target bluesky.Target) ([]bluesky.Profile, error) {
	did := target.Actor
	named := !strings.HasPrefix(did, "did:")
	if named {
		var err error
		if did, err = w.Bluesky.ResolveHandle(ctx, did); err != nil {
			return nil, err
		}
	}
	profiles, err := w.Bluesky.Profiles(ctx, []string{did})
	if err == nil || named || watch.Members > 0 || classify(err) == postponed || ctx.Err() != nil {
		return profiles, err
	}
	JobLog(ctx, w.Logger).Warn("followed_without_profile", "watch", watch.ID, "did", did, "error", err)
	return []bluesky.Profile{{DID: did, Withheld: true}}, nil
}
