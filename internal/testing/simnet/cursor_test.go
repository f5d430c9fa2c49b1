package simnet_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestCursorByNumberIsInclusive(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 200})
	entries := n.Log().Entries()
	for _, at := range []int{0, 1, 77, 199} {
		c := dial(t, n, "cursor", digits(entries[at].Seq))
		require.Equal(t, seqsOf(entries[at:]), c.seqs(len(entries)-at))
	}
}

func TestCursorByTimeIsInclusive(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 200})
	entries := n.Log().Entries()
	for _, at := range []int{1, 77, 199} {
		first := at
		for entries[first-1].TimeUS == entries[at].TimeUS {
			first--
		}
		c := dial(t, n, "cursor", digits(entries[at].TimeUS))
		require.Equal(t, seqsOf(entries[first:]), c.seqs(len(entries)-first))
		c = dial(t, n, "cursor", digits(entries[first-1].TimeUS+1))
		require.Equal(t, entries[first].Seq, *c.next().Cursor, "a time between two events must start at the second")
	}
}

func TestV1ServerAcceptsOnlyTimes(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 200, Generation: simnet.V1})
	entries := n.Log().Entries()
	for _, at := range []int{0, 77, 199} {
		c := dial(t, n, "cursor", digits(entries[at].UniqueUS))
		for _, want := range entries[at:] {
			e := c.next()
			require.Equal(t, want.UniqueUS, e.TimeUS)
			require.Nil(t, e.Cursor)
		}
	}
	c := dial(t, n, "cursor", digits(entries[100].Seq))
	require.Equal(t, entries[0].UniqueUS, c.next().TimeUS, "a number must be read as a time in 1970: everything is sent")
	c = dial(t, n, "cursor", digits(time.Now().Add(time.Hour).UnixMicro()))
	n.Play(1)
	require.Equal(t, n.Log().Last().UniqueUS, c.next().TimeUS)
}

func TestTimeCursorMayStartEarlier(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 24 * 60, Serving: simnet.Serving{Coarse: time.Hour}})
	entries := n.Log().Entries()
	c := dial(t, n, "cursor", digits(entries[700].TimeUS))
	first := *c.next().Cursor
	require.InDelta(t, entries[640].Seq, first, 2, "an hour earlier, at an event a minute")
	c = dial(t, n, "cursor", digits(entries[700].Seq))
	require.Equal(t, entries[700].Seq, *c.next().Cursor, "a number stays exact")
	c = dial(t, n, "cursor", digits(time.Now().Add(time.Minute).UnixMicro()))
	n.Play(1)
	require.Equal(t, n.Log().Last().Seq, *c.next().Cursor, "the future is the tip all the same")
}

func TestFutureOrMissingCursorStartsAtTheTip(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 50})
	n.Inject([]byte("a frame at the tip"))
	future := []string{
		"", digits(n.Log().Last().Seq + 1), digits(n.Log().Last().Seq + 1_000_000), digits(time.Now().Add(time.Hour).UnixMicro()),
	}
	var clients []*client
	for _, cursor := range future {
		clients = append(clients, dial(t, n, "cursor", cursor))
	}
	clients = append(clients, dial(t, n))
	n.Play(3)
	entries := n.Log().Entries()
	for _, c := range clients {
		require.Equal(t, seqsOf(entries[50:]), c.seqs(3))
	}
}

func TestZeroOrLowCursorStartsAtTheOldest(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 50})
	for _, cursor := range []string{"0", "1", "1000000000000000"} {
		require.Equal(t, seqsOf(n.Log().Entries()), dial(t, n, "cursor", cursor).seqs(50))
	}
}

func TestMalformedCursorIsRefused(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 5})
	for _, cursor := range []string{"-1", "x", "1.5", "99999999999999999999", " 1"} {
		status, reason := refusal(t, n, nil, "cursor", cursor)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, reason, "invalid cursor")
	}
}

func TestOldCursorsAreClamped(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 24 * 60, Serving: simnet.Serving{Lookback: time.Hour}})
	entries := n.Log().Entries()
	for _, cursor := range []int64{0, 1, entries[3].Seq, entries[3].TimeUS} {
		c := dial(t, n, "cursor", digits(cursor))
		require.InDelta(t, entries[1380].Seq, *c.next().Cursor, 5, "only the last hour must be left, at an event per minute")
	}
	c := dial(t, n, "cursor", digits(entries[1420].Seq))
	require.Equal(t, entries[1420].Seq, *c.next().Cursor)
	require.Zero(t, n.Fired()[simnet.TooOld], "nothing went wrong here")
}

func TestReplayStartsAtTheEventNotAtTheFrameBeforeIt(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 1, History: 20})
	n.Inject([]byte(`"injected"`))
	n.Play(2)
	entries := n.Log().Entries()
	c := dial(t, n, "cursor", digits(entries[20].Seq))
	require.Equal(t, seqsOf(entries[20:]), c.seqs(2))
	c = dial(t, n, "cursor", digits(entries[19].Seq))
	require.Equal(t, entries[19].Seq, *c.next().Cursor)
	require.Equal(t, `"injected"`, string(c.frame()))
	require.Equal(t, seqsOf(entries[20:]), c.seqs(2))
}
