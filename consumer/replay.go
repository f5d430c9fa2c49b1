package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/weir-social/weir/schema"
)

// Replay puts parked events through the stream's own way once more: decoded,
// folded, committed, and cut in two until the one at fault is alone. It moves no
// position and needs no lease; revisions and tombstones alone decide what is
// written, so that nothing newer is overwritten and doing it twice changes
// nothing.
type Replay struct {
	// Config gives the pool, the queue, the choice of what is stored, and the log.
	Config
	// Decode reads a frame of the wire that the letters came over.
	Decode func(frame []byte, arrived time.Time) (Event, error)
	// Since is how far back deletions are known: an earlier record might have
	// been deleted since, and stays parked. Zero: all are known.
	Since time.Time
}

// Run replays letters of the stages decode and commit in the order given. Each
// is settled in the transaction that stores it; one that fails again is open
// again, with its first cause and its last. The error is of the database.
func (r *Replay) Run(ctx context.Context, letters []schema.Letter) error {
	now := time.Now()
	b := &batch{oldest: now, opened: now}
	for i := range letters {
		if err := r.add(b, &letters[i], now); err != nil {
			return err
		}
	}
	c := &committer{pool: r.Pool, enqueue: r.Enqueue, projections: r.Projections, log: r.Logger, metrics: newMetrics(nil), named: r.named, tracer: cmp.Or[trace.Tracer](r.Tracer, noop.Tracer{}), careful: carefulFor}
	return c.commit(ctx, b)
}

// add puts one letter into the batch.
func (r *Replay) add(b *batch, letter *schema.Letter, now time.Time) error {
	if len(letter.Raw) == 0 {
		b.malformed(&Malformed{Cause: "the record or its account is deleted, and this input with it: there is nothing left to replay"}, letter.ID, now)
		return nil
	}
	if letter.Truncated() {
		b.malformed(&Malformed{Cause: "only the beginning of the input was kept: it cannot be replayed"}, letter.ID, now)
		return nil
	}
	ev, err := r.Decode(letter.Raw, letter.FirstSeen)
	var bad *Malformed
	switch {
	case errors.As(err, &bad):
		b.malformed(bad, letter.ID, now)
		return nil
	case err != nil:
		return fmt.Errorf("decode dead letter %d: %w", letter.ID, err)
	}
	ev.Letter = letter.ID
	keep, _ := r.keeps(&ev)
	switch {
	case !keep:
		b.settled = append(b.settled, letter.ID) // the stream would pass it over
	case ev.Kind == KindCommit && ev.Operation != Delete && happened(&ev).Before(r.Since):
		b.malformed(&Malformed{Cause: "the record may have been deleted since, and deletions are no longer known", Path: "/time_us",
			Expected: "an event after " + r.Since.UTC().Format(time.RFC3339), Received: happened(&ev).UTC().Format(time.RFC3339)}, letter.ID, now)
	default:
		b.add(&ev, now)
	}
	return nil
}
