package workers

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// BackfillRepo reads the past of an account in every collection whose history waits for
// it, newest first, from the account's own server, or from the servers of another network. It lists the
// records, or fetches one copy of the repository if that takes fewer calls. It compares and
// repairs in the same way as after a gap, under the repository's revision, so newer records
// from the stream stay.
//
// Each page is committed with the position after it, in history_accounts: after a killed
// job, the next job of the account continues there. If the account cannot be read, the
// job does not fail. The reason is stored with the account, which is tried again later.
type BackfillRepo struct {
	river.WorkerDefaults[jobs.BackfillRepo]
	Shared
	read   ReadRepository
	limits HistoryLimits
	memory chan struct{} // the token of the repository in memory
}

const (
	copiedFrom    = 3  // from this many collections on, a copy takes fewer calls than listing
	historyTries  = 10 // failed attempts at an account in a run
	historyRetry  = time.Minute
	historyClosed = time.Hour // wait after a server has refused
	longestRetry  = 24 * time.Hour
)

// Work reads the account.
func (w *BackfillRepo) Work(ctx context.Context, job *river.Job[jobs.BackfillRepo]) error {
	histories, err := history.WaitingFor(ctx, w.Pool, job.Args.DID)
	if err != nil || len(histories) == 0 {
		return err
	}
	owner, err := history.FindOwner(ctx, w.Pool, job.Args.DID)
	if err != nil {
		return err
	}
	h := &pastReader{BackfillRepo: w, log: JobLog(ctx, w.Logger).With("did", job.Args.DID), did: job.Args.DID,
		until:   time.Now().Add(w.patience()),
		limited: limited{listing: w.Bluesky, records: w.limits.Records - owner.Records, bytes: w.limits.Bytes - owner.Bytes}}
	for _, a := range histories { // records that have been read already count too
		h.limited.records -= a.Records
		h.limited.bytes -= a.Bytes
	}
	switch {
	case owner.Status == "deleted" || !owner.Wanted:
		return h.drop(ctx, histories)
	case owner.Status != "active": // its server would refuse
		return h.postpone(ctx, histories, errors.New("the account is "+owner.Status), historyClosed, history.Untried)
	}
	if network := w.Networks.Of(job.Args.DID); network != nil {
		return h.fromNetwork(ctx, histories, network)
	}
	reading, cancel := context.WithTimeout(ctx, w.patience()*3/2) // a server that does not respond must not end the job
	defer cancel()
	release, err := h.open(reading, histories)
	if err != nil {
		return h.failed(ctx, histories, err)
	}
	defer release()
	for i, a := range histories {
		err := h.fill(reading, a)
		switch {
		case errors.Is(err, errPatience), errors.Is(err, history.ErrMoved):
			return Snooze(0) // continue behind more urgent jobs, from the stored position
		case Refused(err) && !errors.Is(err, bluesky.ErrGone): // the server may refuse only this collection
			if err := h.failed(ctx, histories[i:i+1], err); err != nil {
				return err
			}
		case err != nil:
			return h.failed(ctx, histories[i:], err)
		}
	}
	return nil
}

// pastReader reads one account.
type pastReader struct {
	*BackfillRepo
	log     *slog.Logger
	did     string
	until   time.Time
	limited limited
	names   map[string][]string // by history: the collections in which the account may have records
	copied  Repository          // nil: the account's server lists the records
	rev     string              // before anything was listed; empty: not read
	dead    bool                // the account's server cannot list anything
}

// errPatience ends an attempt that has used its time. The attempt has not failed.
var errPatience = errors.New("others go first")

// open reads which collections the account has. It fetches the repository if that takes
// fewer calls than listing them.
func (h *pastReader) open(ctx context.Context, histories []history.Account) (release func(), err error) {
	fresh := 0
	h.names, release = map[string][]string{}, func() {}
	if h.Bluesky.Mirrored() && h.read != nil {
		if err := h.latest(ctx); err != nil && bluesky.Classify(err) == bluesky.Transient {
			h.dead = true
			if release, err = h.copy(ctx); err != nil {
				return nil, err
			}
		}
	}
	for _, a := range histories {
		if h.names[a.Collection], err = h.collections(ctx, a.Collection); err != nil {
			release()
			return nil, err
		}
		if a.Position == nil {
			fresh += len(h.names[a.Collection])
		}
	}
	if fresh < copiedFrom || h.read == nil || h.copied != nil {
		return release, nil
	}
	return h.copy(ctx)
}

// collections returns the collections of a history in which the account may have records.
func (h *pastReader) collections(ctx context.Context, of string) ([]string, error) {
	if !strings.HasSuffix(of, "*") {
		return []string{of}, nil
	}
	found, err := h.limited.Collections(ctx, h.did)
	if err != nil {
		return nil, err
	}
	found = slices.DeleteFunc(found, func(name string) bool { return !inHistory(h.Collections, of, name) })
	slices.SortFunc(found, compareNames)
	return found[:min(len(found), mostCollections)], nil
}

// copy fetches the repository, which the account must have signed. If there is no copy,
// the records are listed from the server.
func (h *pastReader) copy(ctx context.Context) (release func(), err error) {
	if taken, err := h.takeMemory(ctx); !taken {
		return func() {}, err
	}
	defer func() {
		if h.copied == nil {
			<-h.memory
			release = func() {}
		}
	}()
	key, err := h.Bluesky.SigningKey(ctx, h.did)
	if err != nil {
		if errors.Is(err, bluesky.ErrGone) {
			return nil, err
		}
		return nil, nil
	}
	fetching, cancel := context.WithTimeout(ctx, h.patience()/2)
	defer cancel()
	var copied Repository
	err = h.Bluesky.Repository(fetching, h.did, func(_ string, car []byte) (err error) {
		copied, err = verified(h.read, car, h.did, key)
		return err
	})
	if _, unverified := errors.AsType[*unverifiedError](err); unverified || err != nil && h.dead {
		return nil, err
	}
	if err != nil { // the repository is too large, the server is too slow, or it does not export repositories
		return nil, nil
	}
	h.copied, h.limited.listing = copied, exported{copied}
	return func() { <-h.memory }, nil
}

// takeMemory takes the token of the repository in memory. If another account has it, an account that can be listed
// instead does without, and one whose server is dead waits.
func (h *pastReader) takeMemory(ctx context.Context) (taken bool, err error) {
	select {
	case h.memory <- struct{}{}:
		return true, nil
	default:
	}
	if !h.dead {
		return false, nil
	}
	select {
	case h.memory <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

// fill reads the collections of one history from the stored position on.
func (h *pastReader) fill(ctx context.Context, a history.Account) error {
	var at repositoryPlace
	if a.Position != nil && h.copied == nil {
		if err := json.Unmarshal(a.Position, &at); err != nil {
			return fmt.Errorf("read the position in %s: %w", h.did, err)
		}
	}
	if at.Collection == "" { // start at the beginning
		h.limited.records, h.limited.bytes = h.limited.records+a.Records, h.limited.bytes+a.Bytes
		a.Records, a.Bytes = 0, 0
	}
	if err := h.begin(ctx, &at); err != nil {
		return err
	}
	names := h.names[a.Collection]
	repo := &repository{Shared: h.Shared, api: &h.limited, did: h.did}
	now, err := schema.EarliestTime(ctx, h.Pool, time.Now()) // retention uses this clock
	if err != nil {
		return err
	}
	for more := at.Collection != "" && !at.End || at.next(names); more; more = !at.End || at.next(names) {
		if h.limited.left() {
			if err := h.page(ctx, repo, &a, &at, now); err != nil {
				return err
			}
		}
		if !h.limited.left() && (!at.End || at.peek(names)) {
			return h.end(ctx, a, true)
		}
		if time.Now().After(h.until) {
			return errPatience
		}
	}
	return h.end(ctx, a, false)
}

// begin reads the revision under which everything is stored, before the first page.
func (h *pastReader) begin(ctx context.Context, at *repositoryPlace) (err error) {
	if at.Rev != "" {
		return nil
	}
	if h.copied != nil {
		at.Rev = h.copied.Rev()
		return nil
	}
	err = h.latest(ctx)
	at.Rev = h.rev
	return err
}

// latest reads the account's revision, once: what changes afterwards has a later one.
func (h *pastReader) latest(ctx context.Context) (err error) {
	if h.rev == "" {
		h.rev, err = h.Bluesky.LatestRev(ctx, h.did)
	}
	return err
}

// page stores the next page with the position after it.
func (h *pastReader) page(ctx context.Context, repo *repository, a *history.Account, at *repositoryPlace, now time.Time) error {
	var ever time.Time
	in, err := repo.span(ctx, at.Collection, ever, ever, now, aboveAll)
	if err != nil {
		return err
	}
	if repo.retention(at.Collection) == 0 { // include keys below the smallest TID
		in.From, in.Since = "", ""
	}
	before := h.limited
	next := *at
	c, err := repo.page(ctx, &next, in)
	if err != nil {
		return err
	}
	moved := *a
	moved.Records += before.records - h.limited.records
	moved.Bytes += before.bytes - h.limited.bytes
	stored := next
	if h.copied != nil { // this copy will be gone, so the next attempt lists from the beginning
		stored = repositoryPlace{}
	}
	if moved.Position, err = json.Marshal(stored); err != nil {
		return fmt.Errorf("store the position in %s: %w", h.did, err)
	}
	err = repo.repair(ctx, river.ClientFromContext[pgx.Tx](ctx), next.Rev, c,
		func(tx pgx.Tx) error { return history.MoveAccount(ctx, tx, moved) })
	if err == nil {
		*a, *at = moved, next
	}
	return err
}

// peek reports whether there is a collection after the current one.
func (p *repositoryPlace) peek(names []string) bool {
	next := *p
	return next.next(names)
}

// inHistory reports whether a collection is read for a history. It must be stored, and
// must not have a history of its own, through its own entry or a longer prefix.
func inHistory(stored collection.Registry, of, name string) bool {
	e, ok := stored.Find(name)
	return ok && (name == of || collection.Match(of, name) && len(e.Pattern) <= len(of))
}

// end records that the account was read.
func (h *pastReader) end(ctx context.Context, a history.Account, limited bool) error {
	if limited {
		h.log.Info("history_limited", "collection", a.Collection, "records", a.Records, "bytes", a.Bytes, "effect",
			"older records of the account are not stored: see WEIR_HISTORY_RECORDS and WEIR_HISTORY_BYTES")
	}
	crashpoint.At(ctx, "history: before an account's end")
	return history.EndAccount(ctx, h.Pool, a, limited)
}

// failed decides when to try an account again that cannot be read.
func (h *pastReader) failed(ctx context.Context, histories []history.Account, err error) error {
	_, api := errors.AsType[*bluesky.Error](err)
	_, unverified := errors.AsType[*unverifiedError](err)
	switch {
	case ctx.Err() == nil && (bluesky.Unsent(err) || !api && errors.Is(err, context.DeadlineExceeded)): // other jobs used the slots first
		return Snooze(0)
	case ctx.Err() != nil || !api && !unverified && !errors.Is(err, bluesky.ErrGone):
		return err
	}
	if errors.Is(err, bluesky.ErrGone) {
		h.log.Info("account_deleted", "error", err)
		if err := h.Fetched().markDeleted(ctx, h.Pool, h.did); err != nil {
			return err
		}
		return h.drop(ctx, histories)
	}
	tries := histories[0].Tries
	switch {
	case bluesky.Classify(err) == bluesky.RateLimited:
		return h.postpone(ctx, histories, err, max(bluesky.RetryAfter(err), historyRetry), history.Untried)
	case Refused(err) || unverified:
		return h.postpone(ctx, histories, err, historyClosed<<min(tries, 10), history.Rejected)
	}
	return h.postpone(ctx, histories, err, historyRetry<<min(2*tries, 20), history.Failed)
}

// postpone records why the account cannot be read, and when to try again. Attempts that
// count eventually end the account's run.
func (h *pastReader) postpone(
	ctx context.Context, histories []history.Account, cause error, wait time.Duration, attempt history.Attempt,
) error {
	h.log.Info("history_postponed", "error", cause)
	for _, a := range histories {
		wait := min(wait, longestRetry)
		if attempt != history.Untried && a.Tries+1 >= historyTries {
			wait = 0
		}
		if err := history.PostponeAccount(ctx, h.Pool, a, cause.Error(), wait, attempt); err != nil {
			return err
		}
	}
	return nil
}

// drop takes the account off its histories.
func (h *pastReader) drop(ctx context.Context, histories []history.Account) error {
	for _, a := range histories {
		if err := history.DropAccount(ctx, h.Pool, a); err != nil {
			return err
		}
	}
	return nil
}

// limited is a listing that ends at a limit.
type limited struct {
	listing
	records, bytes int64 // the rest of the limits
}

// left reports whether more may be read.
func (l *limited) left() bool { return l.records > 0 && l.bytes > 0 }

// Records returns a page, cut off at the limits. The last record may exceed the limit in
// bytes.
func (l *limited) Records(ctx context.Context, did, name, cursor string, limit int) (page []bluesky.FeedPost, next string, err error) {
	page, next, err = l.listing.Records(ctx, did, name, cursor, limit)
	if err != nil {
		return nil, "", err
	}
	for i, p := range page {
		if !l.left() {
			return page[:i], cmp.Or(next, page[i-1].Rkey), nil
		}
		l.records--
		l.bytes -= int64(len(p.Record))
	}
	return page, next, nil
}
