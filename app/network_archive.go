package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/jetstream/archive"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// networkArchive reads the archives of the Jetstream servers for the workers.
type networkArchive struct {
	app    App
	client *archive.Client
}

// network returns the archives, or nil if no Jetstream server is configured.
func (p App) network() (workers.NetworkArchive, error) {
	endpoints := slices.DeleteFunc(slices.Clone(p.cfg.Jetstream), func(endpoint string) bool { return endpoint == "" })
	if len(endpoints) == 0 {
		return nil, nil
	}
	client, err := archive.New(archive.Config{
		Endpoints: endpoints, Key: p.cfg.JetstreamKey, Limit: p.calls().Take, UserAgent: userAgent, Logger: p.log,
	})
	if err != nil {
		return nil, fmt.Errorf("WEIR_JETSTREAM: %w", err)
	}
	return &networkArchive{app: p, client: client}, nil
}

// query returns what is requested of an archive: the stored collections of the followed accounts.
func (n *networkArchive) query(ctx context.Context, past workers.NetworkPast) (archive.Query, error) {
	q := archive.Query{From: past.From, To: past.To, Collections: past.Collections}
	if len(q.Collections) == 0 {
		q.Collections = n.app.stored.Repositories().Filter()
	}
	followed, err := schema.FollowedAccounts(ctx, n.app.pool)
	if err == nil && !followed.Everyone {
		var all follows
		all.take(followed)
		q.DIDs, q.Wants = followed.DIDs, func(did []byte) bool { return all.includes(string(did)) }
	}
	return q, err
}

// Plan plans without reading.
func (n *networkArchive) Plan(ctx context.Context, past workers.NetworkPast) (workers.NetworkPlan, error) {
	q, err := n.query(ctx, past)
	if err != nil {
		return workers.NetworkPlan{}, err
	}
	plan, err := n.client.Plan(ctx, q)
	return planOf(plan), planError(err)
}

func planOf(p *archive.Plan) workers.NetworkPlan {
	if p == nil {
		return workers.NetworkPlan{}
	}
	return workers.NetworkPlan{Host: p.Host, Calls: p.Calls, Begins: p.Begins, Sealed: p.Sealed}
}

// planError returns the workers' error for one of the client.
func planError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, archive.ErrNone):
		return fmt.Errorf("%w: %w", workers.ErrNoArchive, err)
	}
	return fmt.Errorf("%w: %w", workers.ErrArchiveUnread, err)
}

const (
	archivedBytes = 2 << 20 // stored together, at most
	mostPlans     = 5       // of one reading
)

// Read stores frames like those of a stream that Weir requested. A segment that was rewritten
// meanwhile is planned again.
func (n *networkArchive) Read(
	ctx context.Context, past workers.NetworkPast, moved func(schema.NetworkProgress) error,
) (workers.NetworkPlan, error) {
	r := &archiveReading{networkArchive: n, moved: moved}
	var err error
	if r.retry, err = n.app.requested(ctx); err != nil {
		return workers.NetworkPlan{}, err
	}
	r.retry.Bulk = true
	if len(past.Collections) > 0 {
		r.retry.Wanted = func(name string) bool {
			return n.app.stored.Stores(name) && slices.ContainsFunc(past.Collections,
				func(pattern string) bool { return pattern == name || collection.Match(pattern, name) })
		}
	}
	for tries := 0; ; tries++ {
		q, err := n.query(ctx, past)
		if err != nil {
			return workers.NetworkPlan{}, err
		}
		plan, err := n.client.Plan(ctx, q)
		if err != nil {
			return planOf(plan), planError(err)
		}
		var failed error // to store
		r.plan, r.frames, r.bytes = plan, nil, 0
		if err = n.client.Read(ctx, plan, func(portion archive.Portion) error { failed = r.take(ctx, portion); return failed }); err == nil &&
			plan.Sealed.After(past.From) {
			r.through = plan.Sealed
			failed = r.store(ctx)
		}
		switch {
		case failed != nil:
			return planOf(plan), failed
		case err == nil || !errors.Is(err, archive.ErrChanged) || tries == mostPlans:
			return planOf(plan), planError(err)
		}
		if r.stored.After(past.From) {
			past.From = r.stored
		}
	}
}

// archiveReading is one reading of an interval.
type archiveReading struct {
	*networkArchive
	plan  *archive.Plan
	retry *consumer.Retry
	moved func(schema.NetworkProgress) error

	frames  [][]byte // that are not stored
	bytes   int
	through time.Time // all events before this time are stored, or in frames
	stored  time.Time // all events before this time are stored
}

// take adds a portion, and stores what has come together.
func (r *archiveReading) take(ctx context.Context, p archive.Portion) error {
	r.frames, r.through = append(r.frames, p.Frames...), p.Through
	for _, f := range p.Frames {
		r.bytes += len(f)
	}
	if len(r.frames) < r.app.cfg.BatchEvents && r.bytes < archivedBytes {
		return nil
	}
	return r.store(ctx)
}

// store stores the frames.
func (r *archiveReading) store(ctx context.Context) error {
	now, err := schema.EarliestTime(ctx, r.app.pool, time.Now())
	if err != nil {
		return err
	}
	written, err := r.retry.Store(ctx, jetstream.WireName, r.frames, now)
	if err != nil {
		return err
	}
	p := schema.NetworkProgress{Host: r.plan.Host, ReadTo: r.through, Events: len(r.frames), Records: written, Begins: r.plan.Begins}
	r.frames, r.bytes, r.stored = nil, 0, r.through
	return r.moved(p)
}
