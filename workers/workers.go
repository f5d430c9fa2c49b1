// Package workers does what the jobs say: a file per job kind. A worker may be
// run twice, killed in the middle, or meet another on the same records, and the
// tables end the same. It ends by an error value: nil, later, or an error whose
// class says whether it is tried again, given up, or waited out.
package workers

import (
	"cmp"
	"context"
	"encoding/json"
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

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/collection"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/ops/health"
	"github.com/weir-social/weir/schema"
)

// riverDriver is how River speaks to our database.
type riverDriver = riverpgxv5.Driver

// Config is what the workers of one process need.
type Config struct {
	Pool         *pgxpool.Pool
	Projections  *Projections  // registered
	More         func(Bundle)  // adds the workers of further projections; may be nil
	ID           string        // names this process in river_job.attempted_by
	Process      int           // jobs of each of the projections' queues at once; 8 when zero
	JobTimeout   time.Duration // 1 min when zero
	RescueAfter  time.Duration // 5 min when zero: how long a killed process's jobs stay "running"
	Bluesky      *bluesky.Client
	Backfill     int           // backfill_account at once; 4 when zero
	Window       time.Duration // 24 h when zero: how far back a new account's feed is read
	SyncInterval time.Duration // 1 h when zero: how often the watches' listings are read again
	FromPDS      bool          // read feeds from the accounts' own servers instead of the AppView
	Keep         *Retention    // how long what is stored stays; nil: these workers expire nothing at all
	// Collections are those that are stored, and for how long; empty: posts alone,
	// for as long as Keep says.
	Collections collection.Registry
	// Retry puts dead letters of the stages decode and commit through the
	// stream's own way, and settles each; its error is the database's.
	Retry         func(context.Context, []schema.StoredDeadLetter) error
	Audit         AuditPlan     // zero: no audits by themselves
	Queues        []string      // the queues to work; all of them when empty
	PollOnly      bool          // LISTEN reaches nobody, as behind a transaction pooler: look every second instead
	KeepIndexes   bool          // rebuild no indexes: the role does not own the tables
	Limits        health.Limits // where well ends, for the alerts
	AlertInterval time.Duration // 30 s when zero: how often what is not well is looked for
	Webhook       *Webhook      // who is told; nil: nobody
	ProcessOnly   bool          // work the projections' queues and nothing else, and leave the rest to other processes
	// Stopping is closed when the process begins to stop. Jobs that wait for
	// other people's services end at once then, and go on in another process.
	Stopping   <-chan struct{}
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: not exposed
	Tracer     trace.Tracer          // nil: no traces
}

// New builds the client that works every queue. Start it, and stop it by its
// context: running jobs get 20 s to finish.
func New(cfg Config) (*Client, error) {
	cfg.Process = cmp.Or(cfg.Process, 8)
	cfg.JobTimeout = cmp.Or(cfg.JobTimeout, time.Minute)
	cfg.RescueAfter = cmp.Or(cfg.RescueAfter, 5*time.Minute)
	cfg.Backfill = cmp.Or(cfg.Backfill, 4)
	cfg.Window = cmp.Or(cfg.Window, 24*time.Hour)
	cfg.SyncInterval = cmp.Or(cfg.SyncInterval, time.Hour)
	cfg.AlertInterval = cmp.Or(cfg.AlertInterval, 30*time.Second)
	if cfg.Collections.Empty() {
		cfg.Collections = collection.Of(collection.Entry{Pattern: schema.PostCollection, Retention: cfg.keeps()})
	}
	known := Bundle{workers: river.NewWorkers(), args: decoders{}, pool: cfg.Pool, log: cfg.Logger, metrics: newProjectorMetrics(cfg.Registerer)}
	asking := known // who asks other people's services, and may be cut short
	asking.stopping = cfg.Stopping
	Add(known, newProcessPosts(cfg, known.Projector(jobs.Links().Name)))
	if cfg.More != nil {
		cfg.More(known)
	}
	for _, row := range cfg.Projections.Rows() {
		if _, ok := known.args[row.Kind]; !ok {
			return nil, fmt.Errorf("projection %q: there is no worker for its jobs, %s", row.Name, row.Kind)
		}
	}
	Add(known, &RunProjection{pool: cfg.Pool, log: cfg.Logger, projections: cfg.Projections, records: runRecords, patience: cfg.JobTimeout / 2})
	Add(asking, &SyncFollows{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger, window: cfg.Window, patience: cfg.JobTimeout / 2})
	Add(asking, &RequestBackfill{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger})
	Add(asking, &BackfillAccount{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger, fromPDS: cfg.FromPDS, stored: cfg.Collections, patience: cfg.JobTimeout / 2, projections: cfg.Projections})
	Add(known, &CloseGap{pool: cfg.Pool, log: cfg.Logger})
	Add(known, &RetryDeadLetters{pool: cfg.Pool, log: cfg.Logger, projections: cfg.Projections, events: cfg.Retry, args: known.args, patience: cfg.JobTimeout / 2})
	Add(known, &CheckAlerts{pool: cfg.Pool, log: cfg.Logger, limits: cfg.Limits, tell: cfg.Webhook != nil, now: time.Now})
	Add(known, &SendAlert{hook: cfg.Webhook, log: cfg.Logger, now: time.Now})
	if cfg.Keep != nil {
		expire, err := newExpire(cfg, *cfg.Keep)
		if err != nil {
			return nil, err
		}
		Add(known, expire)
	}
	Add(asking, &Audit{every: cfg.Audit.Every, auditor: Auditor{Pool: cfg.Pool, API: cfg.Bluesky, Projections: cfg.Projections, Log: cfg.Logger, Accounts: cfg.Audit.Accounts,
		Window: auditWindow, Collections: cfg.Collections, Settle: auditSettle, Repair: true}})
	queues, err := queues(cfg)
	if err != nil {
		return nil, err
	}
	indexes := riverIndexes()
	if cfg.KeepIndexes {
		indexes = []string{}
	}
	clock := &clock{start: time.Now()}
	client, err := river.NewClient(riverpgxv5.New(cfg.Pool), &river.Config{
		ID:      cfg.ID,
		Logger:  quiet(cfg.Logger),
		Workers: known.workers,
		Queues:  queues,

		Test:                        river.TestConfig{Time: clock}, // River's only way to set its clock
		RetryPolicy:                 retries{clock},
		MaxAttempts:                 jobs.Attempts + jobs.Deaths,
		Hooks:                       []rivertype.Hook{&dates{}, &deaths{}},
		Middleware:                  append(keepLogs(), newMeasure(cfg.Registerer), newTraced(cfg.Tracer)),
		PollOnly:                    cfg.PollOnly,
		PeriodicJobs:                cfg.periodic(true),
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
	return &Client{Client: client, cfg: cfg, clock: clock}, nil
}

// riverIndexes are River's indexes that it rebuilds each night. The schema drops
// the two on args and metadata, and River warns about each that is missing.
func riverIndexes() []string {
	return []string{"river_job_kind", "river_job_pkey", "river_job_prioritized_fetching_index", "river_job_state_and_finalized_at_index", "river_job_unique_idx"}
}

// Bundle is the workers of a client.
type Bundle struct {
	workers  *river.Workers
	args     decoders
	pool     *pgxpool.Pool
	log      *slog.Logger
	metrics  *projectorMetrics
	stopping <-chan struct{}
}

// Projector is the common part of the worker of the projection of a name.
func (b Bundle) Projector(name string) *Projector {
	return newProjector(name, b.pool, b.log, b.metrics)
}

// decoders read the arguments of jobs, by kind, as they are stored.
type decoders map[string]func(args []byte) (river.JobArgs, error)

// Add adds a worker. Its jobs end by the one rule, are measured and traced, and
// those that fail for good become dead letters, as all of them.
func Add[T river.JobArgs](b Bundle, w river.Worker[T]) {
	river.AddWorker[T](b.workers, ruled[T]{w, b.log, b.stopping})
	var none T
	b.args[none.Kind()] = func(args []byte) (river.JobArgs, error) {
		var job T
		if err := json.Unmarshal(args, &job); err != nil {
			return nil, fmt.Errorf("read the arguments of a %s job: %w", job.Kind(), err)
		}
		return job, nil
	}
}

// AuditPlan is how often audits are made, and of how many accounts.
type AuditPlan struct {
	Every    time.Duration
	Accounts int
}

const (
	auditWindow = 24 * time.Hour
	auditSettle = 30 * time.Second
)

// keeps is how long posts stay; 0: for ever.
func (c Config) keeps() time.Duration {
	if c.Keep == nil || c.Keep.Forever {
		return 0
	}
	return c.Keep.Window
}

// queues are those that this process works, and how many jobs of each at once.
func queues(cfg Config) (map[string]river.QueueConfig, error) {
	all := map[string]river.QueueConfig{
		jobs.QueueNetwork:     queue(4),
		jobs.QueueBackfill:    queue(cfg.Backfill),
		jobs.QueueMaintenance: queue(1),
		jobs.QueueAlerts:      queue(4), // a webhook that hangs leaves room for the next check
	}
	for _, name := range cfg.Projections.Queues() {
		if _, ok := all[name]; !ok {
			all[name] = queue(cfg.Process)
		}
	}
	wanted := cfg.Queues
	if cfg.ProcessOnly {
		wanted = cfg.Projections.Queues()
	}
	if len(wanted) == 0 {
		return all, nil
	}
	chosen := make(map[string]river.QueueConfig, len(wanted))
	for _, name := range wanted {
		how, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("%q is no queue: expected some of %s", name, strings.Join(slices.Sorted(maps.Keys(all)), ", "))
		}
		chosen[name] = how
	}
	return chosen, nil
}

// periodic are the jobs that the leader adds from time to time: at its start too,
// where start says so.
func (c Config) periodic(start bool) []*river.PeriodicJob {
	if c.ProcessOnly {
		return nil // such a client does not lead
	}
	list := []*river.PeriodicJob{every(c.SyncInterval, jobs.SyncFollows{}, start), every(c.AlertInterval, jobs.CheckAlerts{}, start)}
	if c.Keep != nil {
		list = append(list, every(time.Hour, jobs.Expire{}, start))
	}
	if c.Audit.Every > 0 {
		// It is asked often whether an audit is due, for a process that is started anew starts counting anew.
		list = append(list, every(min(c.Audit.Every, time.Hour), jobs.Audit{}, false))
	}
	return list
}

func every(interval time.Duration, job river.JobArgs, start bool) *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(interval), func() (river.JobArgs, *river.InsertOpts) { return job, nil }, &river.PeriodicJobOpts{RunOnStart: start})
}

// queue is how a queue is worked, so many jobs at once.
func queue(most int) river.QueueConfig {
	return river.QueueConfig{MaxWorkers: most, FetchCooldown: 50 * time.Millisecond, FetchPollInterval: time.Second}
}

// Queue is a client that enqueues and works nothing. What it enqueues inside a
// span belongs to it.
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

// CancelBackfills drops the backfills that have not started, and answers how
// many there were.
func CancelBackfills(ctx context.Context, client *river.Client[pgx.Tx]) (int, error) {
	dropped := 0
	for {
		result, err := client.JobDeleteMany(ctx, river.NewJobDeleteManyParams().Kinds(jobs.BackfillAccount{}.Kind(), jobs.RequestBackfill{}.Kind()).
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

// quiet leaves River's warnings and errors in the log, and drops the rest.
func quiet(log *slog.Logger) *slog.Logger {
	return slog.New(atLeast{log.Handler()})
}

// atLeast is a handler that drops what is below a warning.
type atLeast struct{ slog.Handler }

func (h atLeast) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= slog.LevelWarn && h.Handler.Enabled(ctx, l)
}

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs)}
}
func (h atLeast) WithGroup(name string) slog.Handler { return atLeast{h.Handler.WithGroup(name)} }
