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
	mendWithin = time.Minute // a million retries take some seconds; it skips what others hold
)

// MendTimes sets right, until ctx ends, what waits for a time that the database's
// clock has been set back from. It is no job: the jobs may be what waits. Those
// that are to be tried again are read at the start, and when the clock was seen to
// go back, until nothing is left to mend: they may be many.
func MendTimes(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) {
	m := mender{pool: pool, started: time.Now(), retries: true}
	for sleep(ctx, mendEvery) == nil {
		mended, err := m.mend(ctx)
		if mended > 0 {
			log.Warn("times_mended", "jobs", mended, "cause", "they were dated later than the database's clock allows: it was set back, or another process's was ahead")
		}
		if err != nil && ctx.Err() == nil && schema.Classify(err) != schema.Transient {
			log.Error("times_not_mended", "cause", err)
		}
	}
}

// mender is what one process knows between two looks.
type mender struct {
	pool    *pgxpool.Pool
	started time.Time // for the monotonic clock
	clock   clockStart
	retries bool // are still to be read
}

func (m *mender) mend(ctx context.Context) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, mendWithin)
	defer cancel()
	now, err := schema.Now(ctx, m.pool)
	if err != nil {
		return 0, err
	}
	m.retries = m.clock.wentBack(now, time.Since(m.started)) || m.retries
	mended, err := schema.MendTimes(ctx, m.pool, m.retries)
	if err == nil && mended == 0 {
		m.retries = false
	}
	return mended, err
}

// clockSlack is how far the database's clock may fall behind without anything
// that is to be mended: less than mend_times overlooks.
const clockSlack = time.Second

// clockStart is when, by the database's clock, the process's monotonic clock
// began: the latest that was read.
type clockStart struct{ began time.Time }

// wentBack answers whether the database's clock has been set back since it was
// read before. An answer that took its time looks like it, and costs a look.
func (c *clockStart) wentBack(now time.Time, elapsed time.Duration) bool {
	began := now.Add(-elapsed)
	back := began.Before(c.began.Add(-clockSlack))
	if back || began.After(c.began) {
		c.began = began
	}
	return back
}
