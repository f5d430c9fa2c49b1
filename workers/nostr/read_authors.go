package nostr

import (
	"context"
	"errors"
	"math"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/nostr/wellknown"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// ReadAuthors reads the newest profile and relay list of each followed Nostr account, and
// stores those that are newer than the stored ones. A name that a profile claims becomes the
// account's handle only when the name's domain confirms it. Running the job twice changes
// nothing.
type ReadAuthors struct {
	river.WorkerDefaults[ReadAuthorsArgs]
	*relays
	window time.Duration // how far back an account's events are read from a relay that it newly names

	patience time.Duration
}

const (
	authorsPage   = 250             // accounts per request
	authorsAgain  = 6 * time.Hour   // how often a profile is read again
	namesAgain    = 24 * time.Hour  // how often a domain is asked again for a name
	namesPage     = 40              // names per attempt
	namesAtOnce   = 8               // domains asked at once
	authorRelays  = 4               // how many of an author's relays are used: lists have two to four
	forgetAuthors = 1000            // rows of unwatched accounts that one job deletes
	longestName   = 100             // characters of a display name
	longestAvatar = 2048            // bytes of the address of a picture
	forgetAfter   = 2 * time.Minute // longer than a watch has no members while it is read
)

// Work reads pages until no account is due, then asks domains.
func (w *ReadAuthors) Work(ctx context.Context, _ *river.Job[ReadAuthorsArgs]) error {
	if err := w.Check(); err != nil {
		return workers.NonRetryable(err) // a process with configured relays added it
	}
	started := time.Now()
	for time.Since(started) < w.patience {
		n, err := w.page(ctx)
		if err != nil {
			return err
		}
		if n < authorsPage {
			break
		}
	}
	if err := w.checkNames(ctx); err != nil {
		return err
	}
	now, err := schema.Now(ctx, w.Pool)
	if err != nil {
		return err
	}
	owners, err := w.owners(ctx)
	if err != nil {
		return err
	}
	_, err = directory.ForgetAuthors(ctx, w.Pool, owners, now.Add(-forgetAfter), forgetAuthors)
	return err
}

// owners returns the accounts that are the targets of watches.
func (w *ReadAuthors) owners(ctx context.Context) (dids []string, err error) {
	targets, err := schema.WatchTargets(ctx, w.Pool, math.MaxInt32)
	for _, text := range targets {
		if t, ok, err := w.ParseTarget(text); ok && err == nil && t.DID != "" {
			dids = append(dids, t.DID)
		}
	}
	return dids, err
}

// page reads the lists of some accounts, and returns how many accounts it read.
func (w *ReadAuthors) page(ctx context.Context) (int, error) {
	now, err := schema.Now(ctx, w.Pool)
	if err != nil {
		return 0, err
	}
	dids, err := directory.UnreadAuthors(ctx, w.Pool, now.Add(-authorsAgain), authorsPage)
	if err != nil || len(dids) == 0 {
		return 0, err
	}
	lists := make([]directory.AuthorLists, 0, len(dids))
	at := make(map[[32]byte]int, len(dids))
	keys := make([][32]byte, 0, len(dids))
	for _, did := range dids {
		if key, ok := nostr.ParseDID(did); ok {
			at[key] = len(lists)
			keys, lists = append(keys, key), append(lists, directory.AuthorLists{DID: did})
		}
	}
	further, err := directory.ServingRelaysOf(ctx, w.Pool, dids)
	if err != nil {
		return 0, err
	}
	found, unread, err := w.Latest(ctx, further, []int{nostr.KindProfile, nostr.KindRelays}, keys)
	if err != nil {
		return 0, err
	}
	if len(unread) > 0 {
		workers.JobLog(ctx, w.Log).Info("relays_unread", "accounts", len(dids), "error", errors.Join(unread...))
	}
	for _, e := range found {
		addList(&lists[at[e.PubKey]], e)
	}
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		moved, err := directory.StoreAuthors(ctx, tx, lists, now)
		if err != nil || len(moved) == 0 {
			return err
		}
		// Relays that are read from now on do not return what these accounts wrote to them
		// before.
		_, err = workers.EnqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), moved, now.Add(-w.window), jobs.PriorityColdStart,
			time.Time{})
		return err
	})
	return len(dids), err
}

// addList adds the content of an event.
func addList(l *directory.AuthorLists, e *nostr.Event) {
	rev := nostr.Revision(e.CreatedAt, e.ID)
	switch e.Kind {
	case nostr.KindRelays:
		l.RelaysRev, l.Relays = rev, e.WriteRelays(authorRelays)
	case nostr.KindProfile:
		p, _ := e.Profile() // a profile that cannot be read has no fields
		l.ProfileRev, l.DisplayName, l.Avatar, l.Name = rev, shownName(p.Name), picture(p.Picture), p.Name05
	}
}

// shownName returns a name on one line, without invisible characters.
func shownName(s string) string {
	s = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case r == unicode.ReplacementChar, !unicode.IsPrint(r) && r != '\u200d': // which joins emoji
			return -1
		}
		return r
	}, s)), " ")
	if runes := []rune(s); len(runes) > longestName {
		return string(runes[:longestName])
	}
	return s
}

// picture returns the address of a picture, or "" if s is not such an address.
func picture(s string) string {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || len(s) > longestAvatar {
		return ""
	}
	return u.String()
}

// checkNames asks the domains of some names.
func (w *ReadAuthors) checkNames(ctx context.Context) error {
	now, err := schema.Now(ctx, w.Pool)
	if err != nil {
		return err
	}
	names, err := directory.UncheckedNames(ctx, w.Pool, now.Add(-namesAgain), namesPage)
	if err != nil || len(names) == 0 {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	var g errgroup.Group
	g.SetLimit(namesAtOnce)
	var mu sync.Mutex
	var failed []error
	for _, n := range names {
		g.Go(func() error {
			found, err := w.names.LookUp(asking, n.Name)
			if asking.Err() != nil {
				return nil // the domain was not asked
			}
			check := directory.Denied
			if _, denied := errors.AsType[*wellknown.Denied](err); err != nil && !denied {
				check = directory.Unasked
			} else if err == nil && nostr.DID(found.Key) == n.DID {
				check = directory.Confirmed
			}
			err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error { return directory.RecordName(ctx, tx, n, check, now) })
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
			return nil
		})
	}
	g.Wait() // the goroutines return no error
	return errors.Join(failed...)
}
