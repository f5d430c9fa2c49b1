package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/weir-social/weir/schema"
)

// errResume ends a session whose connection did not start at the requested cursor.
// The next one requests an earlier start.
var errResume = errors.New("the server did not deliver the last committed event")

// errOverflow ends a session whose buffer stayed full.
var errOverflow = errors.New("the buffer is full: the database is slower than the stream")

// session handles one connection: one goroutine reads, one decodes, one commits.
// However the connection ends, frames read before are committed.
type session struct {
	*Consumer
	conn    Conn
	buf     *buffer
	resume  *resume
	commits chan *batch

	base      schema.Position // host and filter of this connection
	connected time.Time       // when it was made
	requested Cursor          // the cursor sent to the server
	past      time.Time       // the time requested as the start; zero: the live tip

	decoding
	progress
}

// decoding is the state of the decoding goroutine.
type decoding struct {
	open    *batch          // the batch being filled
	message Message         // the frame being read
	tail    FramePosition   // the last frame with a place
	behind  bool            // the position is behind tail
	anchors recentAnchors   // the frames so far
	counted map[counted]int // events since the last flush
	events  int             // events in the previous batch, to size the next
	frames  int             // frames in the previous batch
}

// progress is what the goroutines of a session tell others.
type progress struct {
	lastFrame  MonotonicTime // arrival of the last frame
	lag        atomic.Int64  // nanoseconds from the last event to its arrival
	reached    atomic.Int64  // when the latest event happened, in microseconds since 1970
	begun      atomic.Bool   // an event has arrived, even if it was known already
	recent     atomic.Bool   // a recent event has arrived
	settled    atomic.Bool   // the resume is settled
	pending    atomic.Int64  // batches begun and not committed
	overflowed atomic.Bool
	broken     atomic.Bool // the database failed permanently: no reconnect helps
}

// liveWithin is the lag below which the stream counts as live.
const liveWithin = 10 * time.Second

// run handles the connection until it ends, and returns why it ended. stop ends the
// reading. Commits continue until everything read is in the database, or ctx ends.
func (s *session) run(ctx, stop context.Context, c *committer) error {
	s.lastFrame.Set(time.Now())
	reading, stopReading := context.WithCancel(stop)
	defer stopReading()
	decoding, stopDecoding := context.WithCancel(ctx)
	defer stopDecoding()

	read, decoded := make(chan error, 1), make(chan error, 1)
	go func() {
		defer s.buf.close()
		read <- s.read(reading)
	}()
	go func() {
		defer stopReading() // frames that nobody decodes need not be read
		defer close(s.commits)
		decoded <- s.decode(decoding)
	}()
	var commitErr error
	for b := range s.commits {
		if commitErr != nil {
			continue
		}
		if commitErr = c.commit(ctx, b); commitErr != nil {
			s.broken.Store(true)
			stopDecoding()
			continue
		}
		s.committed()
	}
	decodeErr := <-decoded
	s.conn.Close() // it is over either way
	readErr := <-read
	return cmp.Or(commitErr, decodeErr, readErr)
}

// read moves frames from the socket to the buffer. It waits for space for less time
// than servers wait for their clients.
func (s *session) read(ctx context.Context) error {
	for {
		f, err := s.conn.Next(ctx)
		if err != nil {
			return err
		}
		s.lastFrame.Set(f.Arrived)
		if !s.buf.putWithin(ctx, f, s.cfg.FullWait) {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			s.overflowed.Store(true)
			s.metrics.overflows.Inc()
			return errOverflow
		}
	}
}

// decode turns frames into batches and passes them to the committer.
func (s *session) decode(ctx context.Context) error {
	var frames []Frame
	due := time.NewTimer(s.due())
	defer due.Stop()
	for more := true; more; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			if err := s.await(); err != nil {
				return err
			}
			if s.open != nil && time.Since(s.open.opened) >= s.cfg.BatchInterval {
				if err := s.flush(ctx); err != nil {
					return err
				}
			}
		case <-s.buf.ready:
			frames, more = s.buf.take(frames)
			for i := range frames {
				if err := s.frame(ctx, frames[i]); err != nil {
					return err
				}
			}
			s.metrics.bufferBytes.Set(float64(s.buf.size()))
		}
		due.Reset(s.due())
	}
	return s.flush(ctx)
}

// due returns how long decode may wait for the next frame.
func (s *session) due() time.Duration {
	wait := time.Hour
	if s.open != nil {
		wait = s.cfg.BatchInterval - time.Since(s.open.opened)
	}
	switch {
	case s.resume.settled:
	case s.resume.exact, s.resume.seen > 0:
		wait = min(wait, time.Until(s.anchorBy()))
	default:
		wait = min(wait, s.cfg.QuietAfter/5) // after that, silence may count
	}
	return max(0, wait)
}

// anchorBy returns the time until which to wait for an anchor. The anchor is among the first
// events, but a server that sends everything may take long to send the first.
func (s *session) anchorBy() time.Time {
	switch {
	case s.resume.seen > 0:
		return s.resume.since.Add(s.cfg.AnchorWithin)
	case s.cfg.can.Filters:
		return s.connected.Add(s.cfg.AnchorWithin)
	}
	return s.connected.Add(s.cfg.BeginWithin)
}

// await ends the wait for an anchor that does not arrive in time.
func (s *session) await() error {
	r := s.resume
	switch {
	case r.settled:
		return nil
	case (r.exact || r.seen > 0) && time.Now().Before(s.anchorBy()):
		return nil
	case r.exact:
		return errResume
	case r.seen > 0:
		s.begin(time.Now())
	case s.silentUntil().IsZero():
		return nil
	default: // there is no event since the requested time
		s.begin(time.Now())
		at := r.from
		at.CaughtUp, at.Quiet = later(at.CaughtUp, s.clock.earliest(s.silentUntil())), false
		s.open.last = &at
	}
	if r.settle() == missed {
		s.missed()
	}
	s.settled.Store(true)
	return nil
}

// missed adds the gap of the resume to the open batch.
func (s *session) missed() { s.open.gap = s.resume.gap() }

// record adds a gap that the source reported to the open batch, which has at most one.
func (s *session) record(ctx context.Context, missed *Missed, arrived time.Time) error {
	if s.open != nil && s.open.gap != nil {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	s.begin(arrived)
	s.open.gap = &schema.Gap{From: missed.From, To: missed.To, Reason: missed.Reason, Problem: missed.Problem}
	return nil
}

// frame adds one frame to the open batch.
func (s *session) frame(ctx context.Context, f Frame) error {
	defer s.buf.release(f)
	m := &s.message
	f.Earliest = s.clock.earliest(f.Arrived)
	if err := s.conn.Decode(f, m); err != nil {
		return fmt.Errorf("decode a frame of %s: %w", s.conn.Host(), err)
	}
	m.Arrived = s.clock.latest(f.Arrived)
	m.Locate()
	if m.TimeUS > 0 && !s.begun.Load() {
		s.begun.Store(true)
	}
	if m.Still { // the past is being read
		s.lag.Store(int64(m.Arrived.Sub(complete(s.resume.from))))
	}
	if m.moves() && s.resume.open() {
		saw := s.resume.check(&m.FramePosition)
		s.settled.Store(s.resume.settled)
		switch saw {
		case mismatch:
			return errResume
		case alreadyCommitted:
			return nil
		case reprocess:
			m.Still = true
		case missed:
			s.begin(f.Arrived)
			s.missed()
		}
	}
	if m.Missed != nil {
		if err := s.record(ctx, m.Missed, f.Arrived); err != nil {
			return err
		}
	}
	if m.moves() {
		s.begin(f.Arrived)
		at := m.FramePosition
		if s.cfg.can.Complete { // the place is dated by this process's clock: a clock that is ahead must not hide a gap
			at.TimeUS -= f.Arrived.Sub(f.Earliest).Microseconds()
		}
		s.advanceTo(&at, f.Arrived)
	}
	s.add(m, f.Arrived)
	if s.open == nil {
		return nil
	}
	s.open.bytes += len(m.Raw)
	return s.flushFull(ctx)
}

func (s *session) begin(arrived time.Time) {
	if s.open == nil {
		s.open = &batch{
			origin: origin{wire: &s.cfg.can.Wire, oldest: arrived, keeps: s.cfg.Frames}, opened: time.Now(),
			events: make([]Event, 0, s.events), frames: make([]batchFrame, 0, s.frames),
		}
		s.pending.Add(1)
	}
}

// committed counts one batch as committed.
func (s *session) committed() { s.pending.Add(-1) }

// advanceTo records that the stream has reached a frame.
func (s *session) advanceTo(p *FramePosition, arrived time.Time) {
	s.tail, s.behind = *p, true
	s.anchors.add(p)
	at := p.happened()
	earliest, latest := s.clock.between(arrived)
	s.lag.Store(int64(earliest.Sub(at)))
	s.reached.Store(at.UnixMicro())
	if latest.Sub(at) < liveWithin && !s.recent.Load() { // by the clock that is ahead: by the other one, old events could seem recent
		s.recent.Store(true)
	}
}

// add adds a frame's events to the open batch.
func (s *session) add(m *Message, arrived time.Time) {
	for _, bad := range m.Malformed {
		if bad.Drop {
			continue
		}
		s.metrics.deadLettered.WithLabelValues(schema.StageDecode, s.cfg.named(bad.Collection)).Inc()
		s.log.Warn("frame_dead_lettered", "error", bad.Error())
		s.begin(arrived)
		s.open.malformed(bad, cmp.Or(m.Seq, m.TimeUS), 0)
		s.cfg.lost(s.open, bad)
	}
	began := 0
	if s.open != nil {
		began = len(s.open.events)
		s.open.count += len(m.Events)
	}
	for i := range m.Events {
		ev := &m.Events[i]
		if ev.Replaced > 0 {
			s.metrics.replaced.Add(float64(ev.Replaced))
		}
		keep, kind := s.cfg.keeps(ev)
		s.counted[s.metricLabels(ev, kind)]++
		if !keep {
			continue
		}
		s.begin(arrived)
		if !s.open.add(ev) {
			s.metrics.deadLettered.WithLabelValues(schema.StageCommit, s.cfg.named(ev.Collection)).Inc()
		}
	}
	switch {
	case s.cfg.Frames != nil && s.cfg.Frames.Beside(m):
		s.begin(arrived)
		s.open.closeKept(m, began)
	case s.open != nil:
		s.open.close(m, began)
	}
}

// unproven counts an event that is dead-lettered because it is not proven.
func (s *session) unproven(collection string) {
	s.metrics.deadLettered.WithLabelValues(schema.StageVerify, s.cfg.named(collection)).Inc()
}

// counted holds the labels under which an event is counted.
type counted struct{ kind, collection string }

func (s *session) metricLabels(ev *Event, kind string) counted {
	if ev.Kind != KindCommit {
		return counted{kind, ""}
	}
	return counted{kind, s.cfg.named(ev.Collection)}
}

// named returns the label of a collection in metrics.
func (c *Storage) named(collection string) string {
	switch {
	case !c.Wanted(collection):
		return otherCollection
	case c.Label != nil:
		return c.Label(collection)
	}
	return collection
}

// flushFull flushes the open batch if it is full or due.
func (s *session) flushFull(ctx context.Context) error {
	if s.open.count < s.cfg.BatchEvents && s.open.bytes < maxBatchBytes && time.Since(s.open.opened) < s.cfg.BatchInterval {
		return nil
	}
	return s.flush(ctx)
}

// flush closes the open batch, if there is one, and waits until the committer takes
// it.
func (s *session) flush(ctx context.Context) error {
	b := s.open
	if b == nil {
		return nil
	}
	s.open = nil
	s.events, s.frames = len(b.events), len(b.frames)
	if s.behind && s.resume.settled {
		at := s.base
		if conn, ok := s.conn.(Refiltered); ok && conn.Refiltered() {
			at.FilterHash = ""
		}
		advance(&at, &s.tail)
		s.anchors.mark(&at)
		if time.Duration(s.lag.Load()) < liveWithin {
			at.CaughtUp = later(at.CaughtUp, at.LastEvent)
		}
		b.last, s.behind = &at, false
	}
	for as, n := range s.counted {
		s.metrics.events.WithLabelValues(as.kind, as.collection).Add(float64(n))
		if as.collection != "" {
			s.metrics.initDeadLetterCounters(as.collection)
		}
	}
	clear(s.counted)
	seen := s.seen(ctx, b)
	b.prove(seen, s.unproven)
	b.write()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.commits <- b:
		return nil
	}
}

// keeps reports whether an event writes something, and its kind in metrics.
func (c *Storage) keeps(ev *Event) (bool, string) {
	if ev.Kind != KindOther && c.Follows != nil && !c.Follows(ev.Author) {
		return false, "not_followed"
	}
	switch ev.Kind {
	case KindCommit:
		// a lasting deletion is kept: the collection may be wanted later
		if deletes := ev.Operation == Delete; !c.Wanted(ev.Collection) && (!deletes || !ev.Lasting) {
			return false, "ignored"
		} else if deletes {
			return true, "delete"
		}
		return true, "write"
	case KindAccount:
		return true, "account"
	case KindIdentity:
		return true, "identity"
	case KindSync:
		return true, "sync"
	case KindErasure:
		return true, "erasure"
	case KindChained:
		return true, "chained"
	}
	return false, "ignored"
}

// lost marks the account of a malformed input if one of its events may be lost.
func (c *Storage) lost(b *batch, bad *Malformed) {
	if bad.Lost && (c.Follows == nil || c.Follows(bad.Author)) {
		b.desynchronize(bad.Author, bad.Error(), bad.Revision)
	}
}
