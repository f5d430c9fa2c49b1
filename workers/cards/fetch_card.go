// Package cards fetches the pages of links, to read their titles.
package cards

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/internal/links/card"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// FetchCard fetches the pages of links to read their titles. The pages that are due are in
// the table cards, so the next run continues after a killed one.
type FetchCard struct {
	river.WorkerDefaults[FetchCardArgs]
	pool     *pgxpool.Pool
	log      *slog.Logger
	client   *card.Client  // nil: nothing is fetched
	patience time.Duration // how long to run before the job yields to others; shorter than the job's timeout
}

// retryDelay returns the wait after a number of failed attempts.
func retryDelay(tries int) time.Duration {
	return []time.Duration{time.Minute, 10 * time.Minute, time.Hour}[min(tries, 3)-1]
}

// longestRetryAfter limits the wait that a server may request.
const longestRetryAfter = 6 * time.Hour

// Work runs until nothing is due, the hour's fetches are used up, or its time is up.
func (w *FetchCard) Work(ctx context.Context, _ *river.Job[FetchCardArgs]) error {
	if w.client == nil {
		return nil
	}
	until := time.Now().Add(w.patience)
	var more atomic.Bool
	group, ctx := errgroup.WithContext(ctx)
	for range ranking.CardsAtOnce {
		group.Go(func() error {
			for time.Now().Before(until) {
				f, wait, err := ranking.StartCardFetch(ctx, w.pool)
				switch {
				case err != nil:
					return err
				case f != nil:
					err = w.fetch(ctx, *f)
				case wait > 0:
					err = retry.Sleep(ctx, wait)
				default:
					return nil
				}
				if err != nil {
					return err
				}
			}
			more.Store(true)
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if more.Load() {
		return workers.Snooze(0)
	}
	return nil
}

// fetch fetches one page and stores its card.
func (w *FetchCard) fetch(ctx context.Context, f ranking.CardFetch) (err error) {
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), w.patience)
	defer cancel()
	defer func() { err = errors.Join(err, ranking.EndCardFetch(storing, w.pool, f)) }()
	fetching, stop := context.WithTimeout(ctx, w.patience*2/3)
	defer stop()
	page, err := w.client.Fetch(fetching, f.URL)
	var dead *card.Dead
	switch {
	case ctx.Err() != nil: // the process is stopping
		return errors.Join(ctx.Err(), ranking.InterruptCardFetch(storing, w.pool, f))
	case errors.As(err, &dead):
		return ranking.FailCardFetch(storing, w.pool, f, err.Error(), 0)
	case err != nil:
		return ranking.FailCardFetch(storing, w.pool, f, err.Error(), max(retryDelay(f.Try), min(card.RetryAfter(err), longestRetryAfter)))
	}
	if err = w.store(storing, f, ranking.PageCard(page)); schema.Classify(err) == schema.Data {
		return ranking.FailCardFetch(storing, w.pool, f, err.Error(), 0)
	}
	return err
}

// store stores a page. The counter and merges write the same links: after a deadlock the
// page need not be fetched again.
func (w *FetchCard) store(ctx context.Context, f ranking.CardFetch, p ranking.PageCard) (err error) {
	for try := 0; try < 4; try++ {
		err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return ranking.StoreCard(ctx, tx, f, p, time.Now()) })
		if errors.Is(err, ranking.ErrLink) { // the link's target has expired meanwhile
			continue
		}
		if err == nil || schema.Classify(err) != schema.Transient {
			break
		}
	}
	return err
}

const (
	hostInterval = time.Second            // between the starts of two requests to a host, over all processes
	hostLate     = 250 * time.Millisecond // how much later than reserved a request may start
)

// hostTurns returns a function that waits until a request to a host may start: one a
// second, over all processes. If this process misses a reserved start, it takes a new one.
func hostTurns(pool *pgxpool.Pool) func(ctx context.Context, host string) error {
	return func(ctx context.Context, host string) error {
		for {
			asked := time.Now()
			wait, err := ranking.TakeHostTurn(ctx, pool, host, hostInterval+hostLate)
			if err != nil {
				return err
			}
			if err := retry.Sleep(ctx, wait); err != nil {
				return err
			}
			if time.Since(asked)-wait <= hostLate {
				return nil
			}
		}
	}
}

// enqueueInterval is how late the first page is fetched after a time when none was due.
const enqueueInterval = 3 * time.Second

// enqueue adds a job while a page is due, until ctx ends. While one is unfinished, there is no second one.
func (w *FetchCard) enqueue(ctx context.Context, client *river.Client[pgx.Tx]) {
	for retry.Sleep(ctx, enqueueInterval) == nil {
		due, err := ranking.CardsDue(ctx, w.pool)
		if err == nil && due {
			_, err = client.Insert(ctx, FetchCardArgs{}, nil)
		}
		if err != nil && ctx.Err() == nil {
			w.log.Warn("fetch_enqueue_failed", "error", err, "hint", "it is tried again in three seconds")
		}
	}
}
