package consumer

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

func write(rkey, rev string) Event {
	return Event{Kind: KindCommit, DID: "did:plc:a", TimeUS: 1, Operation: Create, Collection: "app.bsky.feed.post", Rkey: rkey, Rev: rev, Record: []byte(`{}`)}
}

func remove(rkey, rev string) Event {
	return Event{Kind: KindCommit, DID: "did:plc:a", TimeUS: 1, Operation: Delete, Collection: "app.bsky.feed.post", Rkey: rkey, Rev: rev}
}

// TestFoldKeepsTheNewestWhateverTheOrder shuffles the events of a batch: the
// tables may not depend on the order in which one batch happens to hold them.
func TestFoldKeepsTheNewestWhateverTheOrder(t *testing.T) {
	t.Parallel()
	events := []Event{
		write("x", "1"), write("x", "3"), write("x", "2"), // the newest write stays
		write("y", "1"), remove("y", "2"), // deleted
		remove("z", "1"), write("z", "2"), // made again after its deletion
		write("w", "2"), remove("w", "2"), // of one revision: the deletion holds
	}
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
		out := (&batch{events: events}).fold()
		require.Equal(t, []string{"x=3", "z=2"}, revs(out.Writes, func(w schema.Write) string { return w.Rkey + "=" + w.Rev }))
		require.Equal(t, []string{"w=2", "y=2", "z=1"}, revs(out.Deletions, func(d schema.Deletion) string { return d.Rkey + "=" + d.Rev }))
	}
}

func revs[T any](all []T, of func(T) string) []string {
	names := make([]string, len(all))
	for i, v := range all {
		names[i] = of(v)
	}
	return names
}

func TestFoldKeepsTheLastWordOfAnAccount(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC)
	account := func(active bool, status string, at time.Time) Event {
		return Event{Kind: KindAccount, DID: "did:plc:a", TimeUS: at.Add(time.Hour).UnixMicro(), Active: active, Status: status, At: at}
	}
	out := (&batch{events: []Event{
		account(false, "takendown", at.Add(time.Second)),
		account(true, "", at),
	}}).fold()
	require.Equal(t, []schema.Status{{DID: "did:plc:a", Status: "takendown", At: at.Add(time.Second)}}, out.Statuses)
}

// TestAccountEventFromTheFutureIsNotFinal: a status dated after its event would
// outlive every later one.
func TestAccountEventFromTheFutureIsNotFinal(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 7, 4, 0, 0, 0, 0, time.UTC)
	ev := Event{Kind: KindAccount, DID: "did:plc:a", TimeUS: at.UnixMicro(), At: at.AddDate(1000, 0, 0)}
	out := (&batch{events: []Event{ev}}).fold()
	require.True(t, out.Statuses[0].At.Equal(at))
	require.Equal(t, "inactive", out.Statuses[0].Status)
}

func TestSplitKeepsOrderAndPosition(t *testing.T) {
	t.Parallel()
	events := []Event{write("a", "1"), write("b", "1"), write("c", "1")}
	for i := range events {
		events[i].Seq = int64(i + 10)
	}
	end := schema.Position{Host: "h", CursorKind: "seq", Cursor: 99}
	first, second := (&batch{events: events, last: &end, gap: &schema.Gap{}}).split()
	require.Equal(t, int64(10), first.last.Cursor, "the first half leaves the stream at its own last event")
	require.Equal(t, "h", first.last.Host)
	require.NotNil(t, first.gap)
	require.Nil(t, second.gap)
	require.Equal(t, &end, second.last, "the second half leaves it where the whole batch did: ignored events included")
	require.Equal(t, events, slices.Concat(first.events, second.events))
}

// TestServerClockIsNotTrusted: a server in the future would push the stream's
// position there, and the next resume to the live tip.
func TestServerClockIsNotTrusted(t *testing.T) {
	t.Parallel()
	now := time.Now()
	ev := Event{TimeUS: now.AddDate(100, 0, 0).UnixMicro(), Arrived: now}
	require.True(t, happened(&ev).Equal(now))
}

func TestBufferIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	b := newBuffer(100 + 2*frameBytes)
	frame := func(n int) Frame { return Frame{Data: make([]byte, n)} }
	require.True(t, b.put(frame(60)))
	require.True(t, b.put(frame(40)))
	require.False(t, b.put(frame(0)), "a frame without data takes memory too")
	taken, more := b.take(nil)
	require.Len(t, taken, 2)
	require.True(t, more)
	require.False(t, b.put(frame(1)), "what was taken and not decoded still counts")
	b.release(taken[0])
	require.True(t, b.put(frame(1)))
	b.close()
	require.False(t, b.put(frame(1)))
	taken, more = b.take(nil)
	require.Len(t, taken, 1)
	require.False(t, more)

	empty := newBuffer(10)
	require.True(t, empty.put(frame(1000)), "a frame larger than the buffer passes an empty one: it would never pass otherwise")
}

// TestBufferGivesFramesInOrder, a few at once: those that were decoded do not
// stay in memory until the last of many is.
func TestBufferGivesFramesInOrder(t *testing.T) {
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

// TestFullBufferIsWaitedForAWhile, and after a wait there is room for much.
func TestFullBufferIsWaitedForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		frame := Frame{Data: make([]byte, 1000)}
		full := func() *buffer {
			b := newBuffer(160 * held(frame))
			for range 160 {
				require.True(t, b.put(frame))
			}
			return b
		}
		began := time.Now()
		require.False(t, full().putWithin(t.Context(), frame, 2*time.Second), "nobody takes anything")
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
		require.Equal(t, time.Second, time.Since(began), "a sixteenth is free")
		for range 9 {
			require.True(t, b.put(frame))
		}
		require.False(t, b.put(frame))

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.False(t, b.putWithin(ctx, frame, time.Hour), "it ends with the connection")
	})
}
