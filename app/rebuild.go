package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/time/rate"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Rebuild configures how an archive is read into a database.
type Rebuild struct {
	PerSecond int                                     // records at most; 0: as fast as possible
	Progress  func(done, all int, m archive.Manifest) // called after each segment
}

// RebuildDatabase reads the archive into an empty database through the normal commit, and
// processes the jobs that result. The streams are then at the archived position. An
// interrupted rebuild continues after the last whole segment.
func (p App) RebuildDatabase(ctx context.Context, how Rebuild) error {
	r, err := p.rebuilding(how)
	if err != nil {
		return err
	}
	reason, err := catalog.Rebuildable(ctx, p.pool)
	if err == nil && reason != "" {
		err = fmt.Errorf("the database is not empty: %s", reason)
	}
	if err != nil {
		return err
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	now := time.Now()
	if r.reach, err = p.reach(now); err != nil {
		return err
	}
	if err := p.ensureDays(ctx, r.reach, now); err != nil {
		return err
	}
	// There is no leader during a rebuild, so only this releases jobs that a killed
	// rebuild left running.
	if err := schema.ReleaseJobs(ctx, p.pool, 0, p.projections.Kinds()...); err != nil {
		return err
	}
	return p.processing(ctx, r.run)
}

func (p App) rebuilding(how Rebuild) (*rebuilding, error) {
	store, err := p.cfg.OpenArchive()
	r := &rebuilding{App: p, store: store, progress: how.Progress, limit: rate.NewLimiter(rate.Inf, 0)}
	if how.PerSecond > 0 {
		r.limit = rate.NewLimiter(rate.Limit(how.PerSecond), how.PerSecond)
	}
	return r, err
}

// rebuilding is a running rebuild.
type rebuilding struct {
	App
	store     archive.Store
	progress  func(done, all int, m archive.Manifest)
	limit     *rate.Limiter // of records
	snapshots catalog.Snapshots
	follows   func(did string) bool // nil: everyone is stored
	reach     time.Time             // a server does not send events again that were archived before this
	forgotten archive.Forgetting    // accounts that are not read
	read      int                   // number of segments
	all       int
}

// run restores the last snapshots, reads the segments that have not been read, and sets
// the positions of the streams. It restores the snapshots once more at the end, because
// events may have changed what listings said about an account. Links can be merged once
// the workers have stored them.
func (r *rebuilding) run(ctx context.Context) error {
	manifests, err := segmentsOf(ctx, r.store, "")
	if err != nil {
		return err
	}
	if r.forgotten, err = archive.ReadForgotten(ctx, r.store); err != nil {
		return err
	}
	if err := catalog.RestoreForgotten(ctx, r.pool, r.forgotten); err != nil {
		return err
	}
	done, err := catalog.Segments(ctx, r.pool)
	if err != nil {
		return err
	}
	slices.SortStableFunc(manifests, func(a, b archive.Manifest) int { return rebuildOrder(a.Stream) - rebuildOrder(b.Stream) })
	r.all = len(manifests)
	streams, _ := slices.BinarySearchFunc(manifests, rebuildOrder(""), func(m archive.Manifest, order int) int { return rebuildOrder(m.Stream) - order })
	for _, m := range manifests[:streams] {
		if err := r.segment(ctx, m, r.readSnapshots); err != nil {
			return err
		}
	}
	if err := r.snapshots.Restore(ctx, r.pool); err != nil {
		return err
	}
	// If the whole network was archived, only the accounts that were followed are stored.
	if scope, _ := r.cfg.archiveScope(); scope == frames.ScopeEverything && !r.snapshots.FollowsEveryone() {
		r.follows = r.snapshots.EverFollowed
	}
	positions := map[string]json.RawMessage{}
	for _, m := range manifests[streams:] {
		if m.Position != nil {
			positions[m.Stream] = m.Position
		}
		if slices.ContainsFunc(done, func(d archive.Manifest) bool { return d.Name == m.Name }) {
			r.read++
			continue
		}
		read := r.commitSegment
		if m.Stream == catalog.StreamFetched {
			read = r.restoreFetched
		}
		if err := r.segment(ctx, m, read); err != nil {
			return err
		}
	}
	if err := r.snapshots.Restore(ctx, r.pool); err != nil {
		return err
	}
	if err := r.drained(ctx); err != nil || ctx.Err() != nil {
		return errors.Join(err, ctx.Err())
	}
	// No periodic job runs during a rebuild.
	changed := workers.Config{Pool: r.pool, Projections: r.projections, Collections: r.stored, Logger: r.log}
	if err := workers.ProjectChanged(ctx, changed); err != nil {
		return err
	}
	if err := ranking.RestoreMerges(ctx, r.pool, r.snapshots.Rows(ranking.SnapshotOfMerges)); err != nil {
		return err
	}
	if err := ranking.RestoreBlocks(ctx, r.pool, r.snapshots.Rows(ranking.SnapshotOfBlocks)); err != nil {
		return err
	}
	return catalog.RestorePositions(ctx, r.pool, positions) // the last step: with them the rebuild is finished
}

// rebuildOrder returns the order in which a stream is read. Snapshots come first, because
// they contain the followed accounts. Fetched records come last: an account that was
// inactive in an earlier segment of its stream would refuse them.
func rebuildOrder(stream string) int {
	switch stream {
	case catalog.StreamSnapshots:
		return 0
	case catalog.StreamFetched:
		return 2
	}
	return 1
}

// segment reads a segment, and records that it was read.
func (r *rebuilding) segment(ctx context.Context, m archive.Manifest, read readRecords) error {
	m, err := r.records(ctx, m, read)
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return ctx.Err() // the consumer stopped before the end
	}
	if err := catalog.RestoreSegment(ctx, r.pool, m, r.store.String(), time.Now()); err != nil {
		return err
	}
	r.read++
	r.progress(r.read, r.all, m)
	return nil
}

// readRecords reads the records of a segment.
type readRecords func(context.Context, archive.Manifest, iter.Seq2[[]byte, error]) error

// records calls read with the records of a segment's last version, and returns its
// manifest.
func (r *rebuilding) records(ctx context.Context, m archive.Manifest, read readRecords) (archive.Manifest, error) {
	m, segment, err := archive.FetchLast(ctx, r.store, m)
	if err == nil {
		err = segment.Matches(m)
	}
	var records iter.Seq2[[]byte, error]
	if err == nil {
		records, err = remaining(r.forgotten, m, segment)
	}
	if err == nil {
		err = read(ctx, m, r.limited(ctx, records))
	}
	return m, err
}

// remaining yields the records of a segment without the data to forget.
func remaining(forgotten archive.Forgetting, m archive.Manifest, segment *archive.Segment) (iter.Seq2[[]byte, error], error) {
	if len(forgotten) == 0 {
		return segment.Records(), nil
	}
	strip, err := strip(m)
	if err != nil {
		return nil, err
	}
	return forgotten.Records(m, segment.Records(), strip), nil
}

// limited yields records at most at the limit's rate.
func (r *rebuilding) limited(ctx context.Context, records iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for record, err := range records {
			if err == nil {
				err = r.limit.Wait(ctx)
			}
			if !yield(record, err) || err != nil {
				return
			}
		}
	}
}

// readSnapshots collects snapshots.
func (r *rebuilding) readSnapshots(_ context.Context, m archive.Manifest, records iter.Seq2[[]byte, error]) error {
	for record, err := range records {
		if err == nil {
			err = r.snapshots.Add(record)
		}
		if err != nil {
			return fmt.Errorf("segment %s: %w", m.Name, err)
		}
	}
	return nil
}

// restoreFetched stores fetched records, a few hundred at a time.
func (r *rebuilding) restoreFetched(ctx context.Context, m archive.Manifest, records iter.Seq2[[]byte, error]) error {
	queue, err := workers.Queue(r.pool, r.log)
	if err != nil {
		return err
	}
	enqueue := r.projections.Enqueue(queue, "")
	restore := func(some [][]byte) error {
		err := catalog.RestoreFetched(ctx, r.pool, r.projections, r.stored.Stores, r.reach, some, func(ctx context.Context, tx pgx.Tx, changed []schema.Key) error {
			return enqueue(ctx, tx, schema.NotFresh(changed), time.Time{})
		})
		if err != nil {
			return fmt.Errorf("segment %s: %w", m.Name, err)
		}
		return nil
	}
	for some, err := range pages(records) {
		if err == nil {
			err = restore(some)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// commitSegment commits the records of a stream's segment.
func (r *rebuilding) commitSegment(ctx context.Context, m archive.Manifest, records iter.Seq2[[]byte, error]) error {
	wire, err := r.archivedWire(m)
	if err != nil {
		return err
	}
	scope, err := r.cfg.archiveScope()
	if err != nil {
		return err
	}
	archived := &frames.Hook{Scope: scope, Follows: r.follows, Known: true, OutOfReach: m.LastAt.Before(r.reach)}
	stream := r.cfg.Stream + "-rebuild"
	c, err := r.consumer(consumer.Config{
		Stream: stream, Wire: schema.WireRecording, Source: &recording.Records{Name: m.Name, Wire: wire, Frames: records}, IgnorePosition: true, BlockOnFullBuffer: true, Follows: r.follows,
		Frames: archived, BatchEvents: r.cfg.BatchEvents, BatchInterval: r.cfg.BatchInterval, BufferBytes: min(r.cfg.BufferBytes, 8<<20), LeaseTTL: r.cfg.LeaseTTL,
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropTimeout)
	defer cancel()
	return errors.Join(err, schema.DropRecording(dropping, r.pool, stream))
}
