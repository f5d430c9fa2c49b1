package consumer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

func write(rkey, rev string) Event {
	return Event{
		Kind: KindCommit, Author: "did:plc:a", TimeUS: 1, Operation: Create, Collection: "app.bsky.feed.post", Key: rkey, Revision: rev,
		Record: []byte(`{}`),
	}
}

func remove(rkey, rev string) Event {
	return Event{
		Kind: KindCommit, Author: "did:plc:a", TimeUS: 1, Operation: Delete, Collection: "app.bsky.feed.post", Key: rkey, Revision: rev,
	}
}

// TestFoldIsIndependentOfOrder shuffles the events of a batch: the tables must not
// depend on their order.
func TestFoldIsIndependentOfOrder(t *testing.T) {
	t.Parallel()
	again := remove("z", "1") // told twice: the later time counts
	again.TimeUS += 1_000_000
	events := []Event{
		again, write("x", "1"), write("x", "3"), write("x", "2"), // the newest write is kept
		write("y", "1"), remove("y", "2"), // deleted
		remove("z", "1"), write("z", "2"), // created again after its deletion
		write("w", "2"), remove("w", "2"), // the same revision: the deletion wins
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		out := (&batch{events: events}).fold()
		require.Equal(t, []string{"x=3", "z=2"}, revs(out.Writes, func(w schema.Write) string { return w.Rkey + "=" + w.Rev }))
		require.Equal(t, []string{"w=2", "y=2", "z=1"}, revs(out.Deletions, func(d schema.Deletion) string { return d.Rkey + "=" + d.Rev }))
		require.Equal(t, again.TimeUS, out.Deletions[2].At.UnixMicro())
	}
}

func revs[T any](all []T, of func(T) string) []string {
	names := make([]string, len(all))
	for i, v := range all {
		names[i] = of(v)
	}
	return names
}

func TestFoldKeepsLatestAccountEvent(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC)
	account := func(active bool, status string, at time.Time) Event {
		return Event{Kind: KindAccount, Author: "did:plc:a", TimeUS: at.Add(time.Hour).UnixMicro(), Active: active, Status: status, At: at}
	}
	out := (&batch{events: []Event{
		account(false, "takendown", at.Add(time.Second)),
		account(true, "", at),
	}}).fold()
	require.Equal(t, []schema.Status{{DID: "did:plc:a", Status: "takendown", At: at.Add(time.Second), Sent: at.Add(time.Hour + time.Second)}},
		utc(out.Statuses))
}

func utc(statuses []schema.Status) []schema.Status {
	for i := range statuses {
		statuses[i].Sent = statuses[i].Sent.UTC()
	}
	return statuses
}

// TestAccountEventFromTheFutureIsNotFinal checks that a status is not dated
// after its event was received: otherwise it would override every later one.
func TestAccountEventFromTheFutureIsNotFinal(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC)
	ev := Event{Kind: KindAccount, Author: "did:plc:a", TimeUS: at.UnixMicro(), At: at.AddDate(1000, 0, 0)}
	out := (&batch{events: []Event{ev}}).fold()
	require.True(t, out.Statuses[0].At.Equal(at))
	require.Equal(t, "inactive", out.Statuses[0].Status)
}

// framed returns a batch of frames with these numbers of events. The n-th frame has
// the sequence number 10 + n.
func framed(end *schema.Position, sizes ...int) *batch {
	b := &batch{origin: origin{wire: &Wire{}}, progressed: progressed{last: end, gap: &schema.Gap{}}}
	for n, size := range sizes {
		began := len(b.events)
		at := FramePosition{Seq: int64(n + 10), TimeUS: int64(n + 10), Identity: Identity{
			Kind: "commit", Author: "did:plc:" + strconv.Itoa(n/2), Revision: strconv.Itoa(n),
		}}
		for range size {
			ev := write("r"+strconv.Itoa(len(b.events)), "1")
			b.events = append(b.events, ev)
		}
		b.close(&Message{FramePosition: at}, began)
	}
	return b
}

func TestBatchIsSplitBetweenFrames(t *testing.T) {
	t.Parallel()
	end := schema.Position{Host: "h", CursorKind: "seq", Cursor: 99, CaughtUp: time.UnixMicro(99)}
	for _, c := range []struct {
		sizes  []int
		first  int // how many events the first half has
		cursor int64
	}{
		{[]int{1, 1, 1}, 1, 10}, {[]int{1, 1, 1, 1}, 2, 11}, {[]int{7, 1}, 7, 10}, {[]int{1, 7}, 1, 10}, {[]int{2, 3, 3}, 5, 11},
		{[]int{1, 1, 1, 1, 1, 1}, 3, 12},
	} {
		b := framed(&end, c.sizes...)
		first, second := b.split()
		require.Len(t, first.events, c.first)
		require.Equal(t, c.cursor, first.last.Cursor, "the first half leaves the stream at its own last frame")
		require.Equal(t, c.cursor, first.last.Anchor.Seq)
		anchors := []int64{first.last.Anchors[0].Seq, first.last.Anchors[1].Seq}
		if c.cursor < 12 { // the frames are of one account
			require.Equal(t, []int64{c.cursor, 0}, anchors)
		} else {
			require.Equal(t, []int64{c.cursor, 11}, anchors, "the last frame of each account")
		}
		require.Equal(t, c.cursor, first.last.CaughtUp.UnixMicro(), "the first half must not count as caught up with the second")
		require.Equal(t, "h", first.last.Host)
		require.NotNil(t, first.gap)
		require.Nil(t, second.gap)
		require.Equal(t, &end, second.last, "the second half ends at the whole batch's position, which includes ignored events")
		require.Equal(t, b.events, slices.Concat(first.events, second.events))
		require.Equal(t, b.frames, slices.Concat(first.frames, second.frames))
	}
}

// TestSplitFrameMovesPositionAtItsEnd checks that the position and the gap move
// with the last part of a split frame: a process that dies in between reads the
// whole frame again.
func TestSplitFrameMovesPositionAtItsEnd(t *testing.T) {
	t.Parallel()
	end := schema.Position{Host: "h", CursorKind: "seq", Cursor: 99}
	var parts []*batch
	var cut func(b *batch)
	cut = func(b *batch) {
		if len(b.events) == 1 {
			parts = append(parts, b)
			return
		}
		first, second := b.split()
		cut(first)
		cut(second)
	}
	cut(framed(&end, 1, 3, 4))
	cursors := make([]int64, len(parts))
	gaps := 0
	for i, p := range parts {
		if p.last != nil {
			cursors[i] = p.last.Cursor
		}
		if p.gap != nil {
			gaps++
			require.NotNil(t, p.last)
		}
	}
	require.Equal(t, []int64{10, 0, 0, 11, 0, 0, 0, 99}, cursors)
	require.Equal(t, 1, gaps)
}

// TestServerClockCannotMovePositionIntoFuture checks that a server whose clock
// is ahead does not move the position into the future: the next resume would
// start at the live tip.
func TestServerClockCannotMovePositionIntoFuture(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at := FramePosition{TimeUS: now.AddDate(100, 0, 0).UnixMicro(), Arrived: now}
	require.True(t, at.happened().Equal(now))
}

func TestBufferIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := newBuffer(100 + 2*frameBytes)
	frame := func(n int) Frame { return Frame{Data: make([]byte, n)} }
	require.True(t, b.put(frame(60)))
	require.True(t, b.put(frame(40)))
	require.False(t, b.put(frame(0)), "a frame without data uses memory too")
	taken, more := b.take(nil)
	require.Len(t, taken, 2)
	require.True(t, more)
	require.False(t, b.put(frame(1)), "frames that were taken and not yet decoded still count")
	b.release(taken[0])
	require.True(t, b.put(frame(1)))
	b.close()
	require.False(t, b.put(frame(1)))
	taken, more = b.take(nil)
	require.Len(t, taken, 1)
	require.False(t, more)

	empty := newBuffer(10)
	require.True(t, empty.put(frame(1000)), "an empty buffer must accept a frame larger than itself: otherwise it would never be accepted")
}

// TestBufferKeepsOrder checks that frames are taken in order and in chunks, so
// that decoded frames do not stay in memory until the last one is decoded.
func TestBufferKeepsOrder(t *testing.T) {
	t.Parallel()
	b := newBuffer(1 << 20)
	const n = 3*chunkFrames + 1
	for i := range n {
		require.True(t, b.put(Frame{Data: []byte{byte(i), byte(i >> 8)}}))
	}
	b.close()
	var taken []Frame
	for next, more := 0, true; more; {
		<-b.ready
		taken, more = b.take(taken)
		require.LessOrEqual(t, len(taken), chunkFrames)
		for _, f := range taken {
			require.Equal(t, []byte{byte(next), byte(next >> 8)}, f.Data)
			b.release(f)
			next++
		}
		require.True(t, more || next == n)
	}
	require.Zero(t, b.size())
}

// TestReaderWaitsForFullBuffer checks that the reader waits, and that a large
// part of the buffer is free after a wait.
func TestReaderWaitsForFullBuffer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		frame := Frame{Data: make([]byte, 1000)}
		full := func() *buffer {
			b := newBuffer(160 * frameSize(frame))
			for range 160 {
				require.True(t, b.put(frame))
			}
			return b
		}
		began := time.Now()
		require.False(t, full().putWithin(t.Context(), frame, 2*time.Second), "no frame was taken from the buffer")
		require.Equal(t, 2*time.Second, time.Since(began))

		b := full()
		go func() {
			for range 10 {
				time.Sleep(100 * time.Millisecond)
				b.release(frame)
			}
		}()
		began = time.Now()
		require.True(t, b.putWithin(t.Context(), frame, 2*time.Second))
		require.Equal(t, time.Second, time.Since(began), "the reader must continue once a sixteenth is free")
		for range 9 {
			require.True(t, b.put(frame))
		}
		require.False(t, b.put(frame))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, b.putWithin(ctx, frame, time.Hour), "the wait must end with the connection")
	})
}

// proven is a proof with a known outcome.
type proven struct {
	outcome ProofOutcome
	started *int
}

func (p proven) Start()                { *p.started++ }
func (p proven) Outcome() ProofOutcome { return p.outcome }

// TestUnprovenFramesAreSetAside checks that the proven frames keep their order
// and their contents, and what is stored of each unproven event.
func TestUnprovenFramesAreSetAside(t *testing.T) {
	t.Parallel()
	outcomes := []*ProofOutcome{
		nil, {}, {Cause: "forged"}, {Cause: "no key now", Retry: true}, {Cause: "one of many", Drop: true},
		{Cause: "again", Drop: true, Retry: true}, {},
	}
	b, started := &batch{origin: origin{wire: &Wire{Name: "w"}}}, 0
	var want []string
	for n, v := range outcomes {
		began, m := len(b.events), &Message{FramePosition: FramePosition{Seq: int64(n + 1)}}
		if v != nil {
			m.Proof = proven{*v, &started}
		}
		for i := range n%3 + 1 {
			ev := write(fmt.Sprint(n, "-", i), "1")
			if v != nil && v.Cause == "again" && i == n%3 {
				ev.DeadLetterID = 77
			}
			b.events = append(b.events, ev)
			if v == nil || v.Cause == "" {
				want = append(want, ev.Key)
			}
		}
		b.close(m, began)
	}
	b.close(&Message{Proof: proven{ProofOutcome{}, &started}}, len(b.events)) // its events are dropped
	require.Equal(t, 6, started)
	counted := 0
	b.prove(nil, func(string) { counted++ })
	var got []string
	for _, ev := range b.events {
		got = append(got, ev.Key)
	}
	require.Equal(t, want, got)
	var frames []int64
	events := 0
	for _, f := range b.frames {
		frames, events = append(frames, f.Seq), events+f.events
	}
	require.Equal(t, []int64{1, 2, 7}, frames)
	require.Len(t, b.events, events)
	var letters []string
	for _, l := range b.deadLetters {
		letters = append(letters, fmt.Sprint(l.Stage, " ", l.Key.Rkey, " ", l.Class, " ", l.ID, " ", l.Cause))
	}
	require.Equal(t, []string{
		"verify 2-0  0 forged", "verify 2-1  0 forged", "verify 2-2  0 forged", "verify 3-0 retryable 0 no key now",
		"verify 5-2 retryable 77 again",
	}, letters)
	require.Equal(t, len(letters), counted)
	b.prove(nil, func(string) { require.Fail(t, "the batch was verified twice") })
}
