package links

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// VerifyHandles verifies the handles that accounts claim, in both directions: the account's DID
// document must name the handle, and the handle must resolve to the account. A handle is then the
// account's alone. Running the job twice changes nothing but the time of the check.
type VerifyHandles struct {
	river.WorkerDefaults[VerifyHandlesArgs]
	pool *pgxpool.Pool
	api  *bluesky.Client

	patience time.Duration
}

const (
	handlesPage   = 50             // handles at once: two calls each
	handlesAgain  = 24 * time.Hour // how often one that is not verified is checked again
	handlesAtOnce = 8
)

// Work checks the handles of the accounts that the ranking shows, and of some others. A handle that cannot be checked now
// stays due.
func (w *VerifyHandles) Work(ctx context.Context, _ *river.Job[VerifyHandlesArgs]) error {
	now, err := schema.Now(ctx, w.pool)
	if err != nil {
		return err
	}
	asking, cancel := context.WithTimeout(ctx, w.patience)
	defer cancel()
	for {
		due, err := ranking.UnverifiedHandles(ctx, w.pool, now.Add(-handlesAgain), handlesPage)
		if err != nil {
			return err
		}
		if all, err := w.check(ctx, asking, due); err != nil || !all || len(due) < handlesPage || !due[len(due)-1].Shown {
			return err
		}
	}
}

// check reports whether each of these handles could be checked.
func (w *VerifyHandles) check(ctx, asking context.Context, due []ranking.UnverifiedHandle) (all bool, err error) {
	var g errgroup.Group
	g.SetLimit(handlesAtOnce)
	failed := make([]error, len(due))
	var unanswered atomic.Bool
	for i, h := range due {
		g.Go(func() error {
			verified, err := w.api.OwnsHandle(asking, h.DID, h.Handle)
			if asking.Err() != nil || err != nil && !workers.Refused(err) { // the services were not asked, or did not answer
				unanswered.Store(true)
				return nil
			}
			failed[i] = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return schema.RecordHandle(ctx, tx, h.UnverifiedHandle, verified) })
			return nil
		})
	}
	g.Wait() // the goroutines return no error
	return !unanswered.Load(), errors.Join(failed...)
}
