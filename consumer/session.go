package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/weir-social/weir/schema"
)

// errResume ends a session whose connection did not start where it was asked
// to: the next one asks by time.
var errResume = errors.New("the server did not deliver the last event committed")

// errOverflow ends a session whose buffer ran full and stayed so.
var errOverflow = errors.New("the buffer is full: the database is slower than the stream")

// session is the life of one connection: one goroutine reads, one decodes, one
// commits. Whatever ends the connection, what was read before is committed.
type session struct {
	cfg     *Config
	clock   *clock
	conn    Conn
	buf     *buffer
	resume  *resume
	commits chan *batch
	log     *slog.Logger
	metrics *metrics

	base      schema.Position // host and filter of this connection
	connected time.Time       // when it was made
	asked     Cursor          // what the server was asked for

	// Of the decoding goroutine.
	open    *batch          // the batch being filled
	counted map[counted]int // events since the last flush

	lastFrame  Moment       // arrival of the last frame
	lag        atomic.Int64 // from the last event to its arrival, nanoseconds
	begun      atomic.Bool  // an event has arrived
	overflowed atomic.Bool
	broken     atomic.Bool // the database refused for good: no reconnect helps
}

// liveWithin is how far behind its arrival an event may have happened for the
// stream to count as live.
const liveWithin = 10 * time.Second

// quietAfter is how long a connection that answers pings must be idle to count
// as having nothing unread.
const quietAfter = 5 * time.Second

// run works the connection until it ends, and says why it did. stop ends the
// reading; commits go on until everything read is in the database, or ctx ends.
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
		defer stopReading() // what is not decoded need not be read
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
		}
	}
	decodeErr := <-decoded
	s.conn.Close() //nolint:errcheck // it is over either way
	readErr := <-read
	return cmp.Or(commitErr, decodeErr, readErr)
}

// read moves frames from the socket to the buffer and does nothing else. It waits
// for room for less long than servers wait for their clients.
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

// decode turns frames into batches and hands them over to be committed.
func (s *session) decode(ctx context.Context) error {
	var frames []Frame
	due := time.NewTimer(s.cfg.AnchorWithin)
	defer due.Stop()
	awaiting := !s.resume.settled && s.resume.exact
	for more := true; more; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-due.C:
			if awaiting {
				return errResume // the anchor comes at once, or never
			}
			if err := s.flush(ctx); err != nil {
				return err
			}
			continue
		case <-s.buf.ready:
		}
		frames, more = s.buf.take(frames)
		for i := range frames {
			if err := s.frame(ctx, frames[i]); err != nil {
				return err
			}
		}
		s.metrics.bufferBytes.Set(float64(s.buf.size()))
		if awaiting && !s.resume.settled {
			continue
		}
		awaiting = false
		if s.open == nil {
			due.Reset(time.Hour)
		} else {
			due.Reset(max(0, s.cfg.BatchEvery-time.Since(s.open.opened)))
		}
	}
	return s.flush(ctx)
}

// frame adds one frame to the open batch.
func (s *session) frame(ctx context.Context, f Frame) error {
	defer s.buf.release(f)
	ev, err := s.conn.Decode(f)
	var bad *Malformed
	switch {
	case errors.As(err, &bad):
		s.metrics.parked.WithLabelValues(schema.StageDecode, s.cfg.named(bad.Collection)).Inc()
		s.log.Warn("frame_parked", "cause", bad.Error())
		s.begin(f.Arrived)
		s.open.malformed(bad, 0, f.Arrived)
		return s.flushFull(ctx)
	case err != nil:
		return fmt.Errorf("decode a frame of %s: %w", s.conn.Host(), err)
	}
	ev.Arrived = s.clock.latest(f.Arrived)
	if ev.TimeUS == 0 { // of a kind we do not know, and without a place in the stream
		s.counted[counted{kind: "ignored"}]++
		return nil
	}
	switch s.resume.check(&ev) {
	case mismatch:
		return errResume
	case known:
		return nil
	case missed:
		gap := s.resume.gap(&ev)
		s.metrics.gaps.Inc()
		s.log.Error("gap_opened", "from", gap.From, "to", gap.To, "reason", gap.Reason)
		s.begin(f.Arrived)
		s.open.gap = gap
	}
	s.begin(f.Arrived)
	s.add(ev, f.Arrived)
	return s.flushFull(ctx)
}

func (s *session) begin(arrived time.Time) {
	if s.open == nil {
		s.open = &batch{oldest: arrived, opened: time.Now()}
	}
}

// add puts an event into the open batch.
func (s *session) add(ev Event, arrived time.Time) {
	b := s.open
	b.count++
	b.tail = ev
	s.lag.Store(int64(s.clock.earliest(arrived).Sub(happened(&ev))))
	s.begun.Store(true)
	s.metrics.replaced.Add(float64(ev.Replaced))
	keep, kind := s.cfg.keeps(&ev)
	s.counted[s.countedAs(&ev, kind)]++
	if keep && !b.add(&ev, arrived) {
		s.metrics.parked.WithLabelValues(schema.StageCommit, s.cfg.named(ev.Collection)).Inc()
	}
}

// counted is what an event counts as.
type counted struct{ kind, collection string }

func (s *session) countedAs(ev *Event, kind string) counted {
	if ev.Kind != KindCommit {
		return counted{kind, ""}
	}
	return counted{kind, s.cfg.named(ev.Collection)}
}

// named is a collection as metrics name it.
func (c *Config) named(collection string) string {
	if c.Wanted(collection) {
		return collection
	}
	return otherCollection
}

// flushFull hands the open batch over when it is full.
func (s *session) flushFull(ctx context.Context) error {
	if s.open.count < s.cfg.BatchEvents && s.open.bytes < maxBatchBytes && time.Since(s.open.opened) < s.cfg.BatchEvery {
		return nil
	}
	return s.flush(ctx)
}

// flush closes the open batch, if there is one, and waits until the committer
// takes it.
func (s *session) flush(ctx context.Context) error {
	b := s.open
	if b == nil {
		return nil
	}
	s.open = nil
	if b.tail.DID != "" || b.tail.TimeUS != 0 {
		at := s.base
		move(&at, &b.tail)
		if time.Duration(s.lag.Load()) < liveWithin {
			at.CaughtUp = at.LastEvent
		}
		b.last = &at
	}
	for as, n := range s.counted {
		s.metrics.events.WithLabelValues(as.kind, as.collection).Add(float64(n))
		if as.collection != "" {
			s.metrics.expect(as.collection)
		}
	}
	clear(s.counted)
	b.write()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case s.commits <- b:
		return nil
	}
}

// caughtUp is the latest moment at which nothing was left unread, by the clock
// that is behind: a connection
// that has been idle and has answered a ping since. Zero while frames flow.
func (s *session) caughtUp() time.Time {
	last, proven := s.lastFrame.At(), s.conn.Proven()
	if proven.Sub(last) < quietAfter || s.buf.size() > 0 {
		return time.Time{}
	}
	return s.clock.earliest(proven)
}

// state is the stream's state in one word, and its detail.
func (s *session) state() (state, detail string) {
	switch {
	case s.overflowed.Load():
		return schema.StateDraining, errOverflow.Error()
	case !s.caughtUp().IsZero():
		return schema.StateQuiet, ""
	case !s.begun.Load():
		return schema.StateConnecting, "" // accepted, and nothing heard yet
	case time.Duration(s.lag.Load()) >= liveWithin:
		return schema.StateCatchingUp, ""
	}
	return schema.StateLive, ""
}

// keeps answers whether an event writes something, and the word it is counted under.
func (c *Config) keeps(ev *Event) (bool, string) {
	if ev.Kind != KindOther && c.Follows != nil && !c.Follows(ev.DID) {
		return false, "not_followed"
	}
	switch ev.Kind {
	case KindCommit:
		if !c.Wanted(ev.Collection) {
			return false, "ignored"
		}
		if ev.Operation == Delete {
			return true, "delete"
		}
		return true, "write"
	case KindAccount:
		return true, "account"
	case KindIdentity:
		return true, "identity"
	}
	return false, "ignored"
}
