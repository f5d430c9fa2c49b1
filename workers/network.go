package workers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Network is a network whose accounts have no repositories. A feature reads it for the jobs.
type Network interface {
	// Has reports whether an account, by its DID, a collection or a stream is of the network.
	Has(name string) bool
	// Check returns why nothing can be read; nil: servers are configured.
	Check() error

	// ParseTarget parses an account that a user names. ok is false if it is of another network.
	ParseTarget(named string) (t Target, ok bool, err error)
	// LookUp finds the account of a name.
	LookUp(ctx context.Context, name string) (Target, error)
	// Describe reads an account, with the number of its follows if follows is set.
	Describe(ctx context.Context, t Target, follows bool) (string, error)
	// AddHints stores on which servers an account may be found.
	AddHints(ctx context.Context, tx pgx.Tx, t Target) error

	// Listing reads the members of a watch of a kind. store, which may be nil, stores what was read with them.
	Listing(ctx context.Context, t Target, kind string) (members []schema.Member, store func(context.Context, pgx.Tx) error, err error)
	// Backfill stores what an account wrote since a time. An error is the database's, or that of a server if no
	// configured server was read.
	Backfill(ctx context.Context, did string, since time.Time) (Backfilled, error)
	// AccountPast stores events of the past that an account wrote. Its error is as Backfill's.
	AccountPast(ctx context.Context, did string, of Past) (Backfilled, error)
	// Streams returns the names of the streams whose servers have a past.
	Streams() []string
	// StreamPast stores events of the past, newest first, that the server of a stream has. read is how many it sent.
	// The rest begins at the date next; zero: there is none. unread says why the server could not be read. err is the
	// database's error.
	StreamPast(ctx context.Context, stream string, of Past) (found Backfilled, read int, next time.Time, unread, err error)
}

// Target is an account of another network, as a user names it.
type Target struct {
	DID     string // "" if only Name is known
	Text    string // its stored spelling
	Name    string // to be looked up; "": nothing
	Servers []string
}

// Past selects events of the past.
type Past struct {
	Collection   string                       // or a prefix
	Includes     func(collection string) bool // reports whether events are stored; requests to delete always are
	Since, Until time.Time                    // by the authors' dates, inclusive; zero: everything
	Most         int                          // maximum number of events to read from a server
}

// Backfilled is the result of reading an account's events.
type Backfilled struct {
	Written int // records
	Newest  time.Time
	Unread  string    // why configured servers were not read; "": all were read
	Cut     string    // why older events are missing; "": none are missing
	Oldest  time.Time // no events are missing since then
}

// Networks are the networks of a process besides that of repositories.
type Networks []Network

// Of returns the network of an account, by its DID, of a collection or of a stream; nil: that of repositories.
func (n Networks) Of(name string) Network {
	for _, one := range n {
		if one.Has(name) {
			return one
		}
	}
	return nil
}

// ParseTarget parses an account of one of the networks that a user names; nil: it is of none.
func (n Networks) ParseTarget(named string) (of Network, t Target, err error) {
	for _, one := range n {
		if t, ok, err := one.ParseTarget(named); ok || err != nil {
			return one, t, err
		}
	}
	return nil, t, nil
}

// fromNetwork reads the listing of a watch at once. Accounts that are not in it are no longer followed, because no
// server hides accounts from a list.
func (w *SyncFollows) fromNetwork(
	ctx context.Context, job *river.Job[jobs.SyncFollows], at *listingPlace, network Network, t Target,
) error {
	members, store, err := network.Listing(ctx, t, at.Watch.Kind)
	if err != nil {
		return err
	}
	place := *at
	place.Pages, place.End = 1, true
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := schema.CheckListing(ctx, tx, at.Watch, at.Began); err != nil {
			return err
		}
		if store != nil {
			if err := store(ctx, tx); err != nil {
				return err
			}
		}
		if err := schema.AddListingMembers(ctx, tx, job.ID, "", members); err != nil {
			return err
		}
		_, err := river.ResumableSetStepCursorTx[*riverDriver](ctx, tx, job, place)
		return err
	})
	if err == nil {
		*at = place
	}
	return err
}

// fromNetwork reads an account's events: those of all stored collections, and the requests to delete. Servers have
// nothing else to compare with. It does not matter which records are stored already, so a repeated job reads
// everything again. If a configured server cannot be read, the account is read again later.
func (w *BackfillAccount) fromNetwork(ctx context.Context, job *river.Job[jobs.BackfillAccount], network Network) error {
	did := job.Args.DID
	at := feedPlace{State: "relays", End: true}
	for {
		feed, err := schema.FindFeed(ctx, w.Pool, did)
		if err != nil {
			return err
		}
		if wait := job.Args.NotBefore.Sub(*job.AttemptedAt); wait > 0 && wait < longestSettle {
			return Snooze(wait) // the streams do not bring its events yet
		}
		if err := network.Check(); err != nil {
			return w.unavailable(ctx, job, job.Args.Since, feed.RereadsRequested, err)
		}
		at.Requests, at.Repository.RereadsRequested = job.Args.Requests, feed.RereadsRequested
		since := job.Args.Since
		if job.Priority == jobs.PriorityGap && feed.CompleteSince != nil && feed.CompleteSince.Before(since) {
			since = *feed.CompleteSince
		}
		reading, cancel := context.WithTimeout(ctx, w.patience()) // a slow server must not end the job
		read, err := network.Backfill(reading, did, since)
		cancel()
		if err != nil {
			return err
		}
		at.Posts, at.Newest, at.Oldest = at.Posts+read.Written, read.Newest, read.Oldest
		at.Unread, at.End = read.Unread, read.Cut == ""
		if job.Priority == jobs.PriorityGap { // events of the gap may be missing
			at.Unread = cmp.Or(at.Unread, read.Cut)
		}
		at.Repository.Done = at.Unread == ""
		wider, err := w.finish(ctx, job, &at, since, nil)
		if err != nil {
			return err
		}
		if wider.IsZero() {
			level := slog.LevelDebug
			if at.Posts > 0 {
				level = slog.LevelInfo
			}
			JobLog(ctx, w.Logger).Log(ctx, level, "backfilled", "did", did, "handle", feed.Handle, "state", at.State, "posts", at.Posts,
				"since", since,
				"truncated", read.Cut != "", "unread", read.Unread)
			return nil
		}
	}
}

// past selects the events of a history, as far back as they are kept.
func (s *Shared) past(ctx context.Context, of string, most int) (Past, error) {
	past := Past{Collection: of, Most: most, Includes: func(name string) bool { return inHistory(s.Collections, of, name) }}
	e, _ := s.Collections.Find(of)
	if e.Retention == 0 {
		return past, nil
	}
	now, err := schema.EarliestTime(ctx, s.Pool, time.Now()) // retention uses this clock
	past.Since = now.Add(-e.Retention)
	return past, err
}

// readStream reads the server of a stream for a history, some events at a time, and stores the date at which the rest
// begins. A killed job reads the last of them again, which changes nothing.
func (p *historyPass) readStream(ctx context.Context, network Network, l history.Listing) error {
	for time.Now().Before(p.until) {
		past, err := p.past(ctx, l.Collection, streamPage)
		if err != nil {
			return err
		}
		if until, err := strconv.ParseInt(l.Cursor, 10, 64); err == nil {
			past.Until = time.Unix(until, 0)
		}
		reading, cancel := context.WithTimeout(ctx, p.patience()) // a slow server must not end the job
		found, read, next, unread, err := network.StreamPast(reading, l.Name, past)
		cancel()
		if err = cmp.Or(ctx.Err(), err); err != nil {
			return err
		}
		if unread != nil {
			wait := min(historyRetry<<min(2*l.Tries, 20), longestRetry)
			p.log.Warn("relay_past_unread", "collection", l.Collection, "stream", l.Name, "error", unread, "wait", wait)
			if found.Cut = unread.Error(); l.Tries+1 < historyTries && slices.Contains(network.Streams(), l.Name) {
				return history.FailListing(ctx, p.Pool, l, found.Cut, wait, history.Failed)
			}
		}
		l.Cursor = ""
		if !next.IsZero() && !next.Before(past.Since) {
			l.Cursor = strconv.FormatInt(next.Unix(), 10)
		}
		err = history.MoveRelay(ctx, p.Pool, l, read, found.Written, found.Cut)
		if errors.Is(err, history.ErrMoved) { // another process reads the server
			return nil
		}
		if err != nil || l.Cursor == "" {
			return err
		}
		l.Pages, l.Tries = l.Pages+1, 0
	}
	return nil
}

// fromNetwork reads the account's events, for each history.
func (h *pastReader) fromNetwork(ctx context.Context, histories []history.Account, network Network) error {
	if err := network.Check(); err != nil {
		return h.postpone(ctx, histories, err, historyRetry, history.Failed)
	}
	for i, a := range histories {
		found, err := Backfilled{Cut: "the account has reached the limit"}, error(nil)
		if h.limited.records > 0 {
			var past Past
			if past, err = h.past(ctx, a.Collection, int(h.limited.records)); err != nil {
				return err
			}
			reading, cancel := context.WithTimeout(ctx, h.patience()) // a slow server must not end the job
			found, err = network.AccountPast(reading, h.did, past)
			cancel()
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil && found.Unread != "":
			err = errors.New(found.Unread)
		}
		if err != nil {
			return h.postpone(ctx, histories[i:], err, historyRetry<<min(2*a.Tries, 20), history.Failed)
		}
		a.Records = int64(found.Written)
		h.limited.records -= a.Records
		if err := h.end(ctx, a, found.Cut != ""); err != nil {
			return err
		}
	}
	return nil
}
