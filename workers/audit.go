package workers

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Auditor compares what is stored with the accounts' own repositories. It does
// not ask the stream how far it is: what is not there a minute later is missing.
type Auditor struct {
	Pool   *pgxpool.Pool
	API    *bluesky.Client
	Client *river.Client[pgx.Tx] // enqueues the repairs
	Log    *slog.Logger

	Accounts int           // how many, by chance; 0: all
	Window   time.Duration // how far back
	Keep     time.Duration // how long posts stay: nothing older is missed; 0: for ever
	Settle   time.Duration // how long a fault has to last: what is on its way is none
	Repair   bool
}

const (
	inFlight       = time.Minute // posts younger than this may be on their way
	auditedAtOnce  = 4           // accounts
	auditPages     = 50          // of one account
	everyAccount   = 1_000_000
	settledFollows = time.Minute // after an account is followed, what it writes is there
)

// Audit reads repositories, compares, looks again at what differs after a while,
// repairs what still does where that is wanted, and writes down what it came to.
func (a *Auditor) Audit(ctx context.Context) (schema.Audit, []schema.Fault, error) {
	now := time.Now()
	sum := schema.Audit{Started: now, From: now.Add(-a.Window), To: now.Add(-inFlight), Repaired: a.Repair}
	if a.Keep > 0 && a.Keep < a.Window {
		sum.From = now.Add(-a.Keep)
	}
	sample, err := schema.AuditSample(ctx, a.Pool, cmp.Or(a.Accounts, everyAccount))
	if err != nil {
		return sum, nil, err
	}
	sum.Accounts = len(sample)
	audits := make([]*accountAudit, len(sample))
	for i, s := range sample {
		audits[i] = &accountAudit{Auditor: a, did: s.DID, from: sum.From, to: sum.To}
		if since := s.Since.Add(settledFollows); since.After(sum.From) {
			audits[i].from = since
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
	err = pgx.BeginFunc(ctx, a.Pool, func(tx pgx.Tx) error { return schema.KeepAudit(ctx, tx, sum, faults) })
	if err == nil {
		a.Log.Info("audited", "accounts", sum.Accounts, "failures", sum.Failures, "records", sum.Records, "missing", sum.Missing, "extra", sum.Extra, "stale", sum.Stale, "repaired", sum.Repaired)
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
		sum.Records += x.records
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
	if sum.Accounts > sum.Failures {
		score := 1.0
		if sum.Records > 0 {
			score = 1 - float64(sum.Missing+sum.Extra+sum.Stale)/float64(sum.Records)
		}
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

	records int
	faults  []schema.Fault
	failure string // why it could not be compared
}

// look compares once.
func (x *accountAudit) look(ctx context.Context) error {
	_, err := x.compare(ctx)
	return err
}

// lookAgain keeps the faults that are still there, and has them repaired. The
// repository's revision is asked for before its posts: so what they say holds at
// that revision or later, and whatever the stream brings of a later one wins.
func (x *accountAudit) lookAgain(ctx context.Context) error {
	before := map[schema.Fault]bool{}
	for _, f := range x.faults {
		before[schema.Fault{Rkey: f.Rkey, Fault: f.Fault}] = true
	}
	rev := ""
	if x.Repair {
		var err error
		if rev, err = x.API.LatestRev(ctx, x.did); err != nil {
			return err
		}
	}
	listed, err := x.compare(ctx)
	if err != nil {
		return err
	}
	x.faults = slices.DeleteFunc(x.faults, func(f schema.Fault) bool { return !before[schema.Fault{Rkey: f.Rkey, Fault: f.Fault}] })
	if !x.Repair || len(x.faults) == 0 {
		return nil
	}
	return x.repair(ctx, rev, listed)
}

// compare lists the repository, and then compares what is stored with it.
func (x *accountAudit) compare(ctx context.Context) ([]schema.SourcePost, error) {
	from, to := tidAt(x.from), tidAt(x.to)
	if from >= to {
		x.records, x.faults = 0, nil
		return nil, nil
	}
	listed, err := x.list(ctx, from, to)
	if err != nil {
		return nil, err
	}
	x.records = len(listed)
	x.faults, err = schema.Compare(ctx, x.Pool, x.did, from, to, listed)
	return listed, err
}

// list reads the posts with rkeys from one to below another. The repository
// lists the highest first. What is no TID says nothing of its time.
func (x *accountAudit) list(ctx context.Context, from, to string) (listed []schema.SourcePost, err error) {
	cursor := ""
	for range auditPages {
		page, next, err := x.API.Records(ctx, x.did, schema.PostCollection, cursor, 100)
		if err != nil {
			return nil, err
		}
		for _, p := range page {
			if _, err := syntax.ParseTID(p.Rkey); err == nil && p.Rkey >= from && p.Rkey < to {
				listed = append(listed, schema.SourcePost{Rkey: p.Rkey, CID: p.CID, Record: p.Record})
			}
		}
		if next == "" || len(page) > 0 && page[len(page)-1].Rkey < from {
			return listed, nil
		}
		cursor = next
	}
	return nil, &bluesky.Error{Class: bluesky.Permanent, Call: "com.atproto.repo.listRecords", Message: "more posts than an audit reads"}
}

// repair asks for a backfill where posts are missing, as a gap would; and writes
// what no backfill could: posts that changed, that are gone, and that a tombstone
// keeps away. These go the way of the stream's own writes, at the revision of the
// repository.
func (x *accountAudit) repair(ctx context.Context, rev string, listed []schema.SourcePost) error {
	now := time.Now()
	there := map[string]schema.SourcePost{}
	for _, l := range listed {
		there[l.Rkey] = l
	}
	var writes []schema.Write
	var deletions []schema.Deletion
	var missing []string
	for _, f := range x.faults {
		key := schema.Key{Collection: schema.PostCollection, DID: x.did, Rkey: f.Rkey}
		switch l := there[f.Rkey]; {
		case f.Fault == schema.FaultExtra:
			deletions = append(deletions, schema.Deletion{Key: key, Rev: rev, At: now})
		case f.Fault == schema.FaultStale || f.Buried:
			writes = append(writes, schema.Write{Key: key, Rev: rev, CID: l.CID, CreatedAt: schema.CreatedAt(l.Record, l.Rkey, now), Record: l.Record})
		default:
			missing = append(missing, f.Rkey)
		}
	}
	return pgx.BeginFunc(ctx, x.Pool, func(tx pgx.Tx) error {
		if len(deletions) > 0 {
			if err := schema.DeletePosts(ctx, tx, deletions); err != nil {
				return err
			}
		}
		written, err := schema.MendPosts(ctx, tx, writes)
		if err != nil {
			return err
		}
		if len(missing) > 0 { // after the records: a backfill locks them before its job, too
			if _, err := enqueueBackfills(ctx, tx, x.Client, []string{x.did}, timeOf(slices.Min(missing)).Add(-time.Minute), jobs.PriorityManual, now); err != nil {
				return err
			}
		}
		return Enqueue(x.Client, "")(ctx, tx, written, time.Time{})
	})
}

// tidAt is the first TID of a moment.
func tidAt(t time.Time) string { return syntax.NewTID(t.UnixMicro(), 0).String() }

// timeOf is the moment of a TID.
func timeOf(rkey string) time.Time {
	tid, err := syntax.ParseTID(rkey)
	if err != nil {
		return time.Unix(0, 0)
	}
	return tid.Time()
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
