package links

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/links/redirect"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/workers"
)

// ResolveLinks asks shorteners where their links lead, and merges each link with its
// target. The links that are due are in the table short_links, so the next run continues
// after a killed one.
type ResolveLinks struct {
	river.WorkerDefaults[ResolveLinksArgs]
	pool     *pgxpool.Pool
	client   *redirect.Client // nil: nothing is resolved
	patience time.Duration    // how long to run before the job yields to others; shorter than the job's timeout
}

// resolveAtOnce is how many short links are resolved at the same time. The calls share
// the limit of all external calls.
const resolveAtOnce = 4

// retryDelay returns the wait after a number of failed requests. ok is false if the
// shortener is not asked again.
func retryDelay(tries int) (wait time.Duration, ok bool) {
	waits := []time.Duration{time.Minute, 10 * time.Minute, time.Hour, 6 * time.Hour}
	if tries >= len(waits) {
		return 0, false
	}
	return waits[tries], true
}

// Work runs until nothing is due, or its time is up.
func (w *ResolveLinks) Work(ctx context.Context, job *river.Job[ResolveLinksArgs]) error {
	if w.client == nil {
		return nil
	}
	until := time.Now().Add(w.patience)
	for {
		due, err := ranking.DueShortLinks(ctx, w.pool, resolveAtOnce)
		if err != nil {
			return err
		}
		if len(due) == 0 {
			done, err := workers.CompleteIdle(ctx, w.pool, job, func(ctx context.Context, db pgx.Tx) (bool, error) {
				due, err := ranking.DueShortLinks(ctx, db, 1)
				return len(due) == 0, err
			})
			if err != nil || done {
				return err
			}
			continue
		}
		group, ctx := errgroup.WithContext(ctx)
		for _, short := range due {
			group.Go(func() error { return w.resolve(ctx, short) })
		}
		if err := group.Wait(); err != nil {
			return err
		}
		if time.Now().After(until) {
			return workers.Snooze(0)
		}
	}
}

// resolve resolves one link and stores the outcome.
func (w *ResolveLinks) resolve(ctx context.Context, short ranking.ShortLink) error {
	if short.Guess {
		if may, err := ranking.MayGuess(ctx, w.pool, short.Site); err != nil || !may {
			return errors.Join(err, ranking.StoreShortLinkOutcome(ctx, w.pool, short, "its site is no shortener", nil))
		}
	}
	to, err := w.follow(ctx, short)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var dead *redirect.Dead
	switch wait, ok := retryDelay(short.Tries); {
	case err == nil:
		if resolved, err := w.learn(ctx, short, to); err != nil || !resolved {
			return err
		}
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			return ranking.ResolveShortLink(ctx, tx, short, to, time.Now())
		})
		if errors.Is(err, ranking.ErrLink) { // the link has expired meanwhile
			return nil
		}
		return err
	case short.Guess && errors.As(err, &dead):
		_, err := w.learn(ctx, short, link.Link{URL: dead.Error()})
		return err
	case errors.As(err, &dead) || !ok:
		return ranking.StoreShortLinkOutcome(ctx, w.pool, short, err.Error(), nil)
	default:
		if busy, ok := errors.AsType[*redirect.Busy](err); ok {
			if err := ranking.PauseShortener(ctx, w.pool, busy.Site, busy.Wait); err != nil {
				return err
			}
			wait = max(wait, busy.Wait)
		}
		return ranking.StoreShortLinkOutcome(ctx, w.pool, short, err.Error(), &wait)
	}
}

// learn stores where a link leads whose site may be a shortener. It reports whether the site is one
// and the link leads to another.
func (w *ResolveLinks) learn(ctx context.Context, short ranking.ShortLink, to link.Link) (resolved bool, err error) {
	if !short.Guess {
		return true, nil
	}
	target := to.Identity
	if to.Site == short.Site {
		target = ""
	}
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if err := ranking.StoreShortLinkOutcome(ctx, tx, short, to.URL, nil); err != nil {
			return err
		}
		isShortener, err := ranking.RecordGuess(ctx, tx, short.Site, target)
		resolved = isShortener && target != ""
		return err
	})
	return resolved, err
}

// follow finds out where a link leads. It times out early enough for the job to store the
// timeout. Otherwise each job would fail with the same links.
func (w *ResolveLinks) follow(ctx context.Context, short ranking.ShortLink) (link.Link, error) {
	ctx, cancel := context.WithTimeout(ctx, w.patience*2/3)
	defer cancel()
	l, err := link.Parse(short.URL)
	if err != nil || !l.Short && !l.MayShort {
		return l, &redirect.Dead{Why: "its host is no shortener"}
	}
	return w.client.Follow(ctx, l)
}
