package recovery

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/time/rate"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/schema"
)

// Rebuild reads an archive into a database.
type Rebuild struct {
	Source
	Pool        *pgxpool.Pool
	Scope       frames.Scope
	Remember    time.Duration // how long a server may send an event again
	Projections schema.Projections
	Enqueue     consumer.Enqueue // of what the projections read
	// Consume commits what a finite source yields, and returns when all of it is committed.
	Consume func(context.Context, consumer.Config) error
	// Finish is called when everything is committed, with the snapshots' rows of features.
	Finish func(ctx context.Context, rows func(table string) []json.RawMessage) error

	PerSecond int                                     // records at most; 0: as fast as possible
	Progress  func(done, all int, m archive.Manifest) // called after each segment
}

// rebuilding is a running rebuild.
type rebuilding struct {
	Rebuild
	limit     *rate.Limiter // of records
	snapshots catalog.Snapshots
	follows   func(did string) bool // nil: everyone is stored
	reach     time.Time             // a server does not send events again that were archived before this
	forgotten archive.Forgetting    // accounts that are not read
	read      int                   // number of segments
	all       int
}

func (r Rebuild) begin(now time.Time) *rebuilding {
	b := &rebuilding{Rebuild: r, limit: rate.NewLimiter(rate.Inf, 0), reach: now.Add(-r.Remember - 24*time.Hour)} // see work.SweepArchive
	if r.PerSecond > 0 {
		b.limit = rate.NewLimiter(rate.Limit(r.PerSecond), r.PerSecond)
	}
	return b
}

// Prepare returns an error if the database is not empty, and makes the partitions of the known events.
func (r Rebuild) Prepare(ctx context.Context) error {
	reason, err := catalog.Rebuildable(ctx, r.Pool)
	if err == nil && reason != "" {
		err = fmt.Errorf("the database is not empty: %s", reason)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	return r.begin(now).ensureDays(ctx, now)
}

// Database reads the archive into a prepared database through the normal commit. The streams are then at the
// archived position. An interrupted rebuild continues after the last whole segment.
func (r Rebuild) Database(ctx context.Context) error { return r.begin(time.Now()).run(ctx) }

// run restores the last snapshots, reads the segments that have not been read, and sets
// the positions of the streams. It restores the snapshots once more at the end, because
// events may have changed what listings said about an account. Links can be merged once
// the workers have stored them.
func (r *rebuilding) run(ctx context.Context) error {
	manifests, err := segmentsOf(ctx, r.Store, "")
	if err != nil {
		return err
	}
	if r.forgotten, err = archive.ReadForgotten(ctx, r.Store); err != nil {
		return err
	}
	if err := catalog.RestoreForgotten(ctx, r.Pool, r.forgotten); err != nil {
		return err
	}
	done, err := catalog.Segments(ctx, r.Pool)
	if err != nil {
		return err
	}
	slices.SortStableFunc(manifests, func(a, b archive.Manifest) int { return rebuildOrder(a.Stream) - rebuildOrder(b.Stream) })
	r.all = len(manifests)
	streams, _ := slices.BinarySearchFunc(manifests, rebuildOrder(""),
		func(m archive.Manifest, order int) int { return rebuildOrder(m.Stream) - order })
	for _, m := range manifests[:streams] {
		if err := r.segment(ctx, m, r.readSnapshots); err != nil {
			return err
		}
	}
	if err := r.snapshots.Restore(ctx, r.Pool); err != nil {
		return err
	}
	// If the whole network was archived, only the accounts that were followed are stored.
	if r.Scope == frames.ScopeEverything && !r.snapshots.FollowsEveryone() {
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
	if err := r.snapshots.Restore(ctx, r.Pool); err != nil {
		return err
	}
	if err := r.Finish(ctx, r.snapshots.Rows); err != nil {
		return err
	}
	return catalog.RestorePositions(ctx, r.Pool, positions) // the last step: with them the rebuild is finished
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
	if err := catalog.RestoreSegment(ctx, r.Pool, m, r.Store.String(), time.Now()); err != nil {
		return err
	}
	r.read++
	r.Progress(r.read, r.all, m)
	return nil
}

// readRecords reads the records of a segment.
type readRecords func(context.Context, archive.Manifest, iter.Seq2[[]byte, error]) error

// records calls read with the records of a segment's last version, and returns its
// manifest.
func (r *rebuilding) records(ctx context.Context, m archive.Manifest, read readRecords) (archive.Manifest, error) {
	m, segment, err := archive.FetchLast(ctx, r.Store, m)
	if err == nil {
		err = segment.Matches(m)
	}
	var records iter.Seq2[[]byte, error]
	if err == nil {
		records, err = r.remaining(r.forgotten, m, segment)
	}
	if err == nil {
		err = read(ctx, m, r.limited(ctx, records))
	}
	return m, err
}

// remaining yields the records of a segment without the data to forget.
func (s Source) remaining(forgotten archive.Forgetting, m archive.Manifest, segment *archive.Segment) (iter.Seq2[[]byte, error], error) {
	if len(forgotten) == 0 {
		return segment.Records(), nil
	}
	strip, err := s.Strip(m)
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
	restore := func(some [][]byte) error {
		err := catalog.RestoreFetched(ctx, r.Pool, r.Projections, r.Stores, r.reach, some,
			func(ctx context.Context, tx pgx.Tx, changed []schema.Key) error {
				return r.Enqueue(ctx, tx, schema.NotFresh(changed), time.Time{})
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
	wire, err := r.Wire(m)
	if err != nil {
		return err
	}
	archived := &frames.Hook{Scope: r.Scope, Follows: r.follows, IDsOnly: true, OutOfReach: m.LastAt.Before(r.reach)}
	return r.Consume(ctx, consumer.Config{
		Source: &recording.Records{Name: m.Name, Wire: wire, Frames: records}, Storage: consumer.Storage{Follows: r.follows, Frames: archived},
	})
}
