package workers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/internal/retry"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// Projections are the projections of this program. Each gets a job for the records
// that a commit writes. Nothing can be enqueued before they are registered in the
// database. So no process stores records without the jobs of every projection.
type Projections struct {
	all        []projection
	registered atomic.Bool
	watchEvery time.Duration
}

// projection is one projection, with the values that every commit needs.
type projection struct {
	jobs.Projection
	row  schema.Projection
	opts *river.InsertOpts
}

// NewProjections collects projections. Names and job kinds must be unique.
func NewProjections(all ...jobs.Projection) *Projections {
	p := &Projections{watchEvery: watchEvery}
	for _, one := range all {
		args := one.Job(jobs.Batch{})
		queue := jobs.QueueProcess
		if own, ok := args.(river.JobArgsWithInsertOpts); ok {
			queue = cmp.Or(own.InsertOpts().Queue, queue)
		}
		p.all = append(p.all, projection{
			Projection: one,
			row: schema.Projection{Name: one.Name, Collections: one.Collections, Kind: args.Kind(), Queue: queue, Tables: one.Tables, Compared: one.Compared,
				Queues: queuesOf(one), Deletions: one.Deletions, Expires: one.Expires},
			opts: &river.InsertOpts{Queue: queue},
		})
	}
	return p
}

// queuesOf returns the names of a projection's own queues.
func queuesOf(p jobs.Projection) []string {
	names := make([]string, len(p.Queues))
	for i := range p.Queues {
		names[i] = p.Queues[i].Name
	}
	return names
}

// own returns the queue that a projection has for a collection alone, or nil.
func (p *projection) own(name string) *jobs.Queue {
	for i := range p.Queues {
		if slices.ContainsFunc(p.Queues[i].Collections, func(pattern string) bool { return collection.Match(pattern, name) }) {
			return &p.Queues[i]
		}
	}
	return nil
}

// jobs returns the jobs for the written records: one for each queue.
func (p *projection) jobs(written []schema.Stored, arrived time.Time, stream string) []river.InsertManyParams {
	params := make([]river.InsertManyParams, 0, 1)
	records, fresh := p.of(written)
	add := func(records []jobs.Record, opts *river.InsertOpts) {
		if len(records) > 0 {
			params = append(params, river.InsertManyParams{Args: p.Job(jobs.Batch{Records: records, Arrived: arrived, Stream: stream, Fresh: fresh}), InsertOpts: opts})
		}
	}
	if len(p.Queues) == 0 {
		add(records, p.opts)
		return params
	}
	parts := make(map[*jobs.Queue][]jobs.Record)
	var last string
	var queue *jobs.Queue
	for _, r := range records {
		if r.Collection != last {
			last, queue = r.Collection, p.own(r.Collection)
		}
		parts[queue] = append(parts[queue], r)
	}
	add(parts[nil], p.opts)
	for i := range p.Queues {
		q := &p.Queues[i]
		add(parts[q], &river.InsertOpts{Queue: q.Name, Priority: q.Priority})
	}
	return params
}

// workers returns how many jobs of a queue run at once, or 0 if the queue is not one
// of collections.
func (p *Projections) workers(queue string) int {
	for i := range p.all {
		for _, q := range p.all[i].Queues {
			if q.Name == queue {
				return q.Workers
			}
		}
	}
	return 0
}

// With returns these projections and another one, not registered yet.
func (p *Projections) With(one jobs.Projection) *Projections {
	all := make([]jobs.Projection, 0, len(p.all)+1)
	for i := range p.all {
		all = append(all, p.all[i].Projection)
	}
	return NewProjections(append(all, one)...)
}

// Register stores the projections in the database. It fails if the database has
// a projection that this program lacks. If a projection is new, or reads other
// collections than before, the stored records are projected in the background.
func (p *Projections) Register(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	changed, err := schema.RegisterProjections(ctx, pool, p.Rows())
	if err != nil {
		return err
	}
	for _, name := range changed {
		log.Info("projection_registered", "projection", name)
	}
	p.registered.Store(true)
	return nil
}

// Check returns a *schema.OutdatedError if the database has other projections,
// because another program has registered or removed some.
func (p *Projections) Check(ctx context.Context, db schema.DB) error {
	return schema.CheckProjections(ctx, db, p.Rows())
}

// watchEvery is how often Watch checks. It is much shorter than the time after which
// River rescues a job and, if its kind is unknown, discards it.
const watchEvery = 5 * time.Second

// Watch returns an error as soon as the database has other projections than
// these, and nil when ctx ends.
func (p *Projections) Watch(ctx context.Context, pool *pgxpool.Pool) error {
	for retry.Sleep(ctx, p.watchEvery) == nil {
		err := p.Check(ctx, pool)
		if _, ok := errors.AsType[*schema.OutdatedError](err); ok {
			return err
		}
	}
	return nil
}

// Rows returns the projections as rows of the database.
func (p *Projections) Rows() schema.Projections {
	if p == nil {
		return nil
	}
	rows := make(schema.Projections, len(p.all))
	for i := range p.all {
		rows[i] = p.all[i].row
	}
	return rows
}

// Queues returns the queues of their jobs, each once.
func (p *Projections) Queues() (queues []string) {
	for _, row := range p.Rows() {
		queues = append(append(queues, row.Queue), row.Queues...)
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

// Kinds returns the kinds of their jobs.
func (p *Projections) Kinds() (kinds []string) {
	for _, row := range p.Rows() {
		kinds = append(kinds, row.Kind)
	}
	return kinds
}

// named returns the projection with a name.
func (p *Projections) named(name string) (*projection, error) {
	for i := range p.all {
		if p.all[i].Name == name {
			return &p.all[i], nil
		}
	}
	return nil, nonRetryable(fmt.Errorf("there is no projection %q", name))
}

// optsOf returns the insert options of a projection's jobs by their kind, or nil for
// any other kind.
func (p *Projections) optsOf(kind string) *river.InsertOpts {
	for i := range p.all {
		if p.all[i].row.Kind == kind {
			return p.all[i].opts
		}
	}
	return nil
}

// of returns the written records that the projection reads, and whether all of them
// are fresh. The records of one collection are adjacent.
func (p *projection) of(written []schema.Stored) (records []jobs.Record, fresh bool) {
	last, reads := "", false
	fresh = true
	for i := range written {
		w := &written[i]
		if w.Collection != last {
			last = w.Collection
			reads = p.row.Reads(last)
		}
		if !reads || w.Fresh && p.Concerns != nil && !p.Concerns(last, w.Record) {
			continue
		}
		if records == nil {
			records = make([]jobs.Record, 0, len(written)-i)
		}
		records = append(records, jobs.Record(w.Key))
		fresh = fresh && w.Fresh
	}
	return records, fresh
}

// Enqueue returns a function that adds the jobs for the records that a commit wrote,
// in its transaction: one job per projection and queue with records for it. A record
// that is retried or edited is projected again. stream names the stream whose lease
// the transaction holds. Without a stream, the transaction itself keeps projections
// from being registered before it ends.
func (p *Projections) Enqueue(client *river.Client[pgx.Tx], stream string) func(ctx context.Context, tx pgx.Tx, written []schema.Stored, arrived time.Time) error {
	rows := p.Rows()
	return func(ctx context.Context, tx pgx.Tx, written []schema.Stored, arrived time.Time) error {
		if len(written) == 0 {
			return nil
		}
		if !p.registered.Load() {
			return errors.New("records cannot be stored before the projections are registered")
		}
		if stream == "" {
			if err := schema.LockProjections(ctx, tx, rows); err != nil {
				return err
			}
		}
		params := make([]river.InsertManyParams, 0, len(p.all))
		for i := range p.all {
			params = append(params, p.all[i].jobs(written, arrived, stream)...)
		}
		if len(params) == 0 {
			return nil
		}
		if _, err := client.InsertManyTx(ctx, tx, params); err != nil {
			return fmt.Errorf("enqueue projection jobs: %w", err)
		}
		return nil
	}
}
