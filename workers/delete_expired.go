package workers

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// DeleteExpired deletes the records whose authors let them expire, page by page. A second run finds none of them.
type DeleteExpired struct {
	river.WorkerDefaults[jobs.DeleteExpired]
	Shared
}

// Work runs until nothing is due, or its time is up.
func (w *DeleteExpired) Work(ctx context.Context, _ *river.Job[jobs.DeleteExpired]) error {
	for until := time.Now().Add(w.patience()); time.Now().Before(until); {
		var n int
		err := pgx.BeginFunc(ctx, w.Pool, func(tx pgx.Tx) (err error) {
			n, err = schema.DeleteExpired(ctx, tx, w.Projections, time.Now(), PageRecords, w.Hooks...)
			return err
		})
		if err != nil || n == 0 {
			return err
		}
	}
	return Snooze(0)
}
