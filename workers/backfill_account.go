package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// BackfillAccount reads an account's feed, newest first, back to a given time. Each
// page's posts, their jobs and the new position are committed in one transaction,
// so a retry continues at the next page. Records that are already stored, newer or
// deleted do not change, so reading a page twice has no effect.
//
// After a gap in the stream a feed is not enough: it shows no deletions, and edits
// are hard to find among many stored posts. The account's repository is then
// compared with the stored records, and the feed is read only if the repository is
// unavailable. A feed contains posts only, so other collections are always compared
// with the repository.
//
// An account of another network is read from its servers.
type BackfillAccount struct {
	river.WorkerDefaults[jobs.BackfillAccount]
	Shared
	fromPDS bool // read the account's PDS instead of the AppView
}

const (
	pagePosts       = 50
	maxPages        = 100
	repositoryTries = 3               // attempts to read an unreachable repository before the feed is read instead
	lateIndexing    = 5 * time.Minute // how late an AppView may show a post, compared with posts written after it

	// repositoryWithin is how long a repository's server may keep rate limiting
	// before the account's feed is read instead.
	repositoryWithin = 3 * time.Hour
)

// feedPlace is the position in a feed.
type feedPlace struct {
	Cursor   string    `json:"cursor"`
	Pages    int       `json:"pages"`
	Posts    int       `json:"posts"` // posts that were new or newer than the stored ones
	Newest   time.Time `json:"newest"`
	Oldest   time.Time `json:"oldest"`   // the time that has been reached
	State    string    `json:"state"`    // initial or poll
	End      bool      `json:"end"`      // there is nothing older
	Requests int       `json:"requests"` // the job's request counter when the first page was read

	Repository repositoryPlace `json:"repository"`
	Unread     string          `json:"unread"` // why the repository could not be compared
}

// restart returns to the top of the feed.
func (p *feedPlace) restart(requests int) {
	*p = feedPlace{Requests: requests, Posts: p.Posts, State: p.State}
}

// Work reads the feed.
func (w *BackfillAccount) Work(ctx context.Context, job *river.Job[jobs.BackfillAccount]) error {
	if network := w.Networks.Of(job.Args.DID); network != nil {
		return w.fromNetwork(ctx, job, network)
	}
	return Resumable(ctx, "read_feed", func(ctx context.Context, at feedPlace) error { return w.read(ctx, job, at) })
}

func (w *BackfillAccount) read(ctx context.Context, job *river.Job[jobs.BackfillAccount], at feedPlace) error {
	feed, err := schema.FindFeed(ctx, w.Pool, job.Args.DID)
	if err != nil {
		return err
	}
	if at.Requests != job.Args.Requests {
		at.restart(job.Args.Requests)
	}
	at.State = "initial"
	if feed.Newest != nil {
		at.State = "poll"
	}
	since := readUntil(job.Args.Since, job.Priority, feed.Newest)
	repo := &repository{Shared: w.Shared, api: w.Bluesky, did: job.Args.DID}
	started := time.Now()
	log := JobLog(ctx, w.Logger).With("did", job.Args.DID, "handle", feed.Handle, "state", at.State)
	for {
		if time.Since(started) > w.patience() {
			return Snooze(0) // continue behind more urgent jobs
		}
		if wait := job.Args.NotBefore.Sub(job.AttemptedAt.Add(time.Since(started))); at.Pages == 0 && wait > 0 && wait < longestSettle {
			return Snooze(wait) // the stream does not deliver the account's records yet
		}
		var err error
		more := true
		switch {
		case at.reads(job.Priority, since, w.Collections.Stores(schema.PostCollection)):
			err = w.page(ctx, job, &at)
		case at.compares(job.Priority, w.Collections):
			err = w.fromRepository(ctx, job, repo, &at)
		default:
			more = false
		}
		if errors.Is(err, bluesky.ErrGone) { // no stream may report it: it may have been deleted in a gap
			log.Info("account_deleted", "error", err)
			if marked := w.Fetched().markDeleted(ctx, w.Pool, job.Args.DID); marked != nil {
				return marked
			}
		}
		switch {
		case Refused(err):
			return w.unavailable(ctx, job, since, feed.RereadsRequested, err)
		case err != nil:
			return err
		case at.Unread != "" && w.fromPDS && job.Priority == jobs.PriorityGap: // the feed would come from the same server
			return w.unavailable(ctx, job, since, feed.RereadsRequested, errors.New(at.Unread))
		case more:
			continue
		}
		wider, err := w.finish(ctx, job, &at, since, feed.Newest)
		if err != nil {
			return err
		}
		if wider.IsZero() {
			level := slog.LevelDebug
			if at.Posts > 0 || at.Repository.Faults > 0 {
				level = slog.LevelInfo
			}
			log.Log(ctx, level, "backfilled", "posts", at.Posts, "pages", at.Pages, "since", since, "truncated", at.Pages >= maxPages && !at.End,
				"compared", at.compared(job.Priority), "repository_pages", at.Repository.Pages, "repaired", at.Repository.Faults)
			return nil
		}
		since = wider // a wider window was requested meanwhile
	}
}

// reads reports whether the next step reads a page of the feed: if the repository
// is not compared, or is unavailable.
func (p *feedPlace) reads(priority int, since time.Time, stored bool) bool {
	wanted := stored && (priority != jobs.PriorityGap || p.Unread != "")
	return wanted && !p.End && p.Pages < maxPages && (p.Oldest.IsZero() || p.Oldest.After(since))
}

// compares reports whether the next step compares a page of the repository.
func (p *feedPlace) compares(priority int, stored collection.Registry) bool {
	wanted := priority == jobs.PriorityGap || !stored.Only(schema.PostCollection)
	return wanted && !p.Repository.Done && p.Unread == ""
}

// compared reports whether the whole repository was compared.
func (p *feedPlace) compared(priority int) bool {
	return priority == jobs.PriorityGap && p.Repository.Done
}

// fromRepository compares a page of the repository. If the repository is
// unavailable, the feed is read instead for now: at once when the server
// refuses, after a few attempts when it is unreachable, and after some hours of
// rate limiting.
func (w *BackfillAccount) fromRepository(ctx context.Context, job *river.Job[jobs.BackfillAccount], repo *repository, at *feedPlace) error {
	feed, err := schema.FindFeed(ctx, w.Pool, job.Args.DID)
	if err != nil {
		return err
	}
	if at.Repository.Rev == "" { // before the revision is requested, so that later rereads stay open; also if no request succeeds
		at.Repository.RereadsRequested = feed.RereadsRequested
	}
	begins := at.Repository.Began.IsZero()
	if begins {
		at.Repository.Began = time.Now()
	}
	requestCtx, cancel := context.WithTimeout(ctx, w.patience()) // a server that does not respond must not end the job
	defer cancel()
	err = w.compareRepository(requestCtx, job, repo, feed, at)
	_, api := errors.AsType[*bluesky.Error](err)
	limited := api && classify(err) == postponed
	if errors.Is(err, bluesky.ErrGone) {
		return err
	}
	if Refused(err) || api && ctx.Err() == nil && classify(err) == retryable && job.Attempt >= repositoryTries ||
		limited && time.Since(at.Repository.Began) > repositoryWithin {
		at.Unread = err.Error()
	}
	if at.Unread == "" && !(limited && begins) {
		return err
	}
	kept := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error { // the attempt's context may have expired
		_, err := river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, *at)
		return err
	})
	if kept != nil || at.Unread != "" {
		return kept
	}
	return err
}

// page reads one page and commits it with the new position.
func (w *BackfillAccount) page(ctx context.Context, job *river.Job[jobs.BackfillAccount], at *feedPlace) error {
	read := w.Bluesky.AuthorFeed
	if w.fromPDS {
		read = func(ctx context.Context, did, cursor string, limit int) ([]bluesky.FeedPost, string, error) {
			return w.Bluesky.Records(ctx, did, schema.PostCollection, cursor, limit)
		}
	}
	posts, next, err := read(ctx, job.Args.DID, at.Cursor, pagePosts)
	if err != nil {
		return err
	}
	now, err := schema.LatestTime(ctx, w.Pool, time.Now())
	if err != nil {
		return err
	}
	place := *at
	place.Cursor, place.End = next, next == ""
	place.Pages++
	var writes []schema.Write
	for _, p := range posts {
		when := feedTime(p, now)
		// The age of a pinned post does not show the position in the feed. A
		// reposted post is old: the time of the repost counts.
		if !p.Pinned && !when.IsZero() && (place.Oldest.IsZero() || when.Before(place.Oldest)) {
			place.Oldest = when
		}
		if p.DID != job.Args.DID || p.Repost || p.Record == nil {
			continue
		}
		if when.IsZero() {
			when = now // the feed does not show its age
		}
		if when.After(place.Newest) {
			place.Newest = when
		}
		writes = append(writes, schema.Write{
			Key: schema.Key{Collection: schema.PostCollection, DID: p.DID, Rkey: p.Rkey}, Rev: schema.ListedRev, CID: p.CID,
			CreatedAt: schema.CreatedAt(p.Record, p.Rkey, schema.ServerTime(when, p.IndexedAt)), Record: p.Record,
		})
	}
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		written, err := w.Fetched().Store(ctx, tx, writes, schema.StoreRecords)
		if err != nil {
			return err
		}
		place.Posts += len(written)
		if err := w.Projections.Enqueue(river.ClientFromContext[pgx.Tx](ctx), "")(ctx, tx, schema.NotFresh(written), time.Time{}); err != nil {
			return err
		}
		crashpoint.At(ctx, "backfill: before a page's end")
		_, err = river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, place)
		return err
	})
	if err == nil {
		*at = place
	}
	return err
}

// feedTime returns the time that places an item in the feed; zero if there is
// none.
func feedTime(p bluesky.FeedPost, now time.Time) time.Time {
	when := p.IndexedAt
	if p.Repost {
		when = p.RepostedAt
	}
	if when.IsZero() { // from a PDS: an rkey that is a TID contains the time
		tid, err := syntax.ParseTID(p.Rkey)
		if err != nil {
			return time.Time{}
		}
		when = tid.Time()
	}
	if when.After(now) {
		return now
	}
	return when
}

// readUntil returns the time to read back to. A new follow of an account that
// was read before needs only newer posts and those that were indexed late. A gap
// or an operator decides for itself.
func readUntil(since time.Time, priority int, newest *time.Time) time.Time {
	if priority >= jobs.PriorityNewFollow && newest != nil && newest.Add(-lateIndexing).After(since) {
		return newest.Add(-lateIndexing)
	}
	return since
}

// finish ends the job and everything that waited for this feed. If an earlier time
// was requested meanwhile, it returns that time instead.
func (w *BackfillAccount) finish(
	ctx context.Context, job *river.Job[jobs.BackfillAccount], at *feedPlace, since time.Time, newest *time.Time,
) (wider time.Time, err error) {
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := schema.LockFeed(ctx, tx, job.Args.DID); err != nil {
			return err
		}
		var now jobs.BackfillAccount
		priority, err := schema.LockJob(ctx, tx, job.ID, &now)
		if err != nil {
			return err
		}
		requested := readUntil(now.Since, priority, newest)
		if requested.Before(since) {
			since = requested
		}
		if now.Requests != at.Requests { // the new request includes posts written since the first page
			at.restart(now.Requests)
			job.Args, job.Priority = now, priority
			wider = since
			return nil
		}
		read, err := schema.Now(ctx, tx)
		if err != nil {
			return err
		}
		r := schema.Reading{
			Since: since, CompleteSince: &since, Newest: at.Newest, Now: read, Compared: at.compared(job.Priority),
			RereadsRequested: at.Repository.RereadsRequested, RetryLater: at.Unread != "",
		}
		if !r.Compared && !at.End && at.Oldest.After(since) {
			r.CompleteSince = &at.Oldest
			r.Problem = fmt.Sprintf("more than %d posts: read back to %s only", maxPages*pagePosts, at.Oldest.UTC().Format(time.RFC3339))
		}
		if at.Repository.Cut {
			r.Problem = strings.TrimPrefix(r.Problem+fmt.Sprintf("; more than %d collections under a prefix: the first ones were compared",
				mostCollections), "; ")
		}
		if err := schema.RecordReading(ctx, tx, job.Args.DID, r); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	return wider, err
}

// unavailable ends the job of an account that cannot be read. The account is
// read when it becomes active again, or when a new backfill is requested.
func (w *BackfillAccount) unavailable(
	ctx context.Context, job *river.Job[jobs.BackfillAccount], since time.Time, rereads int, cause error,
) error {
	err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := schema.LockFeed(ctx, tx, job.Args.DID); err != nil {
			return err
		}
		var now jobs.BackfillAccount // waits for a request that promotes the job meanwhile, or the request finds it ended
		if _, err := schema.LockJob(ctx, tx, job.ID, &now); err != nil {
			return err
		}
		read, err := schema.Now(ctx, tx)
		if err != nil {
			return err
		}
		if now.Since.Before(since) {
			since = now.Since
		}
		if err := schema.RecordReading(ctx, tx, job.Args.DID, schema.Reading{
			Since: since, Now: read, Problem: cause.Error(), RetryLater: true, RereadsRequested: rereads,
			RequestedAgain: now.Requests != job.Args.Requests,
		}); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	if err != nil {
		return fmt.Errorf("record that %s cannot be read: %w", job.Args.DID, err)
	}
	JobLog(ctx, w.Logger).Debug("backfilled", "did", job.Args.DID, "state", "skip", "error", cause)
	return nil
}
