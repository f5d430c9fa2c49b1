package links

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Retention is how long shares and links are kept. A zero field gets its default.
type Retention struct {
	Shares       time.Duration // 7 days
	LinksForever bool          // Links is ignored
	Links        time.Duration // links that enough accounts shared, counted from when some of these shares expired; 90 days
	Grace        time.Duration // for links without shares; 24 h
	KeepSharers  int           // links shared by at least this many accounts are kept; 5
}

// sweepInterval is how often links without shares are searched for, except after a day has expired.
const sweepInterval = 6 * time.Hour

// expiry expires shares and links.
type expiry struct {
	pool *pgxpool.Pool
	keep Retention

	swept atomic.Pointer[time.Time] // when this process last searched for links without shares
}

func newExpiry(pool *pgxpool.Pool, keep Retention) *expiry {
	keep.Shares, keep.Links, keep.Grace = cmp.Or(keep.Shares, 7*24*time.Hour), cmp.Or(keep.Links,
		90*24*time.Hour), cmp.Or(keep.Grace, 24*time.Hour)
	keep.KeepSharers = cmp.Or(keep.KeepSharers, 5)
	return &expiry{pool: pool, keep: keep}
}

// ensureDays makes the partitions of shares for the next days. Shares without a
// partition are stored too, and expire row by row.
func (e *expiry) ensureDays(ctx context.Context, r *workers.Expiry) error {
	err := r.WhileBusy(ctx, func() error { return ranking.EnsureDays(ctx, e.pool, r.Now, e.keep.Shares) })
	if errors.Is(err, schema.ErrBusy) {
		r.Log.Warn("partition_creation_failed", "table", "shares", "error", err)
		return nil
	}
	return err
}

// expireShares expires shares, and then the links that nobody shares any more.
func (e *expiry) expireShares(ctx context.Context, r *workers.Expiry) error {
	rule := ranking.LinkRule{Now: r.Now, Sharers: e.keep.KeepSharers, Keep: e.keep.Links, Grace: e.keep.Grace}
	if e.keep.LinksForever {
		rule.Keep = 0
	}
	before := r.Now.Add(-e.keep.Shares)
	for _, step := range []func() error{
		func() error { return e.days(ctx, r, rule, before) },
		func() error {
			return r.Rows(ctx, "shares", func(ctx context.Context, db schema.DB, before time.Time, limit int) (int, error) {
				return ranking.ExpireOtherShares(ctx, db, rule, before, limit)
			}, before)
		},
		func() error {
			return r.Batches(ctx, "kept_links", func(limit int) (examined, deleted int, err error) {
				examined, err = ranking.MarkKept(ctx, e.pool, limit)
				return examined, 0, err
			})
		},
		func() error { return e.sweep(ctx, r, rule) },
		func() error {
			return r.Batches(ctx, "links", func(limit int) (examined, deleted int, err error) {
				done, err := ranking.ExpireLinks(ctx, e.pool, rule, limit)
				return done.Examined, done.Deleted, err
			})
		},
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// days drops the partitions of shares that ended at or before a time. Just before, it
// counts the sharers of their links, without a lock.
func (e *expiry) days(ctx context.Context, r *workers.Expiry, rule ranking.LinkRule, before time.Time) error {
	names, err := ranking.ExpiredDays(ctx, e.pool, before)
	if err != nil {
		return err
	}
	for _, name := range names {
		e.swept.Store(nil) // search again, even if this run is interrupted
		after := int64(0)
		err := r.Batches(ctx, "leaving_links", func(limit int) (examined, deleted int, err error) {
			last, examined, err := ranking.CountLeaving(ctx, e.pool, rule, name, after, limit)
			if err == nil {
				after = last
			}
			return examined, 0, err
		})
		if err != nil {
			return err
		}
		if err := r.Drop(ctx, "share_partitions", func() (bool, error) { return ranking.DropDay(ctx, e.pool, name) }); err != nil {
			return err
		}
	}
	return nil
}

// sweep searches all links for those without shares (because they expired, their
// authors deleted them, or there never were any), and for claims that no share names.
func (e *expiry) sweep(ctx context.Context, r *workers.Expiry, rule ranking.LinkRule) error {
	if last := e.swept.Load(); last != nil && r.Now.Sub(*last).Abs() < sweepInterval {
		return nil
	}
	after, done := int64(0), false
	err := r.Batches(ctx, "unshared_links", func(limit int) (examined, deleted int, err error) {
		found, err := ranking.FindUnshared(ctx, e.pool, rule, after, 10*limit)
		if err == nil {
			after, done = found.Last, found.Links == 0
		}
		return found.Links, 0, err
	})
	if err != nil || !done {
		return err
	}
	after = 0
	err = r.Batches(ctx, "claims", func(limit int) (examined, deleted int, err error) {
		found, err := ranking.ExpireClaims(ctx, e.pool, after, 10*limit)
		if err == nil {
			after, done = found.Last, found.Links == 0
		}
		return found.Links, found.Found, err
	})
	if err == nil && done {
		e.swept.Store(&r.Now)
	}
	return err
}
