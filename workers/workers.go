// Package workers processes the jobs, one file per job kind. A job may run twice, be killed at any
// point, or run at the same time as another on the same records; the tables end the same. A worker
// returns nil, a snooze, or an error whose class decides whether the job is retried, cancelled or
// snoozed.
package workers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// riverDriver is River's database driver.
type riverDriver = riverpgxv5.Driver

// Config configures the workers of one process.
type Config struct {
	Shared
	Tracer trace.Tracer // nil: no traces
	ID     string       // names this process in river_job.attempted_by
	// Features add their workers, queues and periodic jobs.
	Features []func(Bundle) error
	Keep     *Retention // the retention; nil: these workers expire nothing
	// Retry processes dead letters of the stages decode and commit like events of
	// the stream, and settles each. It returns database errors only.
	Retry func(context.Context, []schema.StoredDeadLetter) error
	Processing
	Reading
	Alerting
}

// Shared is what the workers of a process have in common.
type Shared struct {
	Pool       *pgxpool.Pool
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	Bluesky    *bluesky.Client
	Networks   Networks // of features
	// Collections are the stored collections and their retention. If empty, only
	// posts are stored, with the retention of Keep.
	Collections collection.Registry
	Projections schema.Projections // registered
	Hooks       []schema.Hook      // of features
	JobTimeout  time.Duration      // 1 min when zero
}

// patience returns how long a job runs before it yields to others.
func (s Shared) patience() time.Duration { return s.JobTimeout / 2 }

// Processing is which queues are processed, and how.
type Processing struct {
	Queues       []string      // the queues to process; all of them when empty
	ProcessOnly  bool          // process the projection queues only, and leave the rest to other processes
	Process      int           // concurrent jobs of each projection queue; 8 when zero
	RescueAfter  time.Duration // how long a killed process's jobs stay "running"; 5 min when zero
	PollOnly     bool          // LISTEN does not work, as behind a transaction pooler
	PollInterval time.Duration // how often a queue that no notification wakes is polled; 10 s when zero, with PollOnly 1 s
	KeepIndexes  bool          // do not rebuild indexes: the role does not own the tables
	// Stopping is closed when the process begins to stop. Jobs that wait for
	// external services then end at once and continue in another process.
	Stopping <-chan struct{}
}

// Reading is what is read from the networks besides the streams.
type Reading struct {
	Network        NetworkArchive // nil: no server is configured that may have an archive
	Backfill       int            // concurrent backfill_account jobs; 4 when zero
	Window         time.Duration  // how far back a new account's feed is read; 24 h when zero
	FromPDS        bool           // read feeds from the accounts' own servers instead of the AppView
	SyncInterval   time.Duration  // how often the watches' listings are read again; 1 h when zero
	Audits         time.Duration  // how often accounts are compared with their repositories; zero: never
	ReadRepository ReadRepository // of resyncs
	Resync         ResyncLimits
	History        HistoryLimits
}

// Alerting is what alerts are sent about, and where.
type Alerting struct {
	Limits        health.Limits    // the thresholds of the alerts
	Health        []health.Feature // of features, whose conditions are alerts, too
	AlertInterval time.Duration    // how often the alerts are checked; 30 s when zero
	Webhook       *Webhook         // where alerts are sent; nil: nowhere
}

// NewBundle returns what the workers of a process share.
func NewBundle(cfg Config) Bundle {
	cfg.Process = cmp.Or(cfg.Process, 8)
	cfg.JobTimeout = cmp.Or(cfg.JobTimeout, time.Minute)
	cfg.RescueAfter = cmp.Or(cfg.RescueAfter, 5*time.Minute)
	cfg.Backfill = cmp.Or(cfg.Backfill, 4)
	cfg.Window = cmp.Or(cfg.Window, 24*time.Hour)
	cfg.SyncInterval = cmp.Or(cfg.SyncInterval, time.Hour)
	cfg.AlertInterval = cmp.Or(cfg.AlertInterval, 30*time.Second)
	if cfg.PollInterval == 0 && cfg.PollOnly {
		cfg.PollInterval = time.Second
	}
	cfg.PollInterval = cmp.Or(cfg.PollInterval, 10*time.Second)
	if cfg.Collections.Empty() {
		cfg.Collections = collection.Of(collection.Entry{Pattern: schema.PostCollection, Retention: cfg.postRetention()})
	}
	return Bundle{Shared: cfg.Shared, Processing: cfg.Processing, bundle: &bundle{
		cfg: &cfg, workers: river.NewWorkers(), args: decoders{}, metrics: newProjectorMetrics(cfg.Registerer, cfg.Collections),
		queues: map[string]int{},
	}}
}

// New builds the client that processes the queues. Start it with Start and stop it by cancelling
// that context: running jobs have 20 s to finish.
func New(cfg Config) (*Client, error) {
	bundle := NewBundle(cfg)
	cfg = *bundle.cfg
	if err := addWorkers(bundle, cfg); err != nil {
		return nil, err
	}
	queues, err := bundle.served()
	if err != nil {
		return nil, err
	}
	indexes := riverIndexes()
	if cfg.KeepIndexes {
		indexes = []string{}
	}
	var wakes []string
	if !cfg.PollOnly {
		wakes = slices.Sorted(maps.Keys(queues))
	}
	clock := &clock{start: time.Now()}
	client, err := river.NewClient(riverpgxv5.New(cfg.Pool), &river.Config{
		ID:      cfg.ID,
		Logger:  quiet(cfg.Logger),
		Workers: bundle.workers,
		Queues:  queues,

		Test:                        river.TestConfig{Time: clock}, // the only way to set River's clock
		RetryPolicy:                 retries{clock},
		MaxAttempts:                 jobs.Attempts + jobs.Deaths,
		Hooks:                       []rivertype.Hook{&dates{}, &deaths{}},
		Middleware:                  append(keepLogs(), newMeasure(cfg.Registerer), newTraced(cfg.Tracer)),
		PollOnly:                    cfg.PollOnly,
		PeriodicJobs:                bundle.periodicJobs(),
		ReindexerIndexNames:         indexes,
		LeaderElectionDisabled:      cfg.ProcessOnly, // a leader must know every job
		JobTimeout:                  cfg.JobTimeout,
		RescueStuckJobsAfter:        cfg.RescueAfter,
		SoftStopTimeout:             20 * time.Second,
		CompletedJobRetentionPeriod: time.Hour,
		DiscardedJobRetentionPeriod: 30 * 24 * time.Hour,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the workers: %w", err)
	}
	return &Client{Client: client, cfg: cfg, bundle: bundle, clock: clock, wakes: wakes}, nil
}

// addWorkers adds all workers.
func addWorkers(bundle Bundle, cfg Config) error {
	interruptible := bundle.Interruptible()
	for _, add := range cfg.Features {
		if err := add(bundle); err != nil {
			return err
		}
	}
	addQueues(bundle, cfg)
	addPeriodic(bundle, cfg)
	for _, row := range cfg.Projections {
		if _, ok := bundle.args[row.Kind]; !ok {
			return fmt.Errorf("projection %q: no worker processes its jobs of kind %s", row.Name, row.Kind)
		}
	}
	Add(bundle, &RunProjection{Shared: cfg.Shared, records: PageRecords})
	Add(interruptible, &SyncFollows{Shared: cfg.Shared, window: cfg.Window})
	Add(interruptible, &RequestBackfill{Shared: cfg.Shared})
	Add(interruptible, &BackfillAccount{Shared: cfg.Shared, fromPDS: cfg.FromPDS})
	Add(bundle, &DeleteExpired{Shared: cfg.Shared})
	Add(interruptible, newResyncRepo(cfg))
	Add(interruptible, &BackfillRepo{Shared: cfg.Shared, read: cfg.ReadRepository, limits: cfg.History.withDefaults(),
		memory: make(chan struct{}, 1)})
	Add(interruptible, &FillCollections{Shared: cfg.Shared, limits: cfg.History.withDefaults(), alerts: cfg.Limits})
	Add(bundle, &CloseGap{Shared: cfg.Shared, archive: cfg.Network})
	Add(interruptible, &BackfillNetwork{Shared: cfg.Shared, archive: cfg.Network, alerts: cfg.Limits})
	Add(bundle, &RetryDeadLetters{Shared: cfg.Shared, events: cfg.Retry, args: bundle.args})
	Add(bundle, &CheckAlerts{Shared: cfg.Shared, Alerting: cfg.Alerting, now: time.Now})
	Add(bundle, &SendAlert{hook: cfg.Webhook, log: cfg.Logger, now: time.Now})
	if cfg.Keep != nil {
		expire, err := NewExpire(bundle, *cfg.Keep)
		if err != nil {
			return err
		}
		Add(bundle, expire)
	}
	Add(interruptible, &Audit{every: cfg.Audits,
		auditor: Auditor{Shared: cfg.Shared, Accounts: auditAccounts, Window: auditWindow, Settle: auditSettle, Repair: true}})
	return nil
}

// riverIndexes returns the indexes that River rebuilds each night. The schema
// drops the two on args and metadata, and River warns about each missing index.
func riverIndexes() []string {
	return []string{
		"river_job_kind", "river_job_pkey", "river_job_prioritized_fetching_index", "river_job_state_and_finalized_at_index",
		"river_job_unique_idx",
	}
}

const (
	auditAccounts = 20
	auditWindow   = 24 * time.Hour
	auditSettle   = 30 * time.Second
)

// postRetention returns how long posts stay; 0: for ever.
func (c Config) postRetention() time.Duration {
	if c.Keep == nil || c.Keep.Forever {
		return 0
	}
	return c.Keep.Window
}

// addQueues adds the queues of the core, and of the projections.
func addQueues(b Bundle, cfg Config) {
	b.Queue(jobs.QueueNetwork, 4)
	b.Queue(jobs.QueueBackfill, cfg.Backfill)
	b.Queue(jobs.QueueResync, resyncsAtOnce)
	b.Queue(jobs.QueueMaintenance, 1)
	b.Queue(jobs.QueueAlerts, 4) // a hanging webhook must not block the next check
	for _, name := range cfg.Projections.AllQueues() {
		if b.queues[name] == 0 {
			b.Queue(name, cmp.Or(cfg.Projections.WorkersOf(name), cfg.Process))
		}
	}
}

// served returns the queues that this process works, with their concurrency.
func (b Bundle) served() (map[string]river.QueueConfig, error) {
	wanted := b.Queues
	if b.ProcessOnly {
		wanted = b.Projections.AllQueues()
	}
	if len(wanted) == 0 {
		wanted = slices.Collect(maps.Keys(b.queues))
	}
	chosen := make(map[string]river.QueueConfig, len(wanted))
	for _, name := range wanted {
		most, ok := b.queues[name]
		if !ok {
			return nil, fmt.Errorf("unknown queue %q: expected some of %s", name, strings.Join(slices.Sorted(maps.Keys(b.queues)), ", "))
		}
		chosen[name] = river.QueueConfig{MaxWorkers: most, FetchCooldown: 50 * time.Millisecond, FetchPollInterval: b.PollInterval}
	}
	return chosen, nil
}

// addPeriodic adds the periodic jobs of the core.
func addPeriodic(b Bundle, cfg Config) {
	b.Every(cfg.SyncInterval, jobs.SyncFollows{})
	b.Every(cfg.AlertInterval, jobs.CheckAlerts{})
	b.Every(time.Minute, jobs.RetryDeadLetters{})
	b.Every(time.Minute, jobs.DeleteExpired{})
	b.Every(time.Minute, jobs.FillCollections{})
	if cfg.Keep != nil {
		b.Every(time.Hour, jobs.Expire{})
	}
	if cfg.Audits > 0 {
		// The job runs often and checks whether an audit is due, because its interval starts again
		// when a process restarts.
		b.Later(min(cfg.Audits, time.Hour), jobs.Audit{})
	}
}

// Queue returns a client that only enqueues. A job enqueued inside a span
// belongs to that span.
func Queue(pool *pgxpool.Pool, log *slog.Logger) (*river.Client[pgx.Tx], error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Logger:      quiet(log),
		MaxAttempts: jobs.Attempts + jobs.Deaths,
		Hooks:       []rivertype.Hook{&dates{}},
		Middleware:  []rivertype.Middleware{newTraced(nil)},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the queue: %w", err)
	}
	return client, nil
}

// CancelBackfills deletes the backfills that have not started, and returns their
// number.
func CancelBackfills(ctx context.Context, client *river.Client[pgx.Tx]) (int, error) {
	dropped := 0
	for {
		result, err := client.JobDeleteMany(ctx,
			river.NewJobDeleteManyParams().Kinds(jobs.BackfillAccount{}.Kind(), jobs.BackfillRepo{}.Kind(), jobs.RequestBackfill{}.Kind()).
				States(rivertype.JobStateAvailable, rivertype.JobStateScheduled, rivertype.JobStateRetryable).First(1000))
		if err != nil {
			return dropped, fmt.Errorf("drop backfills: %w", err)
		}
		if len(result.Jobs) == 0 {
			return dropped, nil
		}
		dropped += len(result.Jobs)
	}
}

// quiet returns a logger that keeps only River's warnings and errors, except those that only report
// that something was stopped.
func quiet(log *slog.Logger) *slog.Logger {
	return slog.New(atLeast{log.Handler()})
}

// atLeast is a handler that drops records below the level of a warning. It also drops errors that
// follow from a cancelled context: a listener that is stopped finds its connection closed.
type atLeast struct{ slog.Handler }

func (h atLeast) Handle(ctx context.Context, r slog.Record) error {
	cancelled := false
	if ctx.Err() != nil {
		r.Attrs(func(a slog.Attr) bool {
			text := a.Value.String()
			cancelled = (a.Key == "error" || a.Key == "err") && (strings.HasSuffix(text, context.Canceled.Error()) || strings.HasSuffix(text,
				"conn closed"))
			return !cancelled
		})
	}
	if cancelled {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

func (h atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs)}
}
func (h atLeast) WithGroup(name string) slog.Handler { return atLeast{h.Handler.WithGroup(name)} }
