// Package workers does what the jobs say: a file per job kind. A worker may be
// run twice, killed in the middle, or meet another on the same records, and the
// tables end the same. It ends by an error value: nil, an error to be retried,
// a cancel when no retry would help, a snooze for not yet.
package workers

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/weir-social/weir/bluesky"
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
	// Replay puts dead letters of the stages decode and commit through the
	// stream's own way, and settles each; its error is the database's.
	Replay      func(context.Context, []schema.Letter) error
	ProcessOnly bool // work process_posts and nothing else, and leave the rest to other processes
	Logger      *slog.Logger
	Registerer  prometheus.Registerer // nil: not exposed
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
	known := bundle{river.NewWorkers(), decoders{}}
	posts := newProcessPosts(cfg)
	add(known, posts)
	add(known, &SyncFollows{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger, window: cfg.Window, patience: cfg.JobTimeout / 2})
	add(known, &RequestBackfill{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger})
	add(known, &BackfillAccount{pool: cfg.Pool, api: cfg.Bluesky, log: cfg.Logger, fromPDS: cfg.FromPDS, patience: cfg.JobTimeout / 2})
	add(known, &CloseGap{pool: cfg.Pool, log: cfg.Logger})
	add(known, &ReplayDeadLetters{pool: cfg.Pool, log: cfg.Logger, posts: posts, events: cfg.Replay, args: known.args, patience: cfg.JobTimeout / 2})
	periodic := []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(cfg.SyncEvery), func() (river.JobArgs, *river.InsertOpts) {
		return jobs.SyncFollows{}, nil
	}, &river.PeriodicJobOpts{RunOnStart: true})}
	if cfg.Keep != nil {
		expire, err := newExpire(cfg, *cfg.Keep)
		if err != nil {
			return nil, err
		}
		add(known, expire)
		periodic = append(periodic, river.NewPeriodicJob(river.PeriodicInterval(time.Hour), func() (river.JobArgs, *river.InsertOpts) {
			return jobs.Expire{}, nil
		}, &river.PeriodicJobOpts{RunOnStart: true}))
	}
	queues := map[string]river.QueueConfig{jobs.QueueProcess: queue(cfg.Process)}
	if cfg.ProcessOnly {
		periodic = nil // the leader's business
	} else {
		queues[jobs.QueueNetwork] = queue(4)
		queues[jobs.QueueBackfill] = queue(cfg.Backfill)
		queues[jobs.QueueMaintenance] = queue(1)
	}
	client, err := river.NewClient(riverpgxv5.New(cfg.Pool), &river.Config{
		ID:      cfg.ID,
		Logger:  quiet(cfg.Logger),
		Workers: known.workers,
		Queues:  queues,

		Middleware: []rivertype.Middleware{newMeasure(cfg.Registerer)},

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

// bundle is the workers of a client.
type bundle struct {
	workers *river.Workers
	args    decoders
}

// decoders read the arguments of jobs, by kind, as they are stored.
type decoders map[string]func(args []byte) (river.JobArgs, error)

// add registers a worker, whose jobs end by the one rule.
func add[T river.JobArgs](b bundle, w river.Worker[T]) {
	river.AddWorker[T](b.workers, ruled[T]{w})
	var none T
	b.args[none.Kind()] = func(args []byte) (river.JobArgs, error) {
		var job T
		if err := json.Unmarshal(args, &job); err != nil {
			return nil, fmt.Errorf("read the arguments of a %s job: %w", job.Kind(), err)
		}
		return job, nil
	}
}

// queue is how a queue is worked, so many jobs at once.
func queue(most int) river.QueueConfig {
	return river.QueueConfig{MaxWorkers: most, FetchCooldown: 50 * time.Millisecond, FetchPollInterval: time.Second}
}

// Queue is a client that enqueues and works nothing.
func Queue(pool *pgxpool.Pool, log *slog.Logger) (*river.Client[pgx.Tx], error) {
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Logger: quiet(log)})
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
