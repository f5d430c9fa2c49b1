// Package consumer turns a stream into transactions: each batch of events commits
// its records, the stream's position and the jobs that process the records
// together, or not at all. After any crash the tables equal the fold of the stream.
// One bad event never stops the others. A process that lost its lease commits
// nothing. The package does not interpret records: the workers do.
package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/schema"
)

// ErrEnd is returned by Conn.Next when a finite source has been read to its end.
var ErrEnd = errors.New("the stream has ended")

// Enqueue adds the jobs for the records that a commit wrote, in its transaction.
// arrived is the arrival of the batch's first event.
type Enqueue func(ctx context.Context, tx pgx.Tx, written []schema.Stored, arrived time.Time) error

// EnqueueResyncs adds the jobs that compare accounts with their repositories, in the
// transaction that marks them.
type EnqueueResyncs func(ctx context.Context, tx pgx.Tx, resyncs []schema.Resync) error

// Depth counts up to most waiting jobs for the stream's records. If more events than jobs
// wait as dead letters, it counts those instead.
type Depth func(ctx context.Context, most int) (int, error)

// Storage says which events are stored, and where.
type Storage struct {
	Pool        *pgxpool.Pool
	Enqueue     Enqueue
	Resync      EnqueueResyncs                 // for a source that verifies
	Projections schema.Projections             // list the rows to delete with a record
	Hooks       []schema.Hook                  // of features
	Wanted      func(collection string) bool   // reports whether a collection is stored
	Label       func(collection string) string // a stored collection's label in metrics; nil: its name
	Follows     func(did string) bool          // reports whether an account's events are applied; nil: everyone's
	Frames      FrameHook                      // of a feature; nil: none
	Logger      *slog.Logger
	Tracer      trace.Tracer // nil: no traces
}

// Config configures a consumer. Zero durations and sizes take the defaults.
type Config struct {
	Storage
	Stream string // the name of the stream's row
	Wire   string // for the row; empty: the name of the source's wire
	Source Source
	Leasing
	Batching
	Resuming
	Partitioning
	QuietAfter time.Duration // 5 s: after this silence the stream is quiet, if its last events were recent
	// 15 s: the same if no recent event has arrived; a thirtieth of the requested past if that is longer and the
	// server filters
	SilentFor time.Duration

	// With more than MaxDepth waiting jobs or events the consumer disconnects until at most
	// half remain: the server keeps events better than the queue.
	Depth    Depth // nil: no limit
	MaxDepth int   // 10,000

	Registerer prometheus.Registerer // nil: not exposed

	can Capabilities // the source's
}

// Leasing is how a consumer takes and holds the lease.
type Leasing struct {
	Owner     string        // the name of this process in the lease
	LeaseTTL  time.Duration // 10 s: how long the lease of a dead consumer lasts
	LeasePoll time.Duration // 1 s: how often a waiting consumer tries to take the lease

	// Leased is called after each acquisition of the lease, before the first
	// connection, and repeated until it succeeds. It reads the accounts to follow:
	// the last holder may have known of a change that this process has not seen. A
	// *schema.OutdatedError ends the consumer, because this program must store
	// nothing.
	Leased func(context.Context) error
}

// Batching is how frames are buffered, and become transactions.
type Batching struct {
	BatchEvents   int           // 4000
	BatchInterval time.Duration // 100 ms
	BufferBytes   int64         // 16 MiB
	FullWait      time.Duration // 2 s: how long the reader waits for space in a full buffer; servers drop a client after 5 s
	DrainWithin   time.Duration // 15 s: how long a stop may take to commit what has been read

	// BlockOnFullBuffer makes the reader wait for space in the buffer without
	// limit: for a source that does not drop slow readers and cannot be resumed.
	BlockOnFullBuffer bool
}

// Resuming is where a connection starts, and how it is shown that nothing was missed.
type Resuming struct {
	Start          Cursor        // where to start without a stored position; none: the live tip
	IgnorePosition bool          // the source always starts at its beginning
	Rewind         time.Duration // the source's Rewind: how far before the position a resume by time starts
	GapThreshold   time.Duration // 5 min: a shorter hole is no gap if the stream was quiet
	AnchorWithin   time.Duration // 10 s: how long to wait for an anchor, counted from the first event
	BeginWithin    time.Duration // 2 min: how long a server that does not filter may take to send the first event of the requested past
	ResumeWithin   time.Duration // as long as deletions are kept, 8 days: an older position is not resumed, and leaves a gap
}

// Partitioning is which partitions of posts are created ahead.
type Partitioning struct {
	Keep              time.Duration    // how long posts are kept, which sets the size of their partitions; 0: for ever
	PartitionInterval time.Duration    // 5 min: how often partitions of posts are checked; sooner after a failure
	Now               func() time.Time // time.Now: the time around which partitions of posts are created
}

// filterHash returns the hash of the source's filter. A cursor is valid for one
// filter.
func (c *Config) filterHash() string {
	if source, ok := c.Source.(Filtered); ok {
		return source.FilterHash()
	}
	return ""
}

// Consumer reads one stream into one database.
type Consumer struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	session        atomic.Pointer[session] // the current connection; nil between connections
	connectFailure atomic.Pointer[Attempt] // the last attempt to connect, if it failed
	depth          atomic.Int64            // waiting jobs while the stream is paused by backpressure, else 0
	uncounted      atomic.Bool             // the position may have moved since the waiting jobs were counted
	beat           MonotonicTime
	clock          clock
}

// LastHeartbeat returns when the consumer last renewed its lease, or tried to renew
// or take it. It is zero before the first attempt.
func (c *Consumer) LastHeartbeat() time.Time { return c.beat.At() }

// New checks the configuration and sets the defaults.
func New(cfg Config) (*Consumer, error) {
	switch {
	case cfg.Stream == "" || cfg.Owner == "":
		return nil, errors.New("a consumer needs the names of its stream and its owner")
	case cfg.Source == nil || cfg.Pool == nil || cfg.Enqueue == nil || cfg.Wanted == nil || cfg.Logger == nil:
		return nil, errors.New("a consumer needs Source, Pool, Enqueue, Wanted and Logger")
	}
	cfg.can = cfg.Source.Capabilities()
	cfg.Wire = cmp.Or(cfg.Wire, cfg.can.Wire.Name)
	cfg.MaxDepth = cmp.Or(cfg.MaxDepth, 10_000)
	cfg.BatchEvents = cmp.Or(cfg.BatchEvents, 4000)
	cfg.BatchInterval = cmp.Or(cfg.BatchInterval, 100*time.Millisecond)
	cfg.BufferBytes = cmp.Or(cfg.BufferBytes, 16<<20)
	cfg.FullWait = cmp.Or(cfg.FullWait, 2*time.Second)
	if cfg.BlockOnFullBuffer {
		cfg.FullWait = math.MaxInt64
	}
	cfg.LeaseTTL = cmp.Or(cfg.LeaseTTL, 10*time.Second)
	cfg.LeasePoll = cmp.Or(cfg.LeasePoll, time.Second)
	cfg.Rewind = cmp.Or(cfg.Rewind, cfg.can.Rewind, 5*time.Minute)
	cfg.GapThreshold = cmp.Or(cfg.GapThreshold, 5*time.Minute)
	cfg.AnchorWithin = cmp.Or(cfg.AnchorWithin, 10*time.Second)
	cfg.BeginWithin = cmp.Or(cfg.BeginWithin, 2*time.Minute)
	cfg.ResumeWithin = cmp.Or(cfg.ResumeWithin, 7*24*time.Hour)
	cfg.QuietAfter = cmp.Or(cfg.QuietAfter, 5*time.Second)
	cfg.SilentFor = cmp.Or(cfg.SilentFor, 15*time.Second)
	cfg.DrainWithin = cmp.Or(cfg.DrainWithin, 15*time.Second)
	cfg.PartitionInterval = cmp.Or(cfg.PartitionInterval, 5*time.Minute)
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Consumer{cfg: cfg, log: cfg.Logger.With("stream", cfg.Stream), metrics: newMetrics(cfg.Registerer)}, nil
}

// Run consumes until ctx ends or a finite source has been read. It then commits
// what was read, releases the lease and returns nil. While another process holds
// the lease it waits. It returns an error only if no retry would help.
func (c *Consumer) Run(ctx context.Context) error {
	waiting := false
	for ctx.Err() == nil {
		lease, ok, err := c.takeLease(ctx)
		c.beat.Set(time.Now())
		switch {
		case ctx.Err() != nil && ok:
			return c.releaseLease(ctx, lease)
		case ctx.Err() != nil:
			return nil
		case err != nil && schema.Classify(err) != schema.Transient:
			return err
		case err != nil || !ok:
			if !waiting {
				c.log.Info("waiting_for_lease", "error", err)
				waiting = true
			}
			c.endStalled(ctx)
			retry.Sleep(ctx, c.cfg.LeasePoll) // the next turn checks the context
			continue
		}
		waiting = false
		c.clock.set(lease.Taken)
		c.log.Info("lease_taken", "epoch", lease.Epoch, "cursor", lease.Position.Cursor, "host", lease.Position.Host)
		switch err := c.holdLease(ctx, lease); {
		case errors.Is(err, ErrEnd):
			return nil
		case errors.Is(err, schema.ErrFenced):
			c.log.Warn("lease_lost", "epoch", lease.Epoch)
		case err != nil:
			return err
		}
	}
	return nil
}

// endStalled ends the session of a lease holder that stalls in a commit.
func (c *Consumer) endStalled(ctx context.Context) {
	ended, err := schema.EndStalled(ctx, c.cfg.Pool, c.cfg.Stream, schema.StalledAfter)
	if err == nil && ended {
		c.log.Warn("stalled_holder_ended", "effect", "its transaction is rolled back, and the stream is free")
	}
}

// holdLease reads the stream for as long as this process holds the lease. It
// returns nil when ctx has ended, ErrEnd, ErrFenced or a fatal error. Only it releases the
// lease, after the heartbeat, which would otherwise report the released lease as lost.
func (c *Consumer) holdLease(ctx context.Context, lease schema.Lease) error {
	c.metrics.epoch.Set(float64(lease.Epoch))
	defer c.metrics.epoch.Set(0)
	// Commits may continue after ctx has ended, for at most DrainWithin.
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stopDrain := context.AfterFunc(ctx, func() {
		time.AfterFunc(c.cfg.DrainWithin, func() { cancel(fmt.Errorf("commits did not finish within %s after the stop", c.cfg.DrainWithin)) })
	})
	defer stopDrain()
	stop, halt := context.WithCancel(ctx)
	defer halt()

	beat := make(chan error, 1)
	go func() {
		err := c.heartbeat(work, lease)
		halt()
		if err != nil {
			cancel(err)
		}
		beat <- err
	}()
	partitions := c.startPartitions(stop)
	err := c.connections(work, stop, lease)
	cancel(err)
	heartbeatErr := <-beat
	halt()
	<-partitions
	if errors.Is(err, schema.ErrFenced) || errors.Is(heartbeatErr, schema.ErrFenced) {
		return schema.ErrFenced
	}
	return errors.Join(err, c.releaseLease(ctx, lease))
}

// takeLease takes the lease if it is free. When ctx ends, it waits another second for the
// result: a lease that was taken and not released would block the stream until it expires.
func (c *Consumer) takeLease(ctx context.Context) (schema.Lease, bool, error) {
	take, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(time.Second, cancel) })()
	return schema.TakeLease(take, c.cfg.Pool, c.cfg.Stream, c.cfg.Wire, c.cfg.Owner, c.cfg.LeaseTTL)
}

func (c *Consumer) releaseLease(ctx context.Context, lease schema.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	return lease.Release(ctx, c.cfg.Pool)
}

// connections runs one connection after another. work bounds the commits, stop ends the
// reading.
func (c *Consumer) connections(work, stop context.Context, lease schema.Lease) error {
	commits := &committer{Storage: &c.cfg.Storage, lease: lease, log: c.log, metrics: c.metrics, position: lease.Position,
		uncounted: &c.uncounted, exclusive: c.cfg.IgnorePosition || c.cfg.can.Overlaps}
	if c.cfg.IgnorePosition {
		commits.position = schema.Position{}
	}
	if err := c.leased(stop); err != nil {
		return err
	}
	begins := atCursor
	for stop.Err() == nil {
		if c.depth.Load() > 0 {
			retry.Sleep(stop, 100*time.Millisecond) // the next turn checks the context
			continue
		}
		s, err := c.connect(stop, commits, begins)
		switch {
		case stop.Err() != nil && err != nil:
			return nil
		case errors.Is(err, ErrCursorRefused):
			c.mismatch("", err)
			begins = earlier
			continue
		case err != nil:
			return err
		}
		if err := c.begin(work, s, commits); err != nil {
			s.conn.Close() // the connection was not used
			return err
		}
		c.session.Store(s)
		c.connectFailure.Store(nil)
		c.log.Info("connected", "host", s.conn.Host(), "cursor", s.requested.Value, "cursor_kind", s.requested.Kind)
		err = s.run(work, stop, commits)
		if at := s.caughtUp(); !at.IsZero() {
			commits.position.CaughtUp, commits.position.Quiet = later(commits.position.CaughtUp, at), true
		}
		c.session.Store(nil)
		begins = atCursor
		if errors.Is(err, errResume) || errors.Is(err, ErrCursorRefused) {
			begins = earlier
		}
		switch {
		case errors.Is(err, ErrEnd):
			return ErrEnd
		case work.Err() != nil:
			return context.Cause(work)
		case stop.Err() != nil:
			return nil
		case begins == earlier:
			c.mismatch(s.conn.Host(), err)
		case errors.Is(err, schema.ErrFenced), s.broken.Load():
			return err
		case c.depth.Load() > 0: // logged when the pause began
		default:
			c.log.Warn("disconnected", "host", s.conn.Host(), "error", err)
		}
	}
	return nil
}

// mismatch counts a connection that did not start at the requested cursor.
func (c *Consumer) mismatch(host string, err error) {
	c.metrics.mismatches.Inc()
	c.log.Warn("resume_mismatch", "host", host, "error", err)
}

// leased calls Config.Leased until it succeeds or ctx ends. It returns an error
// only if this program is outdated.
func (c *Consumer) leased(ctx context.Context) error {
	for c.cfg.Leased != nil && ctx.Err() == nil {
		err := c.cfg.Leased(ctx)
		if err == nil {
			return nil
		}
		if _, ok := errors.AsType[*schema.OutdatedError](err); ok {
			return err
		}
		c.log.Warn("stream_start_failed", "error", err)
		retry.Sleep(ctx, c.cfg.LeasePoll) // the next turn checks the context
	}
	return nil
}

// heartbeat renews the lease and writes the stream's state until ctx ends or the
// lease is lost. It continues while the database is away: the fence prevents
// commits if another process takes the lease.
func (c *Consumer) heartbeat(ctx context.Context, lease schema.Lease) error {
	tick := time.NewTicker(min(c.cfg.LeaseTTL/5, time.Second))
	defer tick.Stop()
	c.uncounted.Store(true)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if c.uncounted.Swap(false) || c.depth.Load() > 0 { // a quiet stream adds no jobs
				c.checkBackpressure(ctx)
			}
			err := c.renew(ctx, lease)
			c.beat.Set(time.Now())
			if errors.Is(err, schema.ErrFenced) {
				return err
			}
		}
	}
}

func (c *Consumer) renew(ctx context.Context, lease schema.Lease) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL/2)
	defer cancel()
	beat := schema.Heartbeat{}
	beat.State, beat.Detail = c.state()
	if s := c.session.Load(); s != nil {
		beat.CaughtUp = s.caughtUp()
	}
	if a := c.connectFailure.Load(); a != nil {
		beat.Failed = a.Failed
	}
	now, err := lease.Renew(ctx, c.cfg.Pool, beat)
	if err == nil {
		c.clock.set(now)
	}
	return err
}

// checkBackpressure counts the waiting jobs and ends the connection if there are
// too many. What was read before is committed. When half of them are done, the next
// connection resumes there.
func (c *Consumer) checkBackpressure(ctx context.Context) {
	if c.cfg.Depth == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, c.cfg.LeaseTTL/2)
	defer cancel()
	was := c.depth.Load() > 0
	limit := c.cfg.MaxDepth
	if was {
		limit /= 2
	}
	depth, err := c.cfg.Depth(ctx, c.cfg.MaxDepth+1)
	switch {
	case err != nil: // the heartbeat reports the database
		c.uncounted.Store(true)
	case depth > limit:
		c.depth.Store(int64(depth))
		if s := c.session.Load(); s != nil {
			s.conn.Close() // it is over either way
		}
		if !was {
			c.metrics.pauses.Inc()
			c.log.Warn("paused_by_backpressure", "jobs", depth, "limit", c.cfg.MaxDepth)
		}
	case was:
		c.depth.Store(0)
		c.log.Info("resumed_after_backpressure", "jobs", depth)
	}
}

// state returns the stream's state and its detail.
func (c *Consumer) state() (state, detail string) {
	if n := c.depth.Load(); n > 0 {
		return schema.StateDraining,
			fmt.Sprintf("at least %d jobs or unverified events are waiting, and the limit is %d: start more workers, or wait", n, c.cfg.MaxDepth)
	}
	if s := c.session.Load(); s != nil {
		return s.state()
	}
	if connectFailure := c.connectFailure.Load(); connectFailure != nil {
		return schema.StateNoNetwork, fmt.Sprintf("%s: %v", connectFailure.Endpoint, connectFailure.Err)
	}
	return schema.StateConnecting, ""
}
