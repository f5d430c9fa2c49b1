package consumer

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/weir-social/weir/schema"
)

// Retry processes dead-lettered events like events of the stream: they are decoded,
// folded and committed, and a rejected batch is split until the failing event is
// alone. It moves no position and needs no lease. Revisions and tombstones decide
// what is written, so it overwrites nothing newer and can be repeated.
type Retry struct {
	Storage
	// Wires are the wires whose dead letters can be decoded, by name.
	Wires map[string]Wire
	// Since is how far back deletions are known. An earlier record may have been
	// deleted since, and stays a dead letter. Zero: all deletions are known.
	Since time.Time

	// Bulk: Store stores many records that are probably new, in large transactions.
	Bulk bool

	message Message
	bulk    *committer // of Store, if it is in bulk
}

// Run retries dead letters of the stages decode, verify and commit, those of each wire in
// the given order. The transaction that stores a dead letter's events also settles it.
// One that fails again is open again, with its first and its last cause. The error is
// always the database's.
func (r *Retry) Run(ctx context.Context, deadLetters []schema.StoredDeadLetter) error {
	c := r.committer()
	batches := map[string]*batch{}
	var order []*batch
	now := time.Now()
	for i := range deadLetters {
		deadLetter := &deadLetters[i]
		b := batches[deadLetter.Wire]
		if b == nil {
			wire := r.Wires[deadLetter.Wire]
			wire.Name = deadLetter.Wire
			b = r.batch(&wire, now)
			batches[deadLetter.Wire], order = b, append(order, b)
		}
		r.add(b, deadLetter)
	}
	for _, b := range order {
		b.prove(nil, func(string) {})
		if err := c.commit(ctx, b); err != nil {
			return err
		}
	}
	return nil
}

// add adds one dead letter to the batch of its wire.
func (r *Retry) add(b *batch, deadLetter *schema.StoredDeadLetter) {
	switch {
	case len(deadLetter.Raw) == 0:
		b.malformed(&Malformed{Cause: "the record or its account was deleted, and this input with it: nothing is left to retry"}, 0,
			deadLetter.ID)
		return
	case deadLetter.Truncated():
		b.malformed(&Malformed{Cause: "only the beginning of the input was kept: it cannot be retried"}, 0, deadLetter.ID)
		return
	case b.wire.Decode == nil:
		b.malformed(&Malformed{Cause: "this version of Weir does not know the wire that the input came over", Path: "wire",
			Expected: strings.Join(slices.Sorted(maps.Keys(r.Wires)), " or "), Received: deadLetter.Wire}, 0, deadLetter.ID)
		return
	}
	m := &r.message
	b.wire.Decode(deadLetter.Raw, deadLetter.FirstSeen, m)
	m.Arrived = deadLetter.FirstSeen
	m.Locate()
	for i, bad := range m.Malformed {
		id := int64(0) // a frame's readable events are stored, and each unreadable one becomes a new dead letter
		if i == 0 && len(m.Events) == 0 {
			id = deadLetter.ID
		}
		if bad.Drop && id == 0 {
			continue
		}
		b.malformed(bad, 0, id)
		r.lost(b, bad)
	}
	if len(m.Events) > 0 || len(m.Malformed) == 0 {
		r.addEvents(b, deadLetter.ID)
	}
}

// addEvents adds the events of a dead letter to the batch. The last event settles
// it, or fails again in its place.
func (r *Retry) addEvents(b *batch, deadLetter int64) {
	m, began := &r.message, len(b.events)
	m.Events = slices.DeleteFunc(m.Events, func(ev Event) bool {
		keep, _ := r.keeps(&ev)
		return !keep // the stream would ignore it
	})
	if len(m.Events) == 0 {
		b.settled = append(b.settled, deadLetter)
		return
	}
	writes := func(ev Event) bool { return ev.Kind == KindCommit && ev.Operation != Delete }
	if at := m.happened(); at.Before(r.Since) && slices.ContainsFunc(m.Events, writes) {
		b.malformed(&Malformed{Cause: "the record may have been deleted since, and that deletion may have expired", Path: "/time_us",
			Expected: "an event after " + r.Since.UTC().Format(time.RFC3339), Received: at.UTC().Format(time.RFC3339)}, 0, deadLetter)
		if m.Proof != nil { // the proof has waited too long for that
			b.desynchronize(m.Events[0].Author, "an event could not be verified in time", m.Events[0].Revision)
		}
		return
	}
	m.Events[len(m.Events)-1].DeadLetterID = deadLetter
	for i := range m.Events {
		b.add(&m.Events[i])
	}
	b.close(m, began)
}
