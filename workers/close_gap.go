package workers

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// CloseGap requests a comparison with its repository for every followed account.
// The last comparison closes the gap. Inactive accounts do not keep it open;
// they are read when they become active again. Running the job twice requests
// only the accounts that have no backfill yet. If no account can be requested,
// the gap stays open and records why; the job does not fail. If the archive of a server has the
// gap, and the whole network is followed or that takes fewer calls, the gap is read from there
// instead.
type CloseGap struct {
	river.WorkerDefaults[jobs.CloseGap]
	Shared
	archive NetworkArchive // nil: none is configured
}

// Work enqueues the backfills.
func (w *CloseGap) Work(ctx context.Context, job *river.Job[jobs.CloseGap]) error {
	followed, err := schema.FollowedAccounts(ctx, w.Pool)
	if err != nil {
		return err
	}
	if followed.Everyone || len(followed.DIDs) > 0 {
		if ok, err := w.readGap(ctx, job, followed); ok || err != nil {
			return err
		}
	}
	if len(followed.DIDs) == 0 {
		problem := "no account is followed yet"
		if followed.Everyone {
			problem = "the whole network is followed"
		}
		JobLog(ctx, w.Logger).Warn("gap_unclosable", "gap", job.Args.Gap, "error", problem)
		return schema.RecordGapProblem(ctx, w.Pool, job.Args.Gap, problem)
	}
	return pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		now, err := schema.Now(ctx, tx)
		if err != nil {
			return err
		}
		started, open, err := schema.StartGap(ctx, tx, job.Args.Gap, now)
		switch {
		case errors.Is(err, schema.ErrNoRows):
			JobLog(ctx, w.Logger).Info("gap_closing_failed", "gap", job.Args.Gap, "error", "the gap does not exist")
			return nil
		case err != nil:
			return err
		case open:
			// A minute before the gap began: clocks differ.
			if _, err := EnqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), started.DIDs, started.From.Add(-time.Minute),
				jobs.PriorityGap, time.Time{}); err != nil {
				return err
			}
			JobLog(ctx, w.Logger).Info("gap_backfills_enqueued", "gap", job.Args.Gap, "accounts", len(started.DIDs), "later", started.Later)
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
}
