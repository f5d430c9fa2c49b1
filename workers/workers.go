// Package workers does what the jobs say: a file per job kind. A worker may be
// run twice, killed in the middle, or meet another on the same records, and the
// tables end the same. It ends by an error value: nil, an error to be retried,
// a cancel when no retry would help, a snooze for not yet.
package workers

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel/trace"

	"github.com/weir-social/weir/bluesky"
	"github.com/weir-social/weir/health"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// riverDriver is how River speaks to our database.
type riverDriver = riverpgxv5.Driver

// Config is what the workers of one process need.
type Config struct {
	Pool        *pgxpool.Pool
	ID          string        // names this process in river_job.attempted_by
	Process     int           // process_posts at once; 8 when zero
	JobTimeout  time.Duration // 1 min when zero
	RescueAfter time.Duration // 5 min when zero: how long a killed process's jobs stay "running"
	Bluesky     *bluesky.Client
	Backfill    int           // backfill_account at once; 4 when zero
	Window      time.Duration // 24 h when zero: how far back a new account's feed is read
	SyncEvery   time.Duration // 1 h when zero: how often the watches' listings are read again
	FromPDS     bool          // read feeds from the accounts' own servers instead of the AppView
	Keep        *Retention    // how long what is stored stays; nil: for ever
	Limits      health.Limits // where well ends, for the alerts
	AlertEvery  time.Duration // 30 s when zero: how often what is not well is looked for
	Webhook     *Webhook      // who is told; nil: nobody
	ProcessOnly bool          // work process_posts and nothing else, and leave the rest to other processes
	Logger      *slog.Logger
	Registerer  prometheus.Registerer // nil: not exposed
	Tracer      trace.Tracer          // nil: no traces
}

// New builds the client that works every queue. Start it, and stop it by its
// context: running jobs get 20 s to finish.
func New(cfg Config) (*river.Client[pgx.Tx], error) {
	cfg.Process = cmp.Or(cfg.Process, 8)
	cfg.JobTimeout = cmp.Or(cfg.JobTimeout, time.Minute)
	cfg.RescueAfter = cmp.Or(cfg.RescueAfter, 5*time.Minute)
	cfg.Backfill = cmp.Or(cfg.Backfill, 4)
	cfg.Window = cmp.Or(cfg.Window, 24*time.Hour)
	cfg.SyncEvery = cmp.Or(cfg.SyncEvery, time.Hour)
	cfg.AlertEvery = cmp.Or(cfg.AlertEvery, 30*time.Second)
	bundle := river.NewWorkers()
	river.AddWorker(bundle, newProcessPosts(cfg))
	river.AddWorker(bundle, &SyncFollows{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger, window: cfg.Window})
	river.AddWorker(bundle, &RequestBackfill{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger})
	river.AddWorker(bundle, &BackfillAccount{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger, fromPDS: cfg.FromPDS, patience: cfg.JobTimeout / 2})
	river.AddWorker(bundle, &CloseGap{pool: cfg.Pool, log: cfg.Logger})
	river.AddWorker(bundle, &CheckAlerts{pool: cfg.Pool, log: cfg.Logger, limits: cfg.Limits, tell: cfg.Webhook != nil, now: time.Now})
	river.AddWorker(bundle, &SendAlert{hook: cfg.Webhook, now: time.Now})
	periodic := []*river.PeriodicJob{every(cfg.SyncEvery, jobs.SyncFollows{}), every(cfg.AlertEvery, jobs.CheckAlerts{})}
	if cfg.Keep != nil {
		expire, err := newExpire(cfg, *cfg.Keep)
		if err != nil {
			return nil, err
		}
		river.AddWorker(bundle, expire)
		periodic = append(periodic, every(time.Hour, jobs.Expire{}))
	}
	queues := map[string]river.QueueConfig{jobs.QueueProcess: queue(cfg.Process)}
	if cfg.ProcessOnly {
		periodic = nil // the leader's business
	} else {
		queues[jobs.QueueNetwork] = queue(4)
		queues[jobs.QueueBackfill] = queue(cfg.Backfill)
		queues[jobs.QueueMaintenance] = queue(1)
		queues[jobs.QueueAlerts] = queue(4) // a webhook that hangs leaves room for the next check
	}
	client, err := river.NewClient(riverpgxv5.New(cfg.Pool), &river.Config{
		ID:      cfg.ID,
		Logger:  quiet(cfg.Logger),
		Workers: bundle,
		Queues:  queues,

		Middleware: []rivertype.Middleware{newMeasure(cfg.Registerer), newTraced(cfg.Tracer)},

		PeriodicJobs:                periodic,
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
	return client, nil
}

// every is a job that the leader adds from time to time, and at its start.
func every(interval time.Duration, job river.JobArgs) *river.PeriodicJob {
	return river.NewPeriodicJob(river.PeriodicInterval(interval), func() (river.JobArgs, *river.InsertOpts) { return job, nil }, &river.PeriodicJobOpts{RunOnStart: true})
}

// queue is how a queue is worked, so many jobs at once.
func queue(most int) river.QueueConfig {
	return river.QueueConfig{MaxWorkers: most, FetchCooldown: 50 * time.Millisecond, FetchPollInterval: time.Second}
}

// Queue is a client that enqueues and works nothing. What it enqueues inside a
// span belongs to it.
func Queue(pool *pgxpool.Pool, log *slog.Logger) (*river.Client[pgx.Tx], error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet(log), Middleware: []rivertype.Middleware{newTraced(nil)}})
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

// Enqueue adds the jobs for the records that a commit wrote, in its
// transaction: one job for all the posts among them. A retried or edited post
// is simply processed again.
func Enqueue(client *river.Client[pgx.Tx]) func(ctx context.Context, tx pgx.Tx, written []schema.Key, arrived time.Time) error {
	return func(ctx context.Context, tx pgx.Tx, written []schema.Key, arrived time.Time) error {
		job := jobs.ProcessPosts{Arrived: arrived}
		for _, key := range written {
			if key.Collection == schema.PostCollection {
				job.Posts = append(job.Posts, key.DID+"/"+key.Rkey)
			}
		}
		if len(job.Posts) == 0 {
			return nil
		}
		if _, err := client.InsertTx(ctx, tx, job, nil); err != nil {
			return fmt.Errorf("enqueue %s: %w", job.Kind(), err)
		}
		return nil
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
