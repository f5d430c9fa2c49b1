package simnet_test

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/jetstream/dictionary"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func do(t *testing.T, n *simnet.Net, f simnet.Fault) {
	t.Helper()
	require.NoError(t, n.Do(f))
}

// during returns how the client's connection ends during a fault.
func (c *client) during(n *simnet.Net, f simnet.Fault) error {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- n.Do(f) }()
	_, err := c.ending()
	require.NoError(c.t, <-done)
	return err
}

func TestCutEndsEveryStreamWithoutACloseFrame(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 20_000})
	do(t, n, simnet.Cut)
	require.Zero(t, n.Fired()[simnet.Cut], "no client was connected")
	clients := []*client{dial(t, n), dial(t, n, "requireHello", "true"), dial(t, n, "cursor", "0")}
	get(t, n, "/admin/fired") // a plain request does not count as a stream
	do(t, n, simnet.Cut)
	require.Equal(t, 3, n.Fired()[simnet.Cut])
	for _, c := range clients {
		_, err := c.ending()
		require.EqualValues(t, -1, websocket.CloseStatus(err), "%v", err)
	}
	require.Len(t, dial(t, n, "cursor", "0").seqs(10), 10)
}

// TestStallIsSilenceUntilTheServerStops also shows that the server drops the
// client without notifying it.
func TestStallIsSilenceUntilTheServerStops(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, Serving: simnet.Serving{WriteLimit: time.Second}})
	c := dial(t, n)
	do(t, n, simnet.Stall)
	require.Equal(t, 1, n.Fired()[simnet.Stall])
	n.Play(5)
	requireNobody(t, n)
	type outcome struct {
		frames int
		err    error
	}
	over := make(chan outcome, 1)
	go func() {
		frames, err := c.ending()
		over <- outcome{frames, err}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.conn.Ping(ctx), context.DeadlineExceeded)
	require.Empty(t, over, "the connection ended, or data was received")
	require.Len(t, dial(t, n, "cursor", "0").seqs(5), 5, "a new connection is served")
	n.Stop()
	end := <-over
	require.Zero(t, end.frames)
	require.EqualValues(t, -1, websocket.CloseStatus(end.err), "%v", end.err)
}

func TestStalledClientThatLeavesIsReleased(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6})
	c := dial(t, n)
	do(t, n, simnet.Stall)
	require.NoError(t, c.conn.CloseNow())
	requireNobody(t, n)
}

// requireNobody waits until the server has dropped the last stream: then no
// stream can be stalled.
func requireNobody(t *testing.T, n *simnet.Net) {
	t.Helper()
	eventually.True(t, func() bool {
		before := n.Fired()[simnet.Stall]
		return n.Do(simnet.Stall) == nil && n.Fired()[simnet.Stall] == before
	}, time.Millisecond)
}

func TestStalledClientCanBeCut(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6})
	c := dial(t, n)
	do(t, n, simnet.Stall)
	n.Play(5)
	do(t, n, simnet.Cut)
	frames, err := c.ending()
	require.Zero(t, frames)
	require.EqualValues(t, -1, websocket.CloseStatus(err), "%v", err)
}

func TestGarbageAndInvalidUTF8AreSentAndReplayed(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 3})
	plain, packed := dial(t, n), dial(t, n, "compress", "true").decodes(dictionary.V1)
	do(t, n, simnet.Garbage)
	do(t, n, simnet.NotUTF8)
	n.Play(1)
	late := dial(t, n, "cursor", digits(n.Log().Entries()[2].Seq))
	late.next()
	for _, c := range []*client{plain, packed, late} {
		data := c.frame()
		require.True(t, utf8.Valid(data))
		require.False(t, json.Valid(data))
		require.False(t, utf8.Valid(c.frame()))
		require.Equal(t, n.Log().Last().Seq, *c.next().Cursor)
	}
	require.Equal(t, map[simnet.Fault]int{simnet.Garbage: 3, simnet.NotUTF8: 3}, n.Fired())
	require.Len(t, n.Log().Entries(), 4, "a fault is not an entry")
}

func TestOversizedIsSentOnceToConnectedClients(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 3})
	strict, packed, lenient := dial(t, n), dial(t, n, "compress", "true"), dial(t, n)
	lenient.conn.SetReadLimit(32 << 20)
	do(t, n, simnet.Oversized)
	for _, c := range []*client{strict, packed} {
		_, err := c.ending()
		require.ErrorIs(t, err, websocket.ErrMessageTooBig)
	}
	require.Greater(t, len(lenient.frame()), 17<<20)
	n.Play(1)
	require.Equal(t, n.Log().Last().Seq, *lenient.next().Cursor)
	require.Equal(t, seqsOf(n.Log().Entries()), dial(t, n, "cursor", "0").seqs(4), "a client that reconnects gets past it")
	require.Equal(t, 3, n.Fired()[simnet.Oversized])
}

func TestDuplicateSendsTheLastTenAgain(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 30})
	did := n.Log().Entries()[25].DID
	want := chosen(n, func(e *simnet.Entry) bool { return e.DID == did && e.Seq >= n.Log().Entries()[20].Seq })
	clients := []*client{dial(t, n), dial(t, n, "compress", "true").decodes(dictionary.V1)}
	picky := dial(t, n, "wantedDids", did)
	n.Inject([]byte("which is no event"))
	do(t, n, simnet.Duplicate)
	entries := n.Log().Entries()
	for _, c := range clients {
		require.Equal(t, "which is no event", string(c.frame()))
		require.Equal(t, seqsOf(entries[20:]), c.seqs(10))
	}
	require.Equal(t, "which is no event", string(picky.frame()))
	require.Equal(t, want, picky.seqs(len(want)), "the filter must apply to these events too")
	require.Equal(t, 20+len(want), n.Fired()[simnet.Duplicate])
	require.Len(t, entries, 30)
	again := dial(t, n, "cursor", digits(entries[29].Seq))
	require.Equal(t, entries[29].Seq, *again.next().Cursor)
	require.Equal(t, "which is no event", string(again.frame()))
	require.Equal(t, seqsOf(entries[20:]), again.seqs(10), "they are replayed")
}

func TestRenumberChangesTheNumbersOfOldEvents(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 50})
	c := dial(t, n, "cursor", "0")
	before := c.seqs(50)
	packed := dial(t, n, "cursor", "0", "compress", "true").decodes(dictionary.V1)
	require.Equal(t, before, packed.seqs(50))
	require.NoError(t, packed.conn.CloseNow())
	address := n.Address()
	require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(c.during(n, simnet.Renumber)))
	require.Equal(t, address, n.Address())

	entries := n.Log().Entries()
	for _, resumed := range []*client{
		dial(t, n, "cursor", digits(before[30])), dial(t, n, "cursor", digits(before[30]), "compress", "true").decodes(dictionary.V1),
	} {
		e := resumed.next()
		require.Equal(t, before[30], *e.Cursor)
		require.Equal(t, entries[34].TimeUS, e.TimeUS, "the number names a later event")
	}
	require.Equal(t, before[0]-4, *dial(t, n, "cursor", "0").next().Cursor)
	byTime := dial(t, n, "cursor", digits(entries[30].TimeUS))
	require.Equal(t, entries[30].DID, byTime.next().DID)
	tip := dial(t, n)
	tip.during(n, simnet.Renumber)
	tip = dial(t, n)
	n.Play(1)
	require.Equal(t, n.Log().Last().Seq-8, *tip.next().Cursor)
	require.Equal(t, before[49]+1, n.Log().Last().Seq, "the log must keep its numbers")
	require.Equal(t, map[simnet.Fault]int{simnet.Renumber: 2}, n.Fired())
}

func TestRestartKeepsEverythingButTheConnections(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 50})
	for round := range 3 {
		c, where := dial(t, n), n.URL()
		require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(c.during(n, simnet.Restart)))
		require.Equal(t, where, n.URL())
		replayed := dial(t, n, "cursor", "0")
		require.Equal(t, seqsOf(n.Log().Entries()), replayed.seqs(50))
		require.NoError(t, replayed.conn.CloseNow())
		require.Equal(t, round+1, n.Fired()[simnet.Restart])
	}
}

func TestServerWithShortRetentionKeepsTheEnd(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 600, HistorySpan: time.Minute})
	entries := n.Log().Entries()
	first := n.Forget(10 * time.Second)
	at := slices.IndexFunc(entries, func(e *simnet.Entry) bool { return e.Seq == first })
	require.InDelta(t, 500, at, 10, "ten events a second")
	require.Equal(t, first, *dial(t, n, "cursor", digits(entries[3].Seq)).next().Cursor)
	require.Equal(t, 1, n.Fired()[simnet.TooOld])
	require.Equal(t, first, n.Forget(time.Hour), "dropped events stay dropped")
	require.GreaterOrEqual(t, n.Forget(0), entries[599].Seq)
	do(t, n, simnet.TooOld)
	c := dial(t, n, "cursor", "0")
	do(t, n, simnet.Duplicate)
	do(t, n, simnet.Stale)
	n.Play(1)
	require.Equal(t, entries[599].Seq+1, *c.next().Cursor, "dropped events are not sent again")
}

func TestTooOldDropsEverythingUpToNow(t *testing.T) {
	t.Parallel()
	for _, g := range []simnet.Generation{simnet.V1, simnet.V2} {
		n := network(t, simnet.Config{Seed: 6, History: 50, Generation: g})
		n.Play(5)
		do(t, n, simnet.TooOld)
		require.Zero(t, n.Fired()[simnet.TooOld], "no client has requested dropped events")
		n.Play(3)
		entries := n.Log().Entries()
		dropped, last := entries[54].UniqueUS, entries[57].UniqueUS
		if g == simnet.V2 {
			dropped, last = entries[54].TimeUS, entries[57].TimeUS
		}
		for i, cursor := range []int64{0, entries[20].UniqueUS, dropped} {
			c := dial(t, n, "cursor", digits(cursor))
			require.Equal(t, entries[55].DID, c.next().DID)
			c.next()
			require.Equal(t, entries[57].DID, c.next().DID)
			require.Equal(t, i+1, n.Fired()[simnet.TooOld])
		}
		dial(t, n, "cursor", digits(last)).next()
		require.Equal(t, 3, n.Fired()[simnet.TooOld])
	}
}

func TestRefuseRejectsNewClientsUntilAccept(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6})
	c := dial(t, n)
	do(t, n, simnet.Refuse)
	for i := range 2 {
		require.Equal(t, i, n.Fired()[simnet.Refuse])
		status, reason := refusal(t, n, nil)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Contains(t, reason, "not ready")
	}
	n.Play(1)
	require.Equal(t, n.Log().Last().Seq, *c.next().Cursor, "connected clients stay")
	do(t, n, simnet.Accept)
	require.Equal(t, n.Log().Last().Seq, *dial(t, n, "cursor", "0").next().Cursor)
	require.Equal(t, map[simnet.Fault]int{simnet.Refuse: 2, simnet.Accept: 1}, n.Fired())
}

func TestTimesStandStillAfterTheClockWasAhead(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 3})
	c := dial(t, n, "cursor", "0")
	do(t, n, simnet.Ahead)
	began := time.Now()
	n.Play(2)
	do(t, n, simnet.OnTime)
	n.Play(2)
	played := time.Since(began)
	entries := n.Log().Entries()
	ahead := time.UnixMicro(entries[3].TimeUS).Sub(began.Truncate(time.Microsecond))
	require.GreaterOrEqual(t, ahead, time.Minute)
	require.LessOrEqual(t, ahead, time.Minute+played)
	require.Equal(t, entries[4].TimeUS, entries[5].TimeUS)
	require.Equal(t, entries[4].TimeUS, entries[6].TimeUS)
	require.False(t, entries[4].CreatedAt.After(began.Add(played)), "authors have their own clocks")
	require.Equal(t, seqsOf(entries), c.seqs(7))
	require.Equal(t, map[simnet.Fault]int{simnet.Ahead: 2, simnet.OnTime: 1}, n.Fired())
	dial(t, n, "cursor", digits(entries[3].TimeUS)).next() // a time in the future, which the log has reached
}

func TestUnknownFaultsAreRefused(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6})
	require.ErrorContains(t, n.Do("flood"), "expected one of [cut stall")
	require.Empty(t, n.Fired())
}

func TestInjectedFramesAreUnchanged(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 2})
	frame := []byte(`{"did":"did:plc:x","kind":"unheard of"}`)
	n.Inject(frame)
	copy(frame, "overwritten") // the caller changes the frame afterwards
	for _, c := range []*client{dial(t, n, "cursor", "0"), dial(t, n, "cursor", "0", "compress", "true").decodes(dictionary.V1)} {
		c.seqs(2)
		require.Equal(t, `{"did":"did:plc:x","kind":"unheard of"}`, string(c.frame()))
	}
}

// TestStaleSendsOldRevisions shows that the newest revision of a record is
// never sent.
func TestStaleSendsOldRevisions(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 6, History: 3000})
	newest := map[string]int64{}
	bySeq := map[int64]*simnet.Entry{}
	for _, e := range n.Log().Entries() {
		newest[e.DID+e.Collection+e.Rkey] = e.Seq
		bySeq[e.Seq] = e
	}
	c := dial(t, n)
	do(t, n, simnet.Stale)
	for _, seq := range c.seqs(20) {
		e := bySeq[seq]
		require.NotNil(t, e.Record)
		require.Greater(t, newest[e.DID+e.Collection+e.Rkey], seq)
	}
	require.Equal(t, 20, n.Fired()[simnet.Stale])
	require.Len(t, n.Log().Entries(), 3000)
}
