package workers

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

// CompleteIdle completes a job of a kind that has at most one unfinished job, if idle finds
// that nothing is left to do. It returns false if something is left. A process that adds work
// commits it and then inserts the job, or does both in one transaction. If the insert finds an
// unfinished job, it locks that job's row and adds none; idle then sees the new work, because
// idle runs after the row was locked here. A later insert waits for the end of this transaction
// and adds a job.
func CompleteIdle[T river.JobArgs](
	ctx context.Context, pool *pgxpool.Pool, job *river.Job[T], idle func(context.Context, pgx.Tx) (bool, error),
) (done bool, err error) {
	if _, err := river.ClientFromContextSafely[pgx.Tx](ctx); err != nil { // not run by a client
		err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // there is no row to lock
			done, err = idle(ctx, tx)
			return err
		})
		return done && err == nil, err
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT FROM river_job WHERE id = $1 FOR UPDATE`, job.ID); err != nil {
			return fmt.Errorf("lock the job: %w", err)
		}
		if done, err = idle(ctx, tx); err != nil || !done {
			return err
		}
		_, err := river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	return done && err == nil, err
}
