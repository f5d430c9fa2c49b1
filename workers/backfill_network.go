package workers

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// NetworkArchive is what servers keep of the whole network.
type NetworkArchive interface {
	// Plan returns how an interval would be read. Its error wraps ErrNoArchive if no server has an
	// archive.
	Plan(ctx context.Context, past NetworkPast) (NetworkPlan, error)
	// Read stores the events of an interval, oldest first. It calls moved after each transaction
	// or more, and ends with the error of moved. Without an error everything is stored that the
	// plan has. If the archive cannot be read, the error wraps ErrArchiveUnread; others are the
	// database's.
	Read(ctx context.Context, past NetworkPast, moved func(schema.NetworkProgress) error) (NetworkPlan, error)
}

// NetworkPast selects events, by the time at which a server saw them.
type NetworkPast struct {
	From, To    time.Time
	Collections []string // none: all that are stored
}

// NetworkPlan is how an interval is read.
type NetworkPlan struct {
	Host   string
	Calls  int       // about
	Begins time.Time // of the archive; zero: it is empty
	Sealed time.Time // everything before this time can be read
}

// ErrNoArchive means that no server has an archive, ErrArchiveUnread that it cannot be read now.
var (
	ErrNoArchive     = errors.New("no server has an archive")
	ErrArchiveUnread = errors.New("the archive cannot be read")
)

const (
	archiveMargin   = time.Minute     // by which the clocks and delays of two servers differ
	archiveUnsealed = time.Minute     // until an archive may have sealed more
	archiveFailed   = 5 * time.Second // until an archive that cannot be read is tried again, at first
	archiveBroken   = time.Hour       // the same at most
	archivePause    = 5 * time.Second // until the stream may have advanced, or queues are shorter
)

// BackfillNetwork reads an interval from an archive, oldest events first, while it has time, and
// continues where it stopped. Storing an event twice changes nothing. Deletions and newer revisions
// that a stream brought meanwhile win. What is not sealed yet is read later. At the end it closes
// the gap that it is for.
type BackfillNetwork struct {
	river.WorkerDefaults[jobs.BackfillNetwork]
	Shared
	archive NetworkArchive // nil: none is configured
	alerts  health.Limits  // nothing more is read above these
}

// Work reads what there is time for.
func (w *BackfillNetwork) Work(ctx context.Context, job *river.Job[jobs.BackfillNetwork]) error {
	b, err := schema.FindNetworkBackfill(ctx, w.Pool, job.Args.Backfill)
	if errors.Is(err, schema.ErrNoRows) || err == nil && (b.Complete || b.Cancelled) {
		return nil
	}
	if err != nil {
		return err
	}
	problem, err := w.obstacle(ctx, b)
	if err != nil {
		return err
	}
	if problem != "" {
		return w.wait(ctx, b, problem, archivePause)
	}
	now, err := schema.EarliestTime(ctx, w.Pool, time.Now()) // retention uses this clock
	if err != nil {
		return err
	}
	until := time.Now().Add(w.patience())
	past := NetworkPast{From: w.kept(b.Rest(), now), To: b.To, Collections: b.Collections}
	reading, cancel := context.WithTimeout(ctx, w.patience()*3/2) // a slow server must not end the job
	defer cancel()
	plan, err := w.archive.Read(reading, past, func(p schema.NetworkProgress) error {
		if err := schema.MoveNetworkBackfill(ctx, w.Pool, b, p, archiveMargin); err != nil {
			return err
		}
		if time.Now().After(until) {
			return errPatience
		}
		return nil
	})
	switch {
	case errors.Is(err, errPatience):
		return Snooze(0)
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, ErrArchiveUnread) && !errors.Is(err, ErrNoArchive):
		return err
	case err != nil:
		JobLog(ctx, w.Logger).Warn("archive_unread", "backfill", b.ID, "host", plan.Host, "error", err)
		return w.unread(ctx, job, b, err)
	case !plan.Sealed.After(b.To):
		after := b.To
		if b.Gap == nil { // the interval of a gap has the margin
			after = after.Add(archiveMargin)
		}
		sealed, err := schema.IntervalSealed(ctx, w.Pool, b, plan.Host, plan.Sealed, after)
		if err != nil {
			return err
		}
		if !sealed {
			return w.wait(ctx, b, "the newest events are not in the archive yet", archiveUnsealed)
		}
	}
	return w.end(ctx, job, b, plan)
}

// obstacle returns why nothing can be read now.
func (w *BackfillNetwork) obstacle(ctx context.Context, b schema.NetworkBackfill) (problem string, err error) {
	if w.archive == nil {
		return "no server is configured that may have an archive: see WEIR_JETSTREAM", nil
	}
	if b.Gap == nil { // live events come first: the stream brings what is written from the request on
		advanced, err := schema.StreamsAdvanced(ctx, w.Pool, b.To)
		if err != nil || !advanced {
			return "no stream has advanced since the request", err
		}
	}
	return w.Shared.obstacle(ctx, w.alerts)
}

// kept returns the later of a time and the time since which some collection is kept.
func (w *BackfillNetwork) kept(from, now time.Time) time.Time {
	longest := time.Duration(0)
	for _, e := range w.Collections.Entries() {
		if e.Retention == 0 {
			return from
		}
		longest = max(longest, e.Retention)
	}
	if oldest := now.Add(-longest); oldest.After(from) {
		return oldest
	}
	return from
}

// wait stores why nothing is read, and tries again later.
func (w *BackfillNetwork) wait(ctx context.Context, b schema.NetworkBackfill, problem string, wait time.Duration) error {
	if err := schema.SetNetworkBackfillProblem(ctx, w.Pool, b.ID, problem); err != nil {
		return err
	}
	return Snooze(wait)
}

// unread tries again after as long as nothing could be read. If there is another way to close the
// gap, it gives up instead.
func (w *BackfillNetwork) unread(ctx context.Context, job *river.Job[jobs.BackfillNetwork], b schema.NetworkBackfill, cause error) error {
	everyone, err := schema.FollowsEveryone(ctx, w.Pool)
	switch {
	case err != nil:
		return err
	case everyone || b.Gap == nil:
		age, err := schema.FailNetworkBackfill(ctx, w.Pool, b.ID, cause.Error())
		if err != nil {
			return err
		}
		return Snooze(min(max(age, archiveFailed), archiveBroken))
	}
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		if err := schema.GiveUpNetworkBackfill(ctx, tx, b.ID, cause.Error()); err != nil {
			return err
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, jobs.CloseGap{Gap: *b.Gap}, nil); err != nil {
			return err
		}
		_, err := river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
}

// end completes the backfill, its gap and the job.
func (w *BackfillNetwork) end(ctx context.Context, job *river.Job[jobs.BackfillNetwork], b schema.NetworkBackfill, plan NetworkPlan) error {
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		now, err := schema.Now(ctx, tx)
		if err != nil {
			return err
		}
		if b, err = schema.FindNetworkBackfill(ctx, tx, b.ID); err != nil {
			return err
		}
		b.Host = plan.Host
		if err := schema.EndNetworkBackfill(ctx, tx, b, plan.Begins, now); err != nil {
			return err
		}
		JobLog(ctx, w.Logger).Info("network_backfilled", "backfill", b.ID, "host", plan.Host, "from", b.From, "to", b.To, "events", b.Events,
			"records", b.Records)
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
}

// readGap has a gap closed from an archive, if that is the only way or takes fewer calls than
// reading the repositories of the followed accounts. ok is false otherwise.
func (w *CloseGap) readGap(ctx context.Context, job *river.Job[jobs.CloseGap], followed schema.Followed) (ok bool, err error) {
	gap, open, err := schema.BackfillableGap(ctx, w.Pool, job.Args.Gap)
	if err != nil || !open || w.archive == nil || w.Networks.Of(gap.Stream) != nil {
		return false, err
	}
	past := NetworkPast{From: gap.From.Add(-archiveMargin), To: gap.To.Add(archiveMargin)}
	plan, err := w.archive.Plan(ctx, past)
	switch {
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, ErrNoArchive) || err != nil && !followed.Everyone:
		return false, nil
	case err != nil: // the backfill tries again
		JobLog(ctx, w.Logger).Warn("archive_unread", "gap", job.Args.Gap, "error", err)
	}
	if !followed.Everyone {
		others := callsPerAccount * len(followed.DIDs)
		JobLog(ctx, w.Logger).Info("gap_archive_compared", "gap", job.Args.Gap, "archive_calls", plan.Calls, "repository_calls", others, "saved",
			others-plan.Calls)
		if plan.Calls >= others || plan.Begins.IsZero() || plan.Begins.After(past.From) {
			return false, nil
		}
	}
	return true, pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		id, err := schema.BackfillGap(ctx, tx, job.Args.Gap, archiveMargin)
		if err != nil {
			return err
		}
		if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertTx(ctx, tx, jobs.BackfillNetwork{Backfill: id}, nil); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
}

// callsPerAccount is how many calls a comparison with a repository takes at least.
const callsPerAccount = 3
