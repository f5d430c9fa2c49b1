package workers

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// RequestBackfill resolves the requested accounts and enqueues their backfills.
// The job completes in the transaction that enqueues them.
type RequestBackfill struct {
	river.WorkerDefaults[jobs.RequestBackfill]
	Shared
}

// Work enqueues the backfills.
func (w *RequestBackfill) Work(ctx context.Context, job *river.Job[jobs.RequestBackfill]) error {
	dids, err := w.dids(ctx, job.Args)
	if err != nil {
		return err
	}
	added := 0
	err = pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) error {
		var err error
		if added, err = EnqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), dids, job.Args.Since, job.Args.Priority,
			time.Time{}); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	if err == nil {
		JobLog(ctx, w.Logger).Info("backfills_requested", "account", job.Args.Account, "all", job.Args.All, "accounts", len(dids), "added", added,
			"promoted", len(dids)-added)
	}
	return err
}

func (w *RequestBackfill) dids(ctx context.Context, args jobs.RequestBackfill) ([]string, error) {
	switch {
	case args.Since.IsZero() || args.Priority < jobs.PriorityGap || args.Priority > jobs.PriorityColdStart:
		return nil, NonRetryable(errors.New("a request needs since, and a priority from 1 to 4"))
	case args.All:
		followed, err := schema.FollowedAccounts(ctx, w.Pool)
		if err == nil && followed.Everyone {
			err = NonRetryable(errors.New("the whole network is followed: name an account, or add a watch"))
		}
		return followed.DIDs, err
	case args.Watch != 0:
		return schema.AddedMembers(ctx, w.Pool, args.Watch, args.Began)
	case strings.HasPrefix(args.Account, "did:"):
		return []string{args.Account}, nil
	}
	did, err := w.Bluesky.ResolveHandle(ctx, args.Account)
	if err != nil {
		return nil, fmt.Errorf("resolve the handle %s: %w", args.Account, err)
	}
	return []string{did}, nil
}
