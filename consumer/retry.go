package consumer

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weir-social/weir/schema"
)

// Retry puts parked events through the stream's own way once more: decoded,
// folded, committed, and cut in two until the one at fault is alone. It moves no
// position and needs no lease; revisions and tombstones alone decide what is
// written, so that nothing newer is overwritten and doing it twice changes
// nothing.
type Retry struct {
	// Config gives the pool, the queue, the choice of what is stored, and the log.
	Config
	// Wires are those whose dead letters can be read, by their names.
	Wires map[string]Wire
	// Since is how far back deletions are known: an earlier record might have
	// been deleted since, and stays parked. Zero: all are known.
	Since time.Time

	message Message
}

// Run replays letters of the stages decode and commit, those of each wire in the
// order given. Each is settled in the transaction that stores it; one that fails
// again is open again, with its first cause and its last. The error is of the
// database.
func (r *Retry) Run(ctx context.Context, letters []schema.StoredDeadLetter) error {
	c := &committer{pool: r.Pool, enqueue: r.Enqueue, projections: r.Projections, log: r.Logger, metrics: newMetrics(nil), named: r.named, tracer: cmp.Or[trace.Tracer](r.Tracer, noop.Tracer{}), careful: carefulFor}
	batches := map[string]*batch{}
	var order []*batch
	now := time.Now()
	for i := range letters {
		letter := &letters[i]
		b := batches[letter.Wire]
		if b == nil {
			wire := r.Wires[letter.Wire]
			wire.Name = letter.Wire
			b = &batch{wire: &wire, oldest: now, opened: now}
			batches[letter.Wire], order = b, append(order, b)
		}
		r.add(b, letter, now)
	}
	for _, b := range order {
		if err := c.commit(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// add puts one letter into the batch of its wire.
func (r *Retry) add(b *batch, letter *schema.StoredDeadLetter, now time.Time) {
	switch {
	case len(letter.Raw) == 0:
		b.malformed(&Malformed{Cause: "the record or its account is deleted, and this input with it: there is nothing left to replay"}, letter.ID, now)
		return
	case letter.Truncated():
		b.malformed(&Malformed{Cause: "only the beginning of the input was kept: it cannot be replayed"}, letter.ID, now)
		return
	case b.wire.Decode == nil:
		b.malformed(&Malformed{Cause: "this version of Weir does not know the wire that the input came over", Path: "wire",
			Expected: strings.Join(slices.Sorted(maps.Keys(r.Wires)), " or "), Received: letter.Wire}, letter.ID, now)
		return
	}
	m := &r.message
	b.wire.Decode(letter.Raw, letter.FirstSeen, m)
	m.Arrived = letter.FirstSeen
	m.locate()
	for i, bad := range m.Malformed {
		id := int64(0) // what can be read of a frame is stored, and what cannot is a dead letter of its own
		if i == 0 && len(m.Events) == 0 {
			id = letter.ID
		}
		b.malformed(bad, id, now)
	}
	if len(m.Events) > 0 || len(m.Malformed) == 0 {
		r.addEvents(b, letter.ID, now)
	}
}

// addEvents puts the events of a letter into the batch. The last one settles it,
// or fails again in its place.
func (r *Retry) addEvents(b *batch, letter int64, now time.Time) {
	m, began := &r.message, len(b.events)
	m.Events = slices.DeleteFunc(m.Events, func(ev Event) bool {
		keep, _ := r.keeps(&ev)
		return !keep // the stream would pass it over
	})
	if len(m.Events) == 0 {
		b.settled = append(b.settled, letter)
		return
	}
	writes := func(ev Event) bool { return ev.Kind == KindCommit && ev.Operation != Delete }
	if at := m.happened(); at.Before(r.Since) && slices.ContainsFunc(m.Events, writes) {
		b.malformed(&Malformed{Cause: "the record may have been deleted since, and deletions are no longer known", Path: "/time_us",
			Expected: "an event after " + r.Since.UTC().Format(time.RFC3339), Received: at.UTC().Format(time.RFC3339)}, letter, now)
		return
	}
	m.Events[len(m.Events)-1].Letter = letter
	for i := range m.Events {
		b.add(&m.Events[i], now)
	}
	b.close(&m.Place, began)
}
