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

// batch is a run of consecutive frames that will be committed together.
type batch struct {
	wire    *Wire               // reads the inputs of its dead letters again
	events  []Event             // those that write something, in order
	frames  []part              // the frames that these events are of, in order
	letters []schema.DeadLetter // what was set aside before the commit
	settled []int64             // dead letters that turn out to bring nothing to store
	gap     *schema.Gap
	last    *schema.Position // where the stream stands after the batch; nil: unmoved
	count   int              // events seen, the ignored ones included
	bytes   int
	oldest  time.Time // arrival of the first frame
	opened  time.Time // when its decoding began: later than oldest where frames wait
	folded  *schema.Batch
}

// part is how many of the batch's events a frame has, one after the other.
type part struct {
	Place
	events int
}

// split cuts a batch of several events in two, between two frames where there
// are several. The first half then leaves the stream after its last frame, with
// the anchors of its own frames alone, for the others may be later. A frame that is
// cut has not been read before its last part is committed: the position waits for
// that, and so does the gap that belongs to it.
func (b *batch) split() (first, second *batch) {
	if len(b.frames) < 2 {
		return b.cut(len(b.events) / 2)
	}
	frames, events := 1, b.frames[0].events
	for frames < len(b.frames)-1 && events < len(b.events)/2 {
		events += b.frames[frames].events
		frames++
	}
	first, second = b.cut(events)
	first.frames, second.frames = b.frames[:frames], b.frames[frames:]
	at := b.frames[frames-1].Place
	if b.last == nil || !at.named() {
		return first, second
	}
	first.last = new(schema.Position)
	*first.last = *b.last
	move(first.last, &at)
	first.last.Anchor, first.last.Anchors = at.anchor(), schema.Anchors{}
	for i, n := frames-1, 0; i >= 0 && n < maxAnchors; i-- {
		if frame := &b.frames[i]; frame.named() {
			n = addAnchor(&first.last.Anchors, n, schema.AnchorHash{Hash: frame.Identity.hash(), Seq: frame.Seq})
		}
	}
	first.last.WrittenAt = first.last.LastEvent.Add(-b.last.Lag())
	if first.last.CaughtUp.After(first.last.LastEvent) {
		first.last.CaughtUp = first.last.LastEvent
	}
	first.gap, second.gap = b.gap, nil
	return first, second
}

// cut cuts a batch in two after some events; the position moves with the second.
func (b *batch) cut(events int) (first, second *batch) {
	first = &batch{wire: b.wire, events: b.events[:events], letters: b.letters, settled: b.settled, oldest: b.oldest}
	second = &batch{wire: b.wire, events: b.events[events:], gap: b.gap, last: b.last, count: b.count, oldest: b.oldest}
	return first, second
}

// parked is the batch with its only event set aside.
func (b *batch) parked(cause error, now time.Time) *batch {
	letter := b.letter(&b.events[0], now)
	letter.Cause = cause.Error()
	return &batch{wire: b.wire, letters: append(slices.Clip(b.letters), letter), settled: b.settled, gap: b.gap, last: b.last, count: b.count, oldest: b.oldest}
}

// letter is a dead letter of an event that cannot be stored.
func (b *batch) letter(ev *Event, now time.Time) schema.DeadLetter {
	return schema.DeadLetter{
		ID:    ev.Letter,
		Stage: schema.StageCommit,
		Wire:  b.wire.Name,
		Key:   schema.Key{Collection: ev.Collection, DID: ev.Author, Rkey: ev.Key},
		Rev:   ev.Revision,
		Raw:   b.wire.input(ev),
		At:    now,
	}
}

// malformed sets aside what cannot be read; id is that of the dead letter it is
// replayed from, or 0.
func (b *batch) malformed(bad *Malformed, id int64, at time.Time) {
	letter := schema.DeadLetter{ID: id, Stage: schema.StageDecode, Wire: b.wire.Name, Key: schema.Key{DID: bad.Author}, Cause: bad.Cause, Path: bad.Path,
		Expected: bad.Expected, Received: bad.Received, Raw: bad.Raw, At: at}
	if bad.Key != "" {
		letter.Key, letter.Rev = schema.Key{Collection: bad.Collection, DID: bad.Author, Rkey: bad.Key}, bad.Revision
	}
	b.letters = append(b.letters, letter)
	b.count++
}

// add puts an event into the batch, or sets it aside where its record is too
// large: then it reports false. close follows the last event of a frame.
func (b *batch) add(ev *Event, at time.Time) bool {
	if len(ev.Record) > maxRecord { // which no CBOR of a shorter JSON is by much
		if size := networkBytes(ev.Record); size > maxRecord {
			b.letters = append(b.letters, b.tooLarge(ev, size, at))
			return false
		}
	}
	b.events = append(b.events, *ev)
	return true
}

// close ends a frame that began when the batch had so many events.
func (b *batch) close(at *Place, began int) {
	if events := len(b.events) - began; events > 0 {
		b.frames = append(b.frames, part{*at, events})
	}
}

// move sets a position to just after a frame. Its host and its anchors stay.
func move(p *schema.Position, at *Place) {
	p.CursorKind, p.Cursor = string(CursorTime), at.TimeUS
	if at.Seq > 0 {
		p.CursorKind, p.Cursor = string(CursorSeq), at.Seq
	}
	p.LastEvent = at.happened()
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
	out.Retried = b.settled
	for i := range b.events {
		if id := b.events[i].Letter; id != 0 {
			out.Retried = append(slices.Clip(out.Retried), id)
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
		key := schema.Key{Collection: ev.Collection, DID: ev.Author, Rkey: ev.Key}
		at := dated(ev.TimeUS, ev.Arrived)
		if ev.Operation == Delete {
			d := schema.Deletion{Key: key, Rev: ev.Revision, At: at}
			put(&f.out.Deletions, f.deletions, key, d, func(old schema.Deletion) bool { return d.Rev > old.Rev })
			return
		}
		w := schema.Write{Key: key, Rev: ev.Revision, CID: ev.CID, CreatedAt: schema.CreatedAt(ev.Record, ev.Key, at), Record: ev.Record}
		put(&f.out.Writes, f.writes, key, w, func(old schema.Write) bool { return w.Rev > old.Rev })
	case KindAccount:
		s := schema.Status{DID: ev.Author, Status: status(ev), At: said(ev.At, ev.TimeUS, ev.Arrived)}
		put(&f.out.Statuses, f.statuses, ev.Author, s, func(old schema.Status) bool { return !s.At.Before(old.At) })
	case KindIdentity:
		h := schema.Handle{DID: ev.Author, Handle: ev.Handle, At: said(ev.At, ev.TimeUS, ev.Arrived)}
		put(&f.out.Handles, f.handles, ev.Author, h, func(old schema.Handle) bool { return !h.At.Before(old.At) })
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
func (b *batch) tooLarge(ev *Event, size int, now time.Time) schema.DeadLetter {
	letter := b.letter(ev, now)
	letter.Cause, letter.Path, letter.Final = "the record is larger than the network allows", "/commit/record", true
	letter.Expected, letter.Received = fmt.Sprintf("at most %d bytes", maxRecord), fmt.Sprintf("%d bytes", size)
	return letter
}
