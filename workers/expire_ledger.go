package workers

import (
	"context"
	"errors"
	"time"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// ensureDays makes the partitions of shares for the next days. Shares without a
// partition are stored too, and expire row by row.
func (r *expiry) ensureDays() error {
	err := WhileBusy(r.ctx, r.tries, func() error { return ranking.EnsureDays(r.ctx, r.pool, r.now, r.keep.Shares) })
	if errors.Is(err, schema.ErrBusy) {
		r.log.Warn("partition_creation_failed", "table", "shares", "error", err)
		return nil
	}
	return err
}

// ledger expires shares, and then the links that nobody shares any more.
func (r *expiry) ledger() error {
	rule := ranking.LinkRule{Now: r.now, Sharers: r.keep.KeepSharers, Keep: r.keep.Links, Grace: r.keep.Grace}
	if r.keep.LinksForever {
		rule.Keep = 0
	}
	before := r.now.Add(-r.keep.Shares)
	for _, step := range []func() error{
		func() error { return r.days(rule, before) },
		func() error {
			return r.rows("shares", func(ctx context.Context, db schema.DB, before time.Time, limit int) (int, error) {
				return ranking.ExpireOtherShares(ctx, db, rule, before, limit)
			}, before)
		},
		func() error {
			return r.batches("kept_links", func(limit int) (examined, deleted int, err error) {
				examined, err = ranking.MarkKept(r.ctx, r.pool, limit)
				return examined, 0, err
			})
		},
		func() error { return r.sweep(rule) },
		func() error {
			return r.batches("links", func(limit int) (examined, deleted int, err error) {
				done, err := ranking.ExpireLinks(r.ctx, r.pool, rule, limit)
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
func (r *expiry) days(rule ranking.LinkRule, before time.Time) error {
	names, err := ranking.ExpiredDays(r.ctx, r.pool, before)
	if err != nil {
		return err
	}
	for _, name := range names {
		r.swept.Store(nil) // search again, even if this run is interrupted
		after := int64(0)
		err := r.batches("leaving_links", func(limit int) (examined, deleted int, err error) {
			last, examined, err := ranking.CountLeaving(r.ctx, r.pool, rule, name, after, limit)
			if err == nil {
				after = last
			}
			return examined, 0, err
		})
		if err != nil {
			return err
		}
		if err := r.drop("share_partitions", func() (bool, error) { return ranking.DropDay(r.ctx, r.pool, name) }); err != nil {
			return err
		}
	}
	return nil
}

// sweep searches all links for those without shares (because they expired, their
// authors deleted them, or there never were any), and for claims that no share names.
func (r *expiry) sweep(rule ranking.LinkRule) error {
	if last := r.swept.Load(); last != nil && r.now.Sub(*last).Abs() < sweepInterval {
		return nil
	}
	after, done := int64(0), false
	err := r.batches("unshared_links", func(limit int) (examined, deleted int, err error) {
		found, err := ranking.FindUnshared(r.ctx, r.pool, rule, after, 10*limit)
		if err == nil {
			after, done = found.Last, found.Links == 0
		}
		return found.Links, 0, err
	})
	if err != nil || !done {
		return err
	}
	after = 0
	err = r.batches("claims", func(limit int) (examined, deleted int, err error) {
		found, err := ranking.ExpireClaims(r.ctx, r.pool, after, 10*limit)
		if err == nil {
			after, done = found.Last, found.Links == 0
		}
		return found.Links, found.Found, err
	})
	if err == nil && done {
		r.swept.Store(&r.now)
	}
	return err
}
