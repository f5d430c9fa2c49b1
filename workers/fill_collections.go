package workers

import (
	"cmp"
	"context"
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
	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// FillCollections advances the histories of collections. If the whole network is followed,
// relays list the accounts, page by page; otherwise the followed accounts are read. Each
// page is committed with the position after it, so a killed job continues there. Storing a
// page a second time changes nothing.
//
// The accounts wait in history_accounts, and a limited number of them have jobs. Relays
// are asked for more only while few accounts wait.
type FillCollections struct {
	river.WorkerDefaults[jobs.FillCollections]
	Shared
	limits HistoryLimits
	alerts health.Limits // nothing more is read above these
}

// HistoryLimits limit what histories read. Zero fields take the defaults.
type HistoryLimits struct {
	Records int64         // 10,000: per account, over all collections
	Bytes   int64         // 32 MiB: JSON of these records
	Waiting int           // 2,000: accounts from listings that may wait
	Jobs    int           // 32: unfinished jobs; more would look like a backlog
	Settle  time.Duration // 10 s: how long an account must have been followed
	Pause   time.Duration // 2 s: between two passes
	Endless int64         // 10,000: how many more accounts, or empty pages, than expected a listing may have
}

func (l HistoryLimits) withDefaults() HistoryLimits {
	return HistoryLimits{
		Records: cmp.Or(l.Records, 10_000), Bytes: cmp.Or(l.Bytes, 32<<20), Waiting: cmp.Or(l.Waiting, 2000), Jobs: cmp.Or(l.Jobs, 32),
		Settle: cmp.Or(l.Settle, 10*time.Second), Pause: cmp.Or(l.Pause, 2*time.Second),
		Endless: cmp.Or(l.Endless, 10_000),
	}
}

const (
	streamPage     = 2000            // events that the server of a stream is asked for at a time
	listingTries   = 3               // failed attempts at a listing before another relay is asked
	listingPage    = 500             // accounts per page: small enough to stop soon when many wait
	longestListing = 5 * time.Minute // wait between two attempts
)

// Work makes one pass over the histories, and runs again soon while there is more to do.
func (w *FillCollections) Work(ctx context.Context, job *river.Job[jobs.FillCollections]) error {
	p := &historyPass{FillCollections: w, log: JobLog(ctx, w.Logger), until: time.Now().Add(w.patience() / 2)}
	if err := p.read(ctx); err != nil {
		return err
	}
	runs, err := history.Runs(ctx, w.Pool)
	if err != nil {
		return err
	}
	unfinished := false
	for i := range runs {
		soon, err := p.visit(ctx, &runs[i])
		if err != nil {
			return err
		}
		unfinished = unfinished || soon
	}
	waiting, err := p.enqueue(ctx)
	if err != nil {
		return err
	}
	unfinished = unfinished || waiting > 0
	for _, h := range runs {
		more, err := p.complete(ctx, h)
		if err != nil {
			return err
		}
		unfinished = unfinished || more
	}
	switch {
	case p.full != "": // the job of the next minute tries again
		return nil
	case !unfinished:
		idle, err := CompleteIdle(ctx, w.Pool, job, func(ctx context.Context, db pgx.Tx) (bool, error) {
			now, err := history.Runs(ctx, db)
			return !slices.ContainsFunc(now, func(h history.Run) bool { return !h.Complete && !slices.Contains(runs, h) }), err
		})
		if err != nil || idle {
			return err
		}
	case job.Args.Once:
		_, err := river.ClientFromContext[pgx.Tx](ctx).Insert(ctx, jobs.FillCollections{}, nil)
		return err
	}
	return Snooze(w.limits.Pause)
}

// visit advances a run. soon: there is more to do in a moment.
func (p *historyPass) visit(ctx context.Context, h *history.Run) (soon bool, err error) {
	problem, err := p.run(ctx, h)
	if err != nil {
		return false, err
	}
	return !h.Complete && (problem == "" || h.Stored && !h.Began), history.SetProblem(ctx, p.Pool, *h, problem)
}

// errUnlisted means that the last accounts of a history had collections that were not
// known before.
var errUnlisted = errors.New("some collections have not been requested from any relay")

// complete ends a run if all its accounts have been read. more: the accounts had
// collections for which relays must be asked.
func (p *historyPass) complete(ctx context.Context, h history.Run) (more bool, err error) {
	if !h.Began || h.Complete {
		return false, nil
	}
	var done history.History
	ended := false
	err = pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		if done, ended, err = history.CompleteRun(ctx, tx, h, history.Listed(p.everyone)); err != nil || !ended || !p.everyone {
			return err
		}
		names, err := p.names(ctx, tx, h.Collection) // after the check that no account waits
		if err != nil {
			return err
		}
		if err := history.AddNames(ctx, tx, h.Collection, h.Run, names); err != nil {
			return err
		}
		open, err := history.OpenListings(ctx, tx, h)
		if err == nil && len(open) > 0 {
			err = errUnlisted
		}
		return err
	})
	switch {
	case errors.Is(err, errUnlisted):
		return true, nil
	case err == nil && ended:
		p.log.Info("collection_filled", "collection", h.Collection, "accounts", done.Accounts, "records", done.Records, "bytes", done.Bytes,
			"unread", done.Unread, "limited", done.Limited)
	}
	return false, err
}

// begin begins a run if a stream stores the collection, and returns why it cannot.
func (w *FillCollections) begin(ctx context.Context, h *history.Run) (problem string, err error) {
	switch {
	case !Covers(w.Collections, h.Collection):
		return "WEIR_COLLECTIONS of the workers does not name it", nil
	case h.Began:
		return "", nil
	case !h.Streamed:
		return "no stream stores it yet", nil
	}
	if err := history.BeginRun(ctx, w.Pool, *h); err != nil {
		return "", err
	}
	JobLog(ctx, w.Logger).Info("history_begun", "collection", h.Collection, "run", h.Run)
	h.Began = true
	return "", nil
}

// Covers reports whether a collection is stored, or everything under a prefix.
func Covers(stored collection.Registry, name string) bool {
	if !strings.HasSuffix(name, "*") {
		return stored.Stores(name)
	}
	return slices.ContainsFunc(stored.Prefixes(), func(prefix string) bool { return collection.Match(prefix, name) })
}

// historyPass is one pass.
type historyPass struct {
	*FillCollections
	log      *slog.Logger
	until    time.Time
	everyone bool
	full     string // why no more may be read for now; empty: more may be read
}

// read reads the state that every history depends on. It also makes accounts wait again
// that could not be read and are due.
func (p *historyPass) read(ctx context.Context) (err error) {
	if p.everyone, err = schema.FollowsEveryone(ctx, p.Pool); err != nil {
		return err
	}
	if p.full, err = p.obstacle(ctx, p.alerts); err != nil {
		return err
	}
	return history.RetryAccounts(ctx, p.Pool, p.limits.Waiting)
}

// obstacle returns why no more may be read for now: a queue or the database is too full.
func (s Shared) obstacle(ctx context.Context, limits health.Limits) (string, error) {
	if limits.Bytes > 0 {
		size, err := schema.DatabaseBytes(ctx, s.Pool)
		if err != nil || size > limits.Bytes {
			return "the database is larger than WEIR_DATABASE_LIMIT", err
		}
	}
	if limits.Jobs <= 0 {
		return "", nil
	}
	most := int(limits.Jobs / 2)
	depth, err := schema.DeepestQueue(ctx, s.Pool, s.Projections.AllQueues(), most+1)
	if err == nil && depth > most { // at the limit itself, the stream would be paused
		return "the projections are behind", nil
	}
	return "", err
}

// run begins a history and finds accounts for it. It returns why it makes no progress.
func (p *historyPass) run(ctx context.Context, h *history.Run) (problem string, err error) {
	if problem, err = p.begin(ctx, h); err != nil || problem != "" {
		return problem, err
	}
	if !h.Complete {
		problem = p.full
	}
	switch {
	case p.full != "":
		return problem, nil
	case p.everyone:
		return p.advance(ctx, *h)
	}
	return "", pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		_, err := history.AddFollowed(ctx, tx, *h, p.limits.Settle, insertChunk)
		return err
	})
}

// advance finds accounts of a history. It is for a Weir that follows the whole network.
func (p *historyPass) advance(ctx context.Context, h history.Run) (problem string, err error) {
	names, err := p.names(ctx, p.Pool, h.Collection)
	network := p.Networks.Of(h.Collection)
	switch {
	case err != nil:
		return "", err
	case len(names) == 0 && network != nil:
		return network.Check().Error(), nil
	case len(names) == 0:
		return "no collection under the prefix is known yet: request one with weir backfill add --collection", nil
	case len(p.Bluesky.Relays()) == 0 && network == nil:
		return "no relay is configured that names the accounts: see WEIR_RELAYS", nil
	}
	if err := history.AddNames(ctx, p.Pool, h.Collection, h.Run, names); err != nil {
		return "", err
	}
	listings, err := history.OpenListings(ctx, p.Pool, h)
	if err != nil {
		return "", err
	}
	for _, l := range listings {
		if network != nil {
			err = p.readStream(ctx, network, l)
		} else {
			err = p.list(ctx, l)
		}
		if err != nil {
			return "", err
		}
	}
	return "", nil
}

// names returns the collections that relays are asked for; of another network, the streams whose
// servers are asked for events. Under a prefix of repositories these are the
// collections with stored records: first those from the stream, then those from the
// repositories that are read. Earlier runs may have known others.
func (p *historyPass) names(ctx context.Context, db schema.DB, of string) ([]string, error) {
	if network := p.Networks.Of(of); network != nil {
		return network.Streams(), nil
	}
	prefix, ok := strings.CutSuffix(of, "*")
	if !ok {
		return []string{of}, nil
	}
	names, err := history.Names(ctx, db, of)
	if err != nil {
		return nil, err
	}
	found, err := schema.CollectionsUnder(ctx, db, prefix, history.MaxNames)
	if err != nil {
		return nil, err
	}
	names = append(append(names, found...), schema.PostCollection) // posts are in another table
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return !inHistory(p.Collections, of, name) }), nil
}

// list stores pages of a listing while more accounts may wait. It records the failure of a
// relay; the next pass tries again.
func (p *historyPass) list(ctx context.Context, l history.Listing) error {
	for time.Now().Before(p.until) {
		queue, err := history.ReadQueue(ctx, p.Pool, p.limits.Waiting)
		if err != nil || queue.Waiting >= p.limits.Waiting {
			return err
		}
		relay := p.relay(l.Host)
		if relay != l.Host {
			l.Cursor = ""
		}
		dids, next, err := p.accounts(ctx, relay, l)
		if err == nil && next != "" && p.endless(l) {
			err = fmt.Errorf("%s names the accounts of %s again and again: %d so far, on %d pages", relay, l.Name, l.Seen, l.Pages)
		}
		if err != nil {
			if ctx.Err() != nil || bluesky.Unsent(err) {
				return ctx.Err()
			}
			return p.failed(ctx, l, relay, err)
		}
		added := int64(0)
		err = pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
			added, err = history.MoveListing(ctx, tx, l, relay, next, dids)
			return err
		})
		if errors.Is(err, history.ErrMoved) { // another process advances the listing
			return nil
		}
		if err != nil {
			return err
		}
		if next == "" {
			p.log.Info("accounts_listed", "collection", l.Name, "relay", relay, "pages", l.Pages+1, "accounts", l.Seen+int64(len(dids)))
			return nil
		}
		l.Host, l.Cursor, l.Pages, l.Seen, l.Known, l.Tries = relay, next, l.Pages+1, l.Seen+int64(len(dids)), l.Known+added, 0
	}
	return nil
}

// accounts requests the next page. A relay that does not respond must not end the job.
func (p *historyPass) accounts(ctx context.Context, relay string, l history.Listing) (dids []string, next string, err error) {
	ctx, cancel := context.WithTimeout(ctx, p.patience())
	defer cancel()
	return p.Bluesky.AccountsWith(ctx, relay, l.Name, l.Cursor, min(listingPage, p.limits.Waiting))
}

// endless reports whether a listing has returned far more accounts than the collection
// has, or far too many pages for its accounts.
func (p *historyPass) endless(l history.Listing) bool {
	return l.Seen > 2*l.Known+p.limits.Endless || l.Pages > l.Seen+p.limits.Endless
}

// relay returns the relay to ask: the one that returned the cursor, if it is still
// configured.
func (p *historyPass) relay(host string) string {
	relays := p.Bluesky.Relays()
	if slices.Contains(relays, host) {
		return host
	}
	return relays[0]
}

// failed records that a relay failed. If it refuses, or fails several times, the next
// relay is asked. That listing starts at the beginning, because a cursor is valid for one
// relay.
func (p *historyPass) failed(ctx context.Context, l history.Listing, relay string, cause error) error {
	_, api := errors.AsType[*bluesky.Error](cause)
	wait := min(time.Second<<min(l.Tries, 10), longestListing)
	if bluesky.Classify(cause) == bluesky.RateLimited {
		wait = max(wait, bluesky.RetryAfter(cause))
	}
	attempt, rejected := history.Failed, !api || Refused(cause)
	if l.Host = relay; rejected || (l.Tries+1)%listingTries == 0 {
		relays := p.Bluesky.Relays()
		l.Host = relays[(slices.Index(relays, relay)+1)%len(relays)]
		if rejected || l.Host != relay { // a single relay may continue at its cursor
			attempt = history.Rejected
		}
	}
	p.log.Warn("account_listing_failed", "collection", l.Name, "relay", relay, "error", cause, "next", l.Host, "wait", wait)
	return history.FailListing(ctx, p.Pool, l, cause.Error(), wait, attempt)
}

// enqueue adds jobs for accounts that wait, while few have one and no other backfill
// waits. It adds a lost job again. It returns how many accounts wait.
func (p *historyPass) enqueue(ctx context.Context) (waiting int, err error) {
	queue, err := history.ReadQueue(ctx, p.Pool, p.limits.Jobs)
	room := p.limits.Jobs - queue.Jobs
	if err != nil || queue.Waiting == 0 || room <= 0 || queue.Others || p.full != "" {
		return queue.Waiting, err
	}
	err = pgx.BeginFunc(ctx, p.Pool, func(tx pgx.Tx) error {
		dids, err := history.AccountsWithoutJob(ctx, tx, room)
		if err != nil || len(dids) == 0 {
			return err
		}
		params := make([]river.InsertManyParams, len(dids))
		for i, did := range dids {
			params[i].Args = jobs.BackfillRepo{DID: did}
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertManyTx(ctx, tx, params); err != nil {
			return fmt.Errorf("enqueue %s: %w", jobs.BackfillRepo{}.Kind(), err)
		}
		return nil
	})
	return queue.Waiting, err
}
