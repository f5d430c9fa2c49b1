package workers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Auditor compares what is stored with the accounts' own repositories. It does
// not ask the stream how far it is: what is not there a minute later is missing.
type Auditor struct {
	Pool   *pgxpool.Pool
	API    *bluesky.Client
	Client *river.Client[pgx.Tx] // enqueues the processing of what was repaired
	Log    *slog.Logger

	Projections *Projections // of what was repaired

	Accounts    int                 // how many, by chance; 0: all
	Window      time.Duration       // how far back, for rkeys that say when their records were written
	Collections collection.Registry // what is stored, and for how long: nothing older is missed; empty: posts, for ever
	Settle      time.Duration       // how long a fault has to last: what is on its way is none
	Repair      bool
}

const (
	inFlight      = time.Minute // records younger than this may be on their way
	auditedAtOnce = 4           // accounts
	everyAccount  = 1_000_000
)

// Audit reads repositories, compares, looks again at what differs after a while,
// repairs what still does where that is wanted, and writes down what it came to.
func (a *Auditor) Audit(ctx context.Context) (schema.Audit, []schema.Fault, error) {
	now := time.Now()
	sum := schema.Audit{Started: now, Repaired: a.Repair}
	sample, pending, err := schema.AuditSample(ctx, a.Pool, cmp.Or(a.Accounts, everyAccount))
	if err != nil {
		return sum, nil, err
	}
	sum.Accounts, sum.Pending = len(sample), pending
	audits := make([]*accountAudit, len(sample))
	for i, s := range sample {
		audits[i] = &accountAudit{Auditor: a, did: s.DID, from: now.Add(-a.Window), to: now.Add(-inFlight)}
		if s.Since.After(audits[i].from) {
			audits[i].from = s.Since
		}
	}
	if err := each(ctx, audits, (*accountAudit).look); err != nil {
		return sum, nil, err
	}
	suspects := slices.DeleteFunc(slices.Clone(audits), func(x *accountAudit) bool { return len(x.faults) == 0 || x.failure != "" })
	if len(suspects) > 0 {
		if err := sleep(ctx, a.Settle); err != nil {
			return sum, nil, err
		}
		if err := each(ctx, suspects, (*accountAudit).lookAgain); err != nil {
			return sum, nil, err
		}
	}
	faults := tally(&sum, audits)
	sum.Ended = time.Now()
	err = pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error { return schema.StoreAudit(ctx, tx, sum, faults) })
	if err == nil {
		a.Log.Info("audited", "accounts", sum.Accounts, "failures", sum.Failures, "pending", sum.Pending, "records", sum.Records, "missing", sum.Missing, "extra", sum.Extra, "stale", sum.Stale, "repaired", sum.Repaired)
	}
	return sum, faults, err
}

// each does something to several accounts at once. Only what is not an account's
// own fault ends it.
func each(ctx context.Context, all []*accountAudit, do func(*accountAudit, context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(auditedAtOnce)
	for _, x := range all {
		g.Go(func() error {
			err := do(x, ctx)
			if _, api := errors.AsType[*bluesky.Error](err); api && ctx.Err() == nil {
				x.failure = err.Error()
				return nil
			}
			return err
		})
	}
	return g.Wait()
}

// tally adds up what the accounts came to.
func tally(sum *schema.Audit, audits []*accountAudit) (faults []schema.Fault) {
	for _, x := range audits {
		if x.failure != "" {
			sum.Failures++
			faults = append(faults, schema.Fault{DID: x.did, Fault: schema.FaultUnread, Detail: x.failure})
			continue
		}
		if !x.from.Before(x.to) { // nothing of it is claimed yet
			sum.Accounts--
			sum.Pending++
			continue
		}
		sum.Records += x.records
		sum.Compared = append(sum.Compared, schema.Compared{DID: x.did, From: x.from, To: x.to, Records: x.records})
		sum.From, sum.To = earliest(sum.From, x.from), latest(sum.To, x.to)
		for _, f := range x.faults {
			switch f.Fault {
			case schema.FaultMissing:
				sum.Missing++
			case schema.FaultExtra:
				sum.Extra++
				sum.Records++
			case schema.FaultStale:
				sum.Stale++
			}
		}
		faults = append(faults, x.faults...)
	}
	if sum.Records > 0 {
		score := 1 - float64(sum.Missing+sum.Extra+sum.Stale)/float64(sum.Records)
		sum.Score = &score
	}
	return faults
}

// accountAudit is the audit of one account. Its methods are for one goroutine
// at a time.
type accountAudit struct {
	*Auditor
	did      string
	from, to time.Time
	claimed  time.Time // from, before posts expired; zero: not compared yet

	records int
	faults  []schema.Fault
	failure string // why it could not be compared
}

// look compares once.
func (x *accountAudit) look(ctx context.Context) error {
	return x.compare(ctx, func(context.Context, compared) error { return nil })
}

// lookAgain keeps the faults that are still there, and has them repaired. The
// repository's revision is asked for before its posts.
func (x *accountAudit) lookAgain(ctx context.Context) error {
	before := map[schema.Fault]bool{}
	for _, f := range x.faults {
		before[sameFault(f)] = true
	}
	rev := ""
	if x.Repair {
		var err error
		if rev, err = x.API.LatestRev(ctx, x.did); err != nil {
			return err
		}
	}
	var faults []schema.Fault
	err := x.compare(ctx, func(ctx context.Context, c compared) error {
		c.faults = slices.DeleteFunc(c.faults, func(f schema.Fault) bool { return !before[sameFault(f)] })
		faults = append(faults, c.faults...)
		if !x.Repair || len(c.faults) == 0 {
			return nil
		}
		return x.repository().repair(ctx, x.Client, rev, c, nil)
	})
	x.faults = faults
	return err
}

// sameFault is what is the same of a fault that two looks see.
func sameFault(f schema.Fault) schema.Fault {
	return schema.Fault{Collection: f.Collection, Rkey: f.Rkey, Fault: f.Fault}
}

func (x *accountAudit) repository() *repository {
	stored := x.Collections
	if stored.Empty() {
		stored = collection.Of(collection.Entry{Pattern: schema.PostCollection})
	}
	return &repository{pool: x.Pool, api: x.API, did: x.did, stored: stored, projections: x.Projections}
}

// compare lists the repository, and compares each page with what is stored, as
// far as that does not expire meanwhile.
func (x *accountAudit) compare(ctx context.Context, found func(context.Context, compared) error) error {
	x.records, x.faults = 0, nil
	repo, now := x.repository(), time.Now()
	if x.claimed.IsZero() {
		x.claimed = x.from
	}
	if repo.stored.Stores(schema.PostCollection) {
		x.from = notExpired(x.claimed, repo.retention(schema.PostCollection), now)
	}
	if !x.from.Before(x.to) {
		return nil
	}
	names, err := repo.collections(ctx)
	if err != nil {
		return err
	}
	var at repositoryPlace
	for more := at.next(names); more; more = !at.End || at.next(names) {
		c, err := repo.page(ctx, &at, repo.span(at.Collection, x.claimed, now, tidAt(x.to)))
		if err != nil {
			return err
		}
		if repo.retention(c.collection) > 0 { // who knows whether they have expired
			c.faults = slices.DeleteFunc(c.faults, func(f schema.Fault) bool { return f.Fault == schema.FaultMissing && !isTID(f.Rkey) })
		}
		x.records += c.records
		x.faults = append(x.faults, c.faults...)
		if err := found(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func earliest(a *time.Time, b time.Time) *time.Time {
	if a != nil && a.Before(b) {
		return a
	}
	return &b
}

func latest(a *time.Time, b time.Time) *time.Time {
	if a != nil && a.After(b) {
		return a
	}
	return &b
}

// Audit makes an audit when the last one is old enough. Working it twice makes
// one: the second finds it made.
type Audit struct {
	river.WorkerDefaults[jobs.Audit]
	auditor Auditor
	every   time.Duration
}

// Timeout lets it end by itself: it waits, and other people's servers take their
// time.
func (w *Audit) Timeout(*river.Job[jobs.Audit]) time.Duration { return time.Hour }

// Work makes the audit.
func (w *Audit) Work(ctx context.Context, _ *river.Job[jobs.Audit]) error {
	last, err := schema.LastAudit(ctx, w.auditor.Pool)
	if ago := time.Since(last.Ended); err == nil && 0 <= ago && ago < w.every-time.Minute {
		rowLog(ctx).Info("audit_not_due", "last", last.Ended, "every", w.every)
		return nil
	}
	if err != nil && !errors.Is(err, schema.ErrNoRows) {
		return err
	}
	auditor := w.auditor
	auditor.Log = jobLog(ctx, auditor.Log)
	auditor.Client = river.ClientFromContext[pgx.Tx](ctx)
	_, _, err = auditor.Audit(ctx)
	return err
}
