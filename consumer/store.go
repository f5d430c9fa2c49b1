package consumer

import (
	"context"
	"slices"
	"time"
)

// Store stores frames of a wire that Weir requested, like events of a stream. Events that are
// not proven, or that the database rejects, become dead letters. Store moves no position and
// needs no lease. It stores an event even if its ID was seen, because the records of a purged
// account come back this way. Revisions and tombstones decide what is written, so storing twice
// changes nothing. now is by the clock that is behind, ours or the database's: records that have
// expired by then are not stored. It returns the number of records that it wrote.
func (r *Retry) Store(ctx context.Context, wire string, frames [][]byte, now time.Time) (written int, err error) {
	w := r.Wires[wire]
	c, most := r.committer(), storedAtOnce
	if r.Bulk {
		if r.bulk == nil {
			r.bulk = c
			c.careful = 0
		}
		c, most = r.bulk, storedEvents
	}
	before := c.written
	b := r.batch(&w, now)
	for i, frame := range frames {
		m := &r.message
		w.Decode(frame, now, m)
		m.Arrived = now
		m.Locate()
		for _, bad := range m.Malformed {
			if !bad.Drop {
				b.malformed(bad, 0, 0)
			}
		}
		m.Events = slices.DeleteFunc(m.Events, func(ev Event) bool {
			keep, _ := r.keeps(&ev)
			return !keep
		})
		began := len(b.events)
		for j := range m.Events {
			b.add(&m.Events[j])
		}
		b.close(m, began)
		b.bytes += len(frame)
		if len(b.frames) < most && len(b.events) < storedEvents && b.bytes < maxBatchBytes && i < len(frames)-1 {
			continue
		}
		b.prove(nil, func(string) {})
		if b.keeps != nil {
			seen, err := b.seen(ctx, r.Pool)
			if err != nil {
				return c.written - before, err
			}
			b.dropKept(seen)
		}
		if err := c.commit(ctx, b); err != nil {
			return c.written - before, err
		}
		b = r.batch(&w, now)
	}
	return c.written - before, nil
}

// Limits of one transaction of Store: the number of frames, unless it is in bulk, and the number of events after which
// it ends. One frame may delete thousands of records.
const (
	storedAtOnce = 200
	storedEvents = 4000
)

// committer returns a committer without a lease.
func (r *Retry) committer() *committer {
	return &committer{Storage: &r.Storage, log: r.Logger, metrics: newMetrics(nil), careful: carefulFor}
}

// batch returns an empty batch of a wire.
func (r *Retry) batch(wire *Wire, now time.Time) *batch {
	return &batch{origin: origin{wire: wire, oldest: now, keeps: r.Frames}, opened: now}
}
