package workers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// CloseGap has every followed account compared with its repository; the last one
// that ends closes the gap. Those that are not active do not keep it open, and are
// read when they are. Working it again asks only for accounts that nobody has
// asked for. Where there is nobody to ask for, the gap stays open and says so:
// that is no failure of the job.
type CloseGap struct {
	river.WorkerDefaults[jobs.CloseGap]
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Work enqueues the backfills.
func (w *CloseGap) Work(ctx context.Context, job *river.Job[jobs.CloseGap]) error {
	followed, err := schema.FollowedAccounts(ctx, w.pool)
	if err != nil {
		return err
	}
	if len(followed.DIDs) == 0 {
		problem := "nobody is followed yet"
		if followed.Everyone {
			problem = "the whole network is followed"
		}
		jobLog(ctx, w.log).Warn("gap_cannot_be_closed", "gap", job.Args.Gap, "error", problem)
		return schema.RecordGapProblem(ctx, w.pool, job.Args.Gap, problem)
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		started, open, err := schema.StartGap(ctx, tx, job.Args.Gap, time.Now())
		switch {
		case errors.Is(err, schema.ErrNoRows):
			jobLog(ctx, w.log).Info("gap_not_closed", "gap", job.Args.Gap, "error", "it is gone")
			return nil
		case err != nil:
			return err
		case open:
			// A little before its beginning: clocks differ.
			if _, err := enqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), started.DIDs, started.From.Add(-time.Minute), jobs.PriorityGap, time.Time{}); err != nil {
				return err
			}
			jobLog(ctx, w.log).Info("gap_being_closed", "gap", job.Args.Gap, "accounts", len(started.DIDs), "later", started.Later)
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
}
