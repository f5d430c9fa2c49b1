package schema

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/collection"
	"github.com/weir-social/weir/jobs"
)

// Enqueue returns a function that adds the jobs for the records that a commit wrote,
// in its transaction: one job per projection and queue with records for it. A record
// that is retried or edited is projected again. stream names the stream whose lease
// the transaction holds, which was taken after the projections were registered. Without
// a stream, the transaction itself keeps projections from being registered before it
// ends, and fails if these are not.
func (p Projections) Enqueue(
	client *river.Client[pgx.Tx], stream string,
) func(ctx context.Context, tx pgx.Tx, written []Stored, arrived time.Time) error {
	return func(ctx context.Context, tx pgx.Tx, written []Stored, arrived time.Time) error {
		if len(written) == 0 {
			return nil
		}
		if stream == "" {
			if err := p.Lock(ctx, tx); err != nil {
				return err
			}
		}
		params := make([]river.InsertManyParams, 0, len(p))
		for i := range p {
			params = append(params, p[i].jobs(written, arrived, stream)...)
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

// separate returns the queue that a projection has for a collection alone, or nil.
func (p *Projection) separate(name string) *Queue {
	for i := range p.Separate {
		if slices.ContainsFunc(p.Separate[i].Collections, func(pattern string) bool { return collection.Match(pattern, name) }) {
			return &p.Separate[i]
		}
	}
	return nil
}

// jobs returns the jobs for the written records: one for each queue.
func (p *Projection) jobs(written []Stored, arrived time.Time, stream string) []river.InsertManyParams {
	params := make([]river.InsertManyParams, 0, 1)
	records, fresh := p.Of(written)
	add := func(records []jobs.Record, opts *river.InsertOpts) {
		if len(records) > 0 {
			batch := jobs.Batch{Records: records, Arrived: arrived, Stream: stream, Fresh: fresh}
			params = append(params, river.InsertManyParams{Args: p.Job(batch), InsertOpts: opts})
		}
	}
	own := &river.InsertOpts{Queue: p.Queue}
	if len(p.Separate) == 0 {
		add(records, own)
		return params
	}
	parts := make(map[*Queue][]jobs.Record)
	var last string
	var queue *Queue
	for _, r := range records {
		if r.Collection != last {
			last, queue = r.Collection, p.separate(r.Collection)
		}
		parts[queue] = append(parts[queue], r)
	}
	add(parts[nil], own)
	for i := range p.Separate {
		q := &p.Separate[i]
		add(parts[q], &river.InsertOpts{Queue: q.Name, Priority: q.Priority})
	}
	return params
}

// Of returns the written records that the projection reads, and whether all of them
// are fresh. The records of one collection are adjacent.
func (p *Projection) Of(written []Stored) (records []jobs.Record, fresh bool) {
	last, reads := "", false
	fresh = true
	for i := range written {
		w := &written[i]
		if w.Collection != last {
			last = w.Collection
			reads = p.Reads(last)
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

// AllQueues returns the queues of the projections' jobs, each once.
func (p Projections) AllQueues() (queues []string) {
	for i := range p {
		queues = append(append(queues, p[i].Queue), p[i].Queues...)
	}
	slices.Sort(queues)
	return slices.Compact(queues)
}

// WorkersOf returns how many jobs of a queue run at once, or 0 if the queue is not one
// of collections.
func (p Projections) WorkersOf(queue string) int {
	for i := range p {
		for _, q := range p[i].Separate {
			if q.Name == queue {
				return q.Workers
			}
		}
	}
	return 0
}

// Kinds returns the kinds of their jobs.
func (p Projections) Kinds() (kinds []string) {
	for i := range p {
		kinds = append(kinds, p[i].Kind)
	}
	return kinds
}

// Named returns the projection with a name, or nil.
func (p Projections) Named(name string) *Projection {
	if i := slices.IndexFunc(p, func(one Projection) bool { return one.Name == name }); i >= 0 {
		return &p[i]
	}
	return nil
}
