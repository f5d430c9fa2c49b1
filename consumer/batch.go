package consumer

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/weir-social/weir/schema"
)

// maxRecord is the network's limit for a record, in bytes of CBOR. Its JSON may be
// six times as long.
const maxRecord = 1 << 20

// maxBatchBytes closes a batch early, so that a burst of large records does not
// become one huge transaction.
const maxBatchBytes = 4 << 20

// batch is a run of consecutive frames that will be committed together.
type batch struct {
	origin
	events []Event      // the events that write something, in order
	frames []batchFrame // the frames of these events, in order
	found
	progressed
	bytes    int
	opened   time.Time // when decoding began; later than oldest if frames waited
	unproven bool      // a frame has a proof or an ID
	folded   *schema.Batch
}

// origin is what the parts of a batch that is split have in common.
type origin struct {
	wire   *Wire     // decodes the inputs of its dead letters
	oldest time.Time // arrival of the first frame
	keeps  FrameHook // nil: none
	kept   []any     // by it, of the frames
}

// found is what was decided before the commit. It is stored with the first part of a batch.
type found struct {
	deadLetters    []schema.DeadLetter
	settled        []int64                 // retried dead letters that have nothing to store
	desynchronized []schema.Desynchronized // accounts of which something was refused
	chained        []schema.ChainedCommit  // commits that are proven
}

// progressed is how far the stream has come. It is stored with the last part of a batch.
type progressed struct {
	gap   *schema.Gap
	last  *schema.Position // the stream's position after the batch; nil: unchanged
	count int              // events seen, including ignored ones
}

// batchFrame is a frame and the number of its events in the batch.
type batchFrame struct {
	FramePosition
	events int
	proof  Proof // nil: none, or it is done
	kept   any   // nil: nothing
	beside bool  // the frame is kept even if none of its events is stored
}

// split cuts a batch of several events in two, between two frames if it has
// several. The first half moves the position to just after its last frame, with the
// anchors of its own frames only. A single frame is cut between its events. Its
// position and its gap then move with the last part.
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
	if b.kept != nil {
		first.kept, second.kept = keptOf(first.frames), keptOf(second.frames)
	}
	at := b.frames[frames-1].FramePosition
	if b.last == nil || !at.named() {
		return first, second
	}
	first.last = new(schema.Position)
	*first.last = *b.last
	advance(first.last, &at)
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

// cut cuts a batch in two after a number of events. The position moves with the second
// half. Both halves keep their frame: the feature knows which events the first half brought.
func (b *batch) cut(events int) (first, second *batch) {
	return &batch{origin: b.origin, found: b.found, events: b.events[:events]},
		&batch{origin: b.origin, progressed: b.progressed, events: b.events[events:]}
}

// deadLettered returns the batch with its only event turned into a dead letter.
func (b *batch) deadLettered(err error) *batch {
	deadLetter := b.deadLetter(&b.events[0])
	deadLetter.Cause = err.Error()
	only := &batch{origin: b.origin, found: b.found, progressed: b.progressed}
	only.deadLetters = append(slices.Clip(b.deadLetters), deadLetter)
	return only
}

// deadLetter returns the dead letter of an event that cannot be stored.
func (b *batch) deadLetter(ev *Event) schema.DeadLetter {
	return schema.DeadLetter{
		ID:       ev.DeadLetterID,
		Stage:    schema.StageCommit,
		Wire:     b.wire.Name,
		Position: cmp.Or(ev.Seq, ev.TimeUS),
		Key:      schema.Key{Collection: ev.Collection, DID: ev.Author, Rkey: ev.Key},
		Rev:      ev.Revision,
		Raw:      b.wire.input(ev),
	}
}

// malformed adds a dead letter for an input that cannot be decoded, from a position or 0. id is
// the id of the dead letter being retried, or 0.
func (b *batch) malformed(bad *Malformed, position, id int64) {
	deadLetter := schema.DeadLetter{ID: id, Stage: schema.StageDecode, Wire: b.wire.Name, Position: position, Key: schema.Key{DID: bad.Author},
		Cause: bad.Cause, Path: bad.Path, Expected: bad.Expected, Received: bad.Received, Raw: bad.Raw}
	if bad.Key != "" {
		deadLetter.Key, deadLetter.Rev = schema.Key{Collection: bad.Collection, DID: bad.Author, Rkey: bad.Key}, bad.Revision
	}
	b.deadLetters = append(b.deadLetters, deadLetter)
	b.count++
}

// desynchronize marks an account from which something was refused, or was not sent. rev is
// the revision of the refused part, or "" if it is unknown.
func (b *batch) desynchronize(did, cause, rev string) {
	b.desynchronized = append(b.desynchronized, schema.Desynchronized{DID: did, Cause: cause, Rev: rev})
}

// add adds an event to the batch. If its record is too large, it adds a dead letter
// and returns false. Call close after the last event of a frame.
func (b *batch) add(ev *Event) bool {
	if len(ev.Record) > maxRecord { // shorter JSON cannot exceed the limit in CBOR by much
		if size := networkBytes(ev.Record); size > maxRecord {
			b.deadLetters = append(b.deadLetters, b.tooLarge(ev, size))
			return false
		}
	}
	b.events = append(b.events, *ev)
	return true
}

// close ends a frame whose events start at index began, if it has any.
func (b *batch) close(m *Message, began int) {
	if len(b.events) > began {
		b.closeKept(m, began).beside = false
	}
}

// closeKept ends a frame that is kept even if it has no events. It starts the frame's proof,
// unless the frame may have been seen before.
func (b *batch) closeKept(m *Message, began int) *batchFrame {
	f := batchFrame{FramePosition: m.FramePosition, events: len(b.events) - began, beside: true}
	seen := m.ID != (ID{})
	if (f.events > 0 || seen) && m.Proof != nil {
		if !seen {
			m.Proof.Start()
		}
		f.proof = m.Proof
	}
	b.unproven = b.unproven || f.proof != nil || seen
	if b.keeps != nil {
		if f.kept = b.keeps.Keep(b.wire, m, b.events[began:]); f.kept != nil {
			b.kept = append(b.kept, f.kept)
		}
	}
	if !m.moves() {
		f.Identity = Identity{} // a position needs an anchor, see split
	}
	b.frames = append(b.frames, f)
	return &b.frames[len(b.frames)-1]
}

// advance sets a position to just after a frame. Its host and its anchors stay.
func advance(p *schema.Position, at *FramePosition) {
	p.CursorKind, p.Cursor = string(CursorTime), at.TimeUS
	if at.Seq > 0 {
		p.CursorKind, p.Cursor = string(CursorSeq), at.Seq
	}
	p.LastEvent = at.happened()
}

// write returns the folded batch. The decoding goroutine calls it first, so folding
// overlaps with the previous commit.
func (b *batch) write() *schema.Batch {
	if b.folded == nil {
		out := b.fold()
		b.folded = &out
	}
	return b.folded
}

// fold reduces the events to their final effect: for each record its newest write
// and its newest deletion by revision, for each account its latest status and
// handle.
func (b *batch) fold() schema.Batch {
	f := folding{
		writes:    make(map[schema.Key]int, len(b.events)),
		deletions: map[schema.Key]int{},
		statuses:  map[string]int{},
		handles:   map[string]int{},
		erasures:  map[string]int{},
	}
	for i := range b.events {
		f.add(&b.events[i])
	}
	f.markEarly(b.events)
	out := f.out
	out.Desynchronized, out.Chained = append(out.Desynchronized, b.desynchronized...), b.chained
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
	slices.SortFunc(out.Erasures, func(a, b schema.Erasure) int { return cmp.Compare(a.DID, b.DID) })
	out.DeadLetters, out.Gap = b.deadLetters, b.gap
	if len(b.kept) > 0 {
		out.OnCommit = b.keeps.Commit(b.wire, b.kept, out.Writes)
	}
	for i := range b.frames {
		if id := b.frames[i].ID; id != (ID{}) {
			out.Seen = append(out.Seen, id)
		}
	}
	out.Retried = b.settled
	for i := range b.events {
		if id := b.events[i].DeadLetterID; id != 0 {
			out.Retried = append(slices.Clip(out.Retried), id)
		}
	}
	return out
}

// folding is a batch during fold. The maps hold indexes into out.
type folding struct {
	out               schema.Batch
	writes, deletions map[schema.Key]int
	statuses, handles map[string]int
	erasures          map[string]int
}

func (f *folding) add(ev *Event) {
	switch ev.Kind {
	case KindCommit:
		key := schema.Key{Collection: ev.Collection, DID: ev.Author, Rkey: ev.Key}
		at := storedTime(ev.TimeUS, ev.Arrived)
		if ev.Operation == Delete {
			d := schema.Deletion{Key: key, Rev: ev.Revision, At: at, Lasting: ev.Lasting}
			put(&f.out.Deletions, f.deletions, key, d, func(old schema.Deletion) bool { return d.Newer(old) })
			return
		}
		w := schema.Write{Key: key, Rev: ev.Revision, CID: ev.CID, Record: ev.Record, Edit: ev.Operation == Update, Expires: ev.Expires}
		if w.CreatedAt = schema.ClampCreatedAt(ev.Written, at); ev.Written.IsZero() {
			w.CreatedAt = schema.CreatedAt(ev.Record, ev.Key, at)
		}
		put(&f.out.Writes, f.writes, key, w, func(old schema.Write) bool { return w.Rev > old.Rev })
	case KindErasure:
		e := schema.Erasure{DID: ev.Author, Rev: ev.Revision, At: ev.Written}
		put(&f.out.Erasures, f.erasures, ev.Author, e, func(old schema.Erasure) bool { return e.Rev > old.Rev })
	case KindSync:
		f.out.Desynchronized = append(f.out.Desynchronized,
			schema.Desynchronized{DID: ev.Author, Cause: "the repository was declared to be at another commit", Rev: ev.Revision})
	case KindAccount:
		s := schema.Status{
			DID: ev.Author, Status: ev.StoredStatus(), At: eventTime(ev.At, ev.TimeUS, ev.Arrived), Sent: storedTime(ev.TimeUS, ev.Arrived),
		}
		put(&f.out.Statuses, f.statuses, ev.Author, s, func(old schema.Status) bool { return !s.At.Before(old.At) })
	case KindIdentity:
		h := schema.Handle{DID: ev.Author, Handle: ev.Handle, At: eventTime(ev.At, ev.TimeUS, ev.Arrived)}
		if i, ok := f.handles[ev.Author]; ok && h.Handle == "" { // as if each were in a batch of its own
			h.Handle = f.out.Handles[i].Handle
		}
		put(&f.out.Handles, f.handles, ev.Author, h, func(old schema.Handle) bool { return !h.At.Before(old.At) })
	}
}

// markEarly marks the handles whose events precede all records of their accounts.
func (f *folding) markEarly(events []Event) {
	if len(f.handles) == 0 {
		return
	}
	wrote := map[string]bool{}
	for i := range events {
		ev := &events[i]
		if at, ok := f.handles[ev.Author]; ok && ev.Kind == KindIdentity && ev.Handle != "" {
			f.out.Handles[at].Early = !wrote[ev.Author]
		} else if ok && ev.Kind == KindCommit && ev.Operation != Delete {
			wrote[ev.Author] = true
		}
	}
}

// put adds v under key, or replaces the existing value if newer returns true for
// it.
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

// StoredStatus returns the status to store for an account event.
func (ev *Event) StoredStatus() string {
	switch {
	case ev.Active:
		return "active"
	case ev.Status == "", ev.Status == "active":
		return "inactive"
	}
	return ev.Status
}

// tooLarge returns the dead letter for a record above the network's limit.
func (b *batch) tooLarge(ev *Event, size int) schema.DeadLetter {
	deadLetter := b.deadLetter(ev)
	deadLetter.Cause, deadLetter.Path, deadLetter.Final = "the record is larger than the network allows", "/commit/record", true
	deadLetter.Expected, deadLetter.Received = fmt.Sprintf("at most %d bytes", maxRecord), fmt.Sprintf("%d bytes", size)
	return deadLetter
}
