package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// SyncFollows makes the watched accounts of a watch what its listing says now,
// and has the feeds of new accounts read, in one transaction. It writes only
// after a complete listing: one that fails or breaks off removes nobody.
// Working it twice changes nothing the second time.
type SyncFollows struct {
	river.WorkerDefaults[jobs.SyncFollows]
	pool   *pgxpool.Pool
	api    *bluesky.Client
	log    *slog.Logger
	window time.Duration // how far back a new account's feed is read
}

// settle is how long after an account is followed its feed is read: by then the
// consumers ask for its posts, and nothing falls between the two.
const settle = 3 * time.Second

// maxMembers bounds a listing.
const maxMembers = 1_000_000

// Timeout is longer than the other jobs': fifty thousand accounts are five
// hundred pages, and each waits for its turn.
func (w *SyncFollows) Timeout(*river.Job[jobs.SyncFollows]) time.Duration { return 10 * time.Minute }

// Work reads the listing and takes it over.
func (w *SyncFollows) Work(ctx context.Context, job *river.Job[jobs.SyncFollows]) error {
	if job.Args.Watch == 0 {
		return w.every(ctx)
	}
	watch, err := schema.FindWatch(ctx, w.pool, job.Args.Watch)
	if errors.Is(err, schema.ErrNoRows) {
		return river.JobCancel(fmt.Errorf("watch %d is gone", job.Args.Watch))
	}
	if err != nil {
		return err
	}
	began := time.Now()
	members, err := w.members(ctx, watch)
	if err != nil {
		if noted := schema.WatchFailed(ctx, w.pool, watch.ID, err.Error()); noted != nil {
			return errors.Join(err, noted)
		}
		return ending(err)
	}
	now := time.Now()
	var changed schema.Changed
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		var err error
		if changed, err = schema.SetMembers(ctx, tx, watch.ID, members, began); err != nil {
			return err
		}
		priority := jobs.PriorityNewFollow
		if changed.First {
			priority = jobs.PriorityColdStart
		}
		if _, err := enqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), changed.Added, now.Add(-w.window), priority, now.Add(settle)); err != nil {
			return err
		}
		_, err = river.JobCompleteTx[*riverDriver](ctx, tx, job)
		return err
	})
	if errors.Is(err, schema.ErrNoRows) {
		return river.JobCancel(fmt.Errorf("watch %d is gone, or was read by somebody who began later", job.Args.Watch))
	}
	if err == nil {
		jobLog(ctx, w.log).Info("follows_synced", "watch", watch.ID, "kind", watch.Kind, "target", watch.Target, "members", len(members),
			"added", len(changed.Added), "removed", changed.Removed)
	}
	return err
}

// every adds a job for each watch.
func (w *SyncFollows) every(ctx context.Context) error {
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		dids, since, err := schema.Unwaited(ctx, tx)
		if err != nil || len(dids) == 0 {
			return err
		}
		_, err = enqueueBackfills(ctx, tx, river.ClientFromContext[pgx.Tx](ctx), dids, since.Add(-time.Minute), jobs.PriorityGap, time.Now())
		return err
	})
	if err != nil {
		return err
	}
	watches, err := schema.Watches(ctx, w.pool)
	if err != nil || len(watches) == 0 {
		return err
	}
	params := make([]river.InsertManyParams, len(watches))
	for i, watch := range watches {
		params[i] = river.InsertManyParams{Args: jobs.SyncFollows{Watch: watch.ID}}
	}
	if _, err := river.ClientFromContext[pgx.Tx](ctx).InsertMany(ctx, params); err != nil {
		return fmt.Errorf("enqueue %s: %w", jobs.SyncFollows{}.Kind(), err)
	}
	return nil
}

// members reads the whole listing of a watch.
func (w *SyncFollows) members(ctx context.Context, watch schema.Watch) ([]schema.Member, error) {
	target, err := bluesky.ParseTarget(watch.Target)
	if err != nil {
		return nil, river.JobCancel(err)
	}
	switch watch.Kind {
	case "account":
		return w.account(ctx, target)
	case "follows":
		return w.follows(ctx, target.Actor)
	case "second-degree":
		return w.secondDegree(ctx, target.Actor, watch.AtLeast)
	case "starterpack":
		list, err := w.api.StarterPack(ctx, target.URI)
		if err != nil {
			return nil, err
		}
		target.URI = list
	}
	return w.pages(ctx, func(ctx context.Context, cursor string) ([]bluesky.Profile, string, error) {
		return w.api.List(ctx, target.URI, cursor)
	})
}

// follows is whom an account follows.
func (w *SyncFollows) follows(ctx context.Context, actor string) ([]schema.Member, error) {
	return w.pages(ctx, func(ctx context.Context, cursor string) ([]bluesky.Profile, string, error) {
		return w.api.Follows(ctx, actor, cursor)
	})
}

// secondDegree is whom so many of those follow whom an account follows. One of
// them that cannot be read counts for nobody.
func (w *SyncFollows) secondDegree(ctx context.Context, actor string, atLeast int) ([]schema.Member, error) {
	first, err := w.follows(ctx, actor)
	if err != nil {
		return nil, err
	}
	found, times := map[string]schema.Member{}, map[string]int{}
	for _, m := range first {
		theirs, err := w.follows(ctx, m.DID)
		if refused(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, m := range theirs {
			found[m.DID] = m
			times[m.DID]++
		}
	}
	var members []schema.Member
	for did, n := range times {
		if n >= atLeast {
			members = append(members, found[did])
		}
	}
	slices.SortFunc(members, func(a, b schema.Member) int { return strings.Compare(a.DID, b.DID) })
	return members, nil
}

// account is the one account of a watch.
func (w *SyncFollows) account(ctx context.Context, target bluesky.Target) ([]schema.Member, error) {
	did := target.Actor
	if !strings.HasPrefix(did, "did:") {
		var err error
		if did, err = w.api.ResolveHandle(ctx, did); err != nil {
			return nil, err
		}
	}
	found, err := w.api.Profiles(ctx, []string{did})
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, river.JobCancel(fmt.Errorf("there is no account %s", target.Actor))
	}
	return []schema.Member{member(found[0])}, nil
}

// pages reads a listing to its end, each account once.
func (w *SyncFollows) pages(ctx context.Context, page func(context.Context, string) ([]bluesky.Profile, string, error)) ([]schema.Member, error) {
	var members []schema.Member
	seen := map[string]bool{}
	cursor := ""
	for {
		profiles, next, err := page(ctx, cursor)
		if err != nil {
			return nil, err
		}
		for _, p := range profiles {
			if !seen[p.DID] {
				seen[p.DID] = true
				members = append(members, member(p))
			}
		}
		switch {
		case next == "":
			return members, nil
		case len(members) > maxMembers:
			return nil, river.JobCancel(fmt.Errorf("the listing has more than %d accounts", maxMembers))
		}
		cursor = next
	}
}

func member(p bluesky.Profile) schema.Member {
	return schema.Member{DID: p.DID, Handle: p.Handle, DisplayName: p.DisplayName, Avatar: p.Avatar}
}

// ending is how a job ends that could not ask: later, never, or with a retry.
func ending(err error) error {
	switch {
	case bluesky.Classify(err) == bluesky.RateLimited:
		return river.JobSnooze(max(bluesky.RetryAfter(err), time.Second))
	case refused(err):
		return river.JobCancel(err)
	}
	return err
}

// refused answers whether what was asked for is not to be had. A refused login
// says nothing about that: a person will correct it.
func refused(err error) bool {
	return err != nil && bluesky.Classify(err) == bluesky.Permanent && !errors.Is(err, bluesky.ErrLogin)
}
