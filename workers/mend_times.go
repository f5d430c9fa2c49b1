package workers

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/schema"
)

const (
	mendEvery  = 5 * time.Second
	mendWithin = 10 * time.Second // it skips what others hold
)

// MendTimes sets right, until ctx ends, what waits for a time that the database's
// clock has been set back from. It is no job: the jobs may be what waits.
func MendTimes(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) {
	for sleep(ctx, mendEvery) == nil {
		once, cancel := context.WithTimeout(ctx, mendWithin)
		mended, err := schema.MendTimes(once, pool)
		cancel()
		if mended > 0 {
			log.Warn("times_mended", "jobs", mended, "cause", "they were dated later than the database's clock allows: it was set back, or another process's was ahead")
		}
		if err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
			log.Error("times_not_mended", "cause", err)
		}
	}
}
