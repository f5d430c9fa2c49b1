package consumer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weir-social/weir/schema"
)

// maxRecord bounds a stored record as the network does: 1 MiB of CBOR. Its JSON
// may be six times as long.
const maxRecord = 1 << 20

// maxBatchBytes closes a batch early, so that a burst of large records does not
// become one huge transaction.
const maxBatchBytes = 4 << 20

// batch is a run of consecutive events that will be committed together.
type batch struct {
	events  []Event             // those that write something, in order
	letters []schema.DeadLetter // frames and records set aside before the commit
	settled []int64             // dead letters that turn out to bring nothing to store
	gap     *schema.Gap
	last    *schema.Position // where the stream stands after the batch; nil: unmoved
	count   int              // events seen, the ignored ones included
	bytes   int
	oldest  time.Time // arrival of the first event
	opened  time.Time // when its decoding began: later than oldest where frames wait
	folded  *schema.Batch
}

// split cuts a batch of several events in two. Each half leaves the stream
// where its last event stood; the first one with that event's anchor alone, for
// the others may be later.
func (b *batch) split() (first, second *batch) {
	half := len(b.events) / 2
	first = &batch{events: b.events[:half], letters: b.letters, settled: b.settled, gap: b.gap, oldest: b.oldest}
	second = &batch{events: b.events[half:], last: b.last, count: b.count, oldest: b.oldest}
	if b.last != nil {
		at := *b.last
		move(&at, &first.events[half-1])
		at.Anchors, at.WrittenAt = schema.Anchors{nameOf(&first.events[half-1]).hash()}, at.LastEvent.Add(-b.last.Lag())
		first.last = &at
	}
	return first, second
}

// parked is the batch with its only event set aside.
func (b *batch) parked(cause error, now time.Time) *batch {
	ev := &b.events[0]
	letter := schema.DeadLetter{
		ID:    ev.Letter,
		Stage: schema.StageCommit,
		Key:   schema.Key{Collection: ev.Collection, DID: ev.DID, Rkey: ev.Rkey},
		Rev:   ev.Rev,
		Cause: cause.Error(),
		Raw:   ev.Raw,
		At:    now,
	}
	return &batch{letters: append(slices.Clip(b.letters), letter), settled: b.settled, gap: b.gap, last: b.last, count: b.count, oldest: b.oldest}
}

// malformed sets a frame aside that is no event; id is that of the dead letter
// it is replayed from, or 0.
func (b *batch) malformed(bad *Malformed, id int64, at time.Time) {
	letter := schema.DeadLetter{ID: id, Stage: schema.StageDecode, Key: schema.Key{DID: bad.DID}, Cause: bad.Cause, Path: bad.Path,
		Expected: bad.Expected, Received: bad.Received, Raw: bad.Raw, At: at}
	if bad.Rkey != "" {
		letter.Key, letter.Rev = schema.Key{Collection: bad.Collection, DID: bad.DID, Rkey: bad.Rkey}, bad.Rev
	}
	b.letters = append(b.letters, letter)
	b.count++
	b.bytes += len(bad.Raw)
}

// add puts an event into the batch, or sets it aside where its record is too
// large: then it answers false.
func (b *batch) add(ev *Event, at time.Time) bool {
	b.bytes += len(ev.Raw)
	if len(ev.Record) > maxRecord { // which no CBOR of a shorter JSON is by much
		if size := networkBytes(ev.Record); size > maxRecord {
			b.letters = append(b.letters, tooLarge(ev, size, at))
			return false
		}
	}
	b.events = append(b.events, *ev)
	return true
}

// move sets a position to just after an event. The host stays.
func move(p *schema.Position, ev *Event) {
	p.CursorKind, p.Cursor = string(CursorTime), ev.TimeUS
	if ev.Seq > 0 {
		p.CursorKind, p.Cursor = string(CursorSeq), ev.Seq
	}
	p.LastEvent = happened(ev)
	p.Anchor = anchorOf(ev)
}

// write is the folded batch. The decoding goroutine calls it first, while the
// batch before is being committed.
func (b *batch) write() *schema.Batch {
	if b.folded == nil {
		out := b.fold()
		b.folded = &out
	}
	return b.folded
}

// fold reduces the events to what the tables will hold after them: for each
// record its newest write and its newest deletion, whatever the order they came
// in; for each account its last word.
func (b *batch) fold() schema.Batch {
	f := folding{
		writes:    make(map[schema.Key]int, len(b.events)),
		deletions: map[schema.Key]int{},
		statuses:  map[string]int{},
		handles:   map[string]int{},
	}
	for i := range b.events {
		f.add(&b.events[i])
	}
	out := f.out
	byKey := func(a, b schema.Key) int {
		return cmp.Or(cmp.Compare(a.Collection, b.Collection), cmp.Compare(a.DID, b.DID), cmp.Compare(a.Rkey, b.Rkey))
	}
	out.Writes = slices.DeleteFunc(out.Writes, func(w schema.Write) bool {
		i, ok := f.deletions[w.Key]
		return ok && out.Deletions[i].Rev >= w.Rev
	})
	slices.SortFunc(out.Writes, func(a, b schema.Write) int { return byKey(a.Key, b.Key) })
	slices.SortFunc(out.Deletions, func(a, b schema.Deletion) int { return byKey(a.Key, b.Key) })
	slices.SortFunc(out.Statuses, func(a, b schema.Status) int { return cmp.Compare(a.DID, b.DID) })
	slices.SortFunc(out.Handles, func(a, b schema.Handle) int { return cmp.Compare(a.DID, b.DID) })
	out.DeadLetters, out.Gap = b.letters, b.gap
	out.Replayed = b.settled
	for i := range b.events {
		if id := b.events[i].Letter; id != 0 {
			out.Replayed = append(slices.Clip(out.Replayed), id)
		}
	}
	return out
}

// folding is a batch being reduced; the maps hold indexes into out.
type folding struct {
	out               schema.Batch
	writes, deletions map[schema.Key]int
	statuses, handles map[string]int
}

func (f *folding) add(ev *Event) {
	switch ev.Kind {
	case KindCommit:
		key := schema.Key{Collection: ev.Collection, DID: ev.DID, Rkey: ev.Rkey}
		if ev.Operation == Delete {
			d := schema.Deletion{Key: key, Rev: ev.Rev, At: dated(ev)}
			put(&f.out.Deletions, f.deletions, key, d, func(old schema.Deletion) bool { return d.Rev > old.Rev })
			return
		}
		w := schema.Write{Key: key, Rev: ev.Rev, CID: ev.CID, CreatedAt: schema.CreatedAt(ev.Record, ev.Rkey, dated(ev)), Record: ev.Record}
		put(&f.out.Writes, f.writes, key, w, func(old schema.Write) bool { return w.Rev > old.Rev })
	case KindAccount:
		s := schema.Status{DID: ev.DID, Status: status(ev), At: said(ev)}
		put(&f.out.Statuses, f.statuses, ev.DID, s, func(old schema.Status) bool { return !s.At.Before(old.At) })
	case KindIdentity:
		h := schema.Handle{DID: ev.DID, Handle: ev.Handle, At: said(ev)}
		put(&f.out.Handles, f.handles, ev.DID, h, func(old schema.Handle) bool { return !h.At.Before(old.At) })
	}
}

// put adds v under key, or replaces what is there when newer says so.
func put[K comparable, V any](all *[]V, at map[K]int, key K, v V, newer func(old V) bool) {
	i, ok := at[key]
	if !ok {
		at[key] = len(*all)
		*all = append(*all, v)
		return
	}
	if newer((*all)[i]) {
		(*all)[i] = v
	}
}

// said is when an account or identity event was made, by the relay's clock;
// never later than the event, so that a wrong clock cannot make it final.
func said(ev *Event) time.Time {
	at := dated(ev)
	if ev.At.IsZero() || ev.At.After(at) {
		return at
	}
	return ev.At
}

// status is the word stored for an account event.
func status(ev *Event) string {
	switch {
	case ev.Active:
		return "active"
	case ev.Status == "", ev.Status == "active":
		return "inactive"
	}
	return ev.Status
}

// tooLarge is the letter for a record that is larger than the network allows.
func tooLarge(ev *Event, size int, now time.Time) schema.DeadLetter {
	return schema.DeadLetter{
		ID:       ev.Letter,
		Stage:    schema.StageCommit,
		Key:      schema.Key{Collection: ev.Collection, DID: ev.DID, Rkey: ev.Rkey},
		Rev:      ev.Rev,
		Cause:    "the record is larger than the network allows",
		Path:     "/commit/record",
		Expected: fmt.Sprintf("at most %d bytes", maxRecord),
		Received: fmt.Sprintf("%d bytes", size),
		Raw:      ev.Raw,
		Final:    true,
		At:       now,
	}
}
