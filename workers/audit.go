package workers

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Auditor compares the stored records with the accounts' repositories. It does
// not read the stream's position: a record that is older than a minute and not
// stored is missing.
type Auditor struct {
	Shared                         // without Collections: posts, kept for ever
	Client   *river.Client[pgx.Tx] // enqueues the projection of repaired records
	Accounts int                   // size of the random sample; 0: all
	Window   time.Duration         // how far back to compare records whose rkeys are TIDs
	Settle   time.Duration         // how long a difference must last before it is a fault
	Repair   bool
}

const (
	inFlight         = time.Minute // younger records may still be in flight
	auditConcurrency = 4           // accounts compared at once
	everyAccount     = 1_000_000
)

// Audit compares a sample of accounts, waits, compares those that differ again,
// repairs the remaining faults if Repair is set, and stores the result.
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
		audits[i] = &accountAudit{Auditor: a, did: s.DID, since: s.Since, from: now.Add(-a.Window), to: now.Add(-inFlight)}
		if s.Since.After(audits[i].from) {
			audits[i].from = s.Since
		}
	}
	if err := forEachAccount(ctx, audits, (*accountAudit).compareOnce); err != nil {
		return sum, nil, err
	}
	suspects := slices.DeleteFunc(slices.Clone(audits), func(x *accountAudit) bool { return len(x.faults) == 0 || x.failure != "" })
	if len(suspects) > 0 {
		if err := retry.Sleep(ctx, a.Settle); err != nil {
			return sum, nil, err
		}
		if err := forEachAccount(ctx, suspects, (*accountAudit).confirm); err != nil {
			return sum, nil, err
		}
	}
	faults := summarise(&sum, audits)
	sum.Ended = time.Now()
	err = pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error { return schema.StoreAudit(ctx, tx, sum, faults) })
	if err == nil {
		a.Logger.Info("audited", "accounts", sum.Accounts, "failures", sum.Failures, "pending", sum.Pending, "records", sum.Records, "missing",
			sum.Missing, "extra", sum.Extra, "stale", sum.Stale, "repaired", sum.Repaired)
	}
	return sum, faults, err
}

// forEachAccount runs do for several accounts at once. An API error is recorded
// as the account's failure; any other error ends the run.
func forEachAccount(ctx context.Context, all []*accountAudit, do func(*accountAudit, context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(auditConcurrency)
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

// summarise adds up the results of the accounts.
func summarise(sum *schema.Audit, audits []*accountAudit) (faults []schema.Fault) {
	for _, x := range audits {
		if x.failure != "" {
			sum.Failures++
			faults = append(faults, schema.Fault{DID: x.did, Fault: schema.FaultUnread, Detail: x.failure})
			continue
		}
		if !x.from.Before(x.to) { // no period of it is claimed as stored yet
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

// accountAudit is the audit of one account. Its methods are not safe for
// concurrent use.
type accountAudit struct {
	*Auditor
	did      string
	from, to time.Time
	since    time.Time // since then, everything that the account wrote was stored
	claimed  time.Time // from, before it was moved to exclude expired posts; zero: not compared yet

	records int
	faults  []schema.Fault
	failure string // why the account could not be compared
}

// compareOnce compares the account without repairing anything.
func (x *accountAudit) compareOnce(ctx context.Context) error {
	return x.compare(ctx, func(context.Context, compared) error { return nil })
}

// confirm compares again, keeps the faults that were found before, and repairs
// them. The repository's revision is requested before its records.
func (x *accountAudit) confirm(ctx context.Context) error {
	before := map[schema.Fault]bool{}
	for _, f := range x.faults {
		before[faultKey(f)] = true
	}
	rev := ""
	if x.Repair {
		var err error
		if rev, err = x.Bluesky.LatestRev(ctx, x.did); err != nil {
			return err
		}
	}
	var faults []schema.Fault
	err := x.compare(ctx, func(ctx context.Context, c compared) error {
		c.faults = slices.DeleteFunc(c.faults, func(f schema.Fault) bool { return !before[faultKey(f)] })
		faults = append(faults, c.faults...)
		if !x.Repair || len(c.faults) == 0 {
			return nil
		}
		return x.repository().repair(ctx, x.Client, rev, c, nil)
	})
	x.faults = faults
	return err
}

// faultKey returns the fields that identify a fault in two comparisons.
func faultKey(f schema.Fault) schema.Fault {
	return schema.Fault{Collection: f.Collection, Rkey: f.Rkey, Fault: f.Fault}
}

func (x *accountAudit) repository() *repository {
	repo := &repository{Shared: x.Shared, api: x.Bluesky, did: x.did}
	if repo.Collections.Empty() {
		repo.Collections = collection.Of(collection.Entry{Pattern: schema.PostCollection})
	}
	return repo
}

// compare lists the repository and compares each page with the stored records
// that cannot expire meanwhile. It calls found for each page.
func (x *accountAudit) compare(ctx context.Context, found func(context.Context, compared) error) error {
	x.records, x.faults = 0, nil
	repo, now := x.repository(), time.Now()
	if x.claimed.IsZero() {
		x.claimed = x.from
	}
	if repo.Collections.Stores(schema.PostCollection) {
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
		in, err := repo.span(ctx, at.Collection, x.since, x.claimed, now, tidAt(x.to))
		if err != nil {
			return err
		}
		c, err := repo.page(ctx, &at, in)
		if err != nil {
			return err
		}
		if repo.retention(c.collection) > 0 { // without a TID it is unknown whether the records have expired
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

// Audit runs an audit if the last one is old enough. Running the job twice runs
// one audit: the second attempt finds the first.
type Audit struct {
	river.WorkerDefaults[jobs.Audit]
	auditor Auditor
	every   time.Duration
}

// Timeout is long because an audit waits, and calls servers that may be slow.
func (w *Audit) Timeout(*river.Job[jobs.Audit]) time.Duration { return time.Hour }

// Work runs the audit if it is due.
func (w *Audit) Work(ctx context.Context, _ *river.Job[jobs.Audit]) error {
	last, err := schema.LastAudit(ctx, w.auditor.Pool)
	if ago := time.Since(last.Ended); err == nil && 0 <= ago && ago < w.every-time.Minute {
		RowLog(ctx).Info("audit_not_due", "last", last.Ended, "every", w.every)
		return nil
	}
	if err != nil && !errors.Is(err, schema.ErrNoRows) {
		return err
	}
	auditor := w.auditor
	auditor.Logger = JobLog(ctx, auditor.Logger)
	auditor.Client = river.ClientFromContext[pgx.Tx](ctx)
	_, _, err = auditor.Audit(ctx)
	return err
}
