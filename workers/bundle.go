package workers

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
)

// Bundle holds what the features add to a process: workers, queues, periodic jobs. A feature adds its own
// with Add, and the methods of Bundle.
type Bundle struct {
	Shared
	Processing
	*bundle
	stopping <-chan struct{}
}

type bundle struct {
	cfg      *Config
	workers  *river.Workers
	args     decoders
	metrics  *projectorMetrics
	queues   map[string]int // concurrent jobs, by queue
	periodic []periodicJob
	starts   []func(context.Context, *river.Client[pgx.Tx]) error
	runs     []func(context.Context, *river.Client[pgx.Tx])

	before, after []expiryStep
}

type periodicJob struct {
	interval time.Duration
	job      river.JobArgs
	later    bool // not when a process becomes leader, only an interval later
}

// Window returns how far back a new account is read.
func (b Bundle) Window() time.Duration { return b.cfg.Window }

// Audits reports whether there are periodic audits.
func (b Bundle) Audits() bool { return b.cfg.Audits > 0 }

// Expire adds what a feature does in each run of the expiry: before anything else that is not of posts expires, and
// after the accounts that are gone are purged.
func (b Bundle) Expire(before, after func(context.Context, *Expiry) error) {
	b.before, b.after = append(b.before, before), append(b.after, after)
}

// Interruptible returns a bundle for the workers of jobs that call external services: they end at once when
// the process stops, and continue in another.
func (b Bundle) Interruptible() Bundle { return Bundle{b.Shared, b.Processing, b.bundle, b.Stopping} }

// Projector returns the common part of a projection's worker.
func (b Bundle) Projector(name string) *Projector {
	return newProjector(name, b.Pool, b.Logger, b.metrics)
}

// Queue has the process work a queue, up to most of its jobs at once.
func (b Bundle) Queue(name string, most int) { b.queues[name] = most }

// Every adds a job when the process becomes leader, and then periodically.
func (b Bundle) Every(interval time.Duration, job river.JobArgs) {
	b.bundle.periodic = append(b.bundle.periodic, periodicJob{interval: interval, job: job})
}

// Later adds a job periodically, for the first time an interval after the process becomes leader.
func (b Bundle) Later(interval time.Duration, job river.JobArgs) {
	b.bundle.periodic = append(b.bundle.periodic, periodicJob{interval, job, true})
}

// OnStart calls do before the first job is worked. If it fails, the process does not start.
func (b Bundle) OnStart(do func(context.Context, *river.Client[pgx.Tx]) error) {
	b.starts = append(b.starts, do)
}

// Run runs do beside the workers. Its context ends with them.
func (b Bundle) Run(do func(context.Context, *river.Client[pgx.Tx])) { b.runs = append(b.runs, do) }

func (b Bundle) periodicJobs() []*river.PeriodicJob {
	if b.ProcessOnly {
		return nil // this client never becomes leader
	}
	list := make([]*river.PeriodicJob, len(b.bundle.periodic))
	for i, p := range b.bundle.periodic {
		list[i] = river.NewPeriodicJob(river.PeriodicInterval(p.interval), func() (river.JobArgs, *river.InsertOpts) { return p.job, nil },
			&river.PeriodicJobOpts{RunOnStart: !p.later})
	}
	return list
}

// decoders decode the stored arguments of jobs, by kind.
type decoders map[string]func(args []byte) (river.JobArgs, error)

// Add adds a worker. Its jobs are classified, measured and traced like all
// others, and become dead letters when they fail permanently.
func Add[T river.JobArgs](b Bundle, w river.Worker[T]) {
	river.AddWorker[T](b.workers, classifiedWorker[T]{w, b.Logger, b.stopping})
	var zero T
	b.args[zero.Kind()] = func(args []byte) (river.JobArgs, error) {
		var job T
		if err := json.Unmarshal(args, &job); err != nil {
			return nil, fmt.Errorf("read the arguments of a %s job: %w", job.Kind(), err)
		}
		return job, nil
	}
}
