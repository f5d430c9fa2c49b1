package firehose

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// datedRelay is a relay with numbered, dated events. It sends one more when a client connects
// without a cursor, unless it is quiet.
type datedRelay struct {
	first, last int64
	at          func(seq int64) time.Time
	quiet       bool
	connections atomic.Int64
}

func (r *datedRelay) start(t *testing.T) (url string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		r.connections.Add(1)
		ws, err := websocket.Accept(w, request, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow() // the test is over
		seq, err := strconv.ParseInt(request.URL.Query().Get("cursor"), 10, 64)
		switch {
		case err != nil && r.quiet:
			seq = r.last
		case err != nil:
			seq = r.last - 10
		}
		for seq = max(seq+1, r.first); seq <= r.last; seq++ {
			e := comatproto.SyncSubscribeRepos_Identity{Did: testDID, Seq: seq, Time: r.at(seq).Format(time.RFC3339Nano)}
			if ws.Write(request.Context(), websocket.MessageBinary, frameOf(t, typeIdentity, &e)) != nil {
				return
			}
		}
		ws.Read(request.Context()) // waits until the client has disconnected
	}))
	t.Cleanup(s.Close)
	return "ws" + strings.TrimPrefix(s.URL, "http")
}

// TestPositionIsFoundByTime starts at a time on relays whose events were sent at even or uneven
// rates, or some of whose events have wrong dates.
func TestPositionIsFoundByTime(t *testing.T) {
	t.Parallel()
	const first, last, span = 20_000_000_000, 20_100_000_000, 72 * time.Hour
	began := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	even := func(seq int64) time.Time {
		return began.Add(time.Duration(float64(span) * float64(seq-first) / float64(last-first)))
	}
	lately := func(seq int64) time.Time { // nine tenths of the events came in the last three hours
		const turn, before = first + (last-first)/10, span - 3*time.Hour
		if seq < turn {
			return began.Add(time.Duration(float64(before) * float64(seq-first) / float64(turn-first)))
		}
		return began.Add(before + time.Duration(float64(span-before)*float64(seq-turn)/float64(last-turn)))
	}
	wrongly := func(seq int64) time.Time {
		switch seq % 6 {
		case 0:
			return even(seq).Add(-240 * time.Hour)
		case 3:
			return even(seq).Add(240 * time.Hour)
		}
		return even(seq)
	}
	for name, c := range map[string]struct{ dated, truly func(int64) time.Time }{
		"even": {even, even}, "lately": {lately, lately}, "wrongly dated": {wrongly, even},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, ago := range []time.Duration{time.Hour, 10 * time.Minute, 4 * time.Hour, 40 * time.Hour} {
				r := &datedRelay{first: first, last: last, at: c.dated}
				since := began.Add(span - ago)
				seq := startsAt(t, r, since)
				require.False(t, c.truly(seq).After(since), "since %s", ago)
				require.WithinDuration(t, since, c.truly(seq), 6*time.Minute, "since %s", ago)
				t.Logf("%s ago: %d connections", ago, r.connections.Load())
				require.LessOrEqual(t, r.connections.Load(), int64(mostProbes+1))
			}
		})
	}
}

// TestPositionIsNeverTooLate shows that the stream starts at the oldest event if the time cannot be
// found, and at the newest if no event has reached it.
func TestPositionIsNeverTooLate(t *testing.T) {
	t.Parallel()
	began := time.Date(2026, 8, 1, 0, 0, 0, 0, time.UTC)
	hourly := func(seq int64) time.Time { return began.Add(time.Duration(seq) * time.Hour) }
	for name, c := range map[string]struct {
		relay *datedRelay
		since time.Time
		want  int64
	}{
		"older than the oldest": {&datedRelay{first: 500, last: 1000, at: hourly}, began, 500},
		"newer than the newest": {&datedRelay{first: 500, last: 1000, at: hourly}, began.Add(2000 * time.Hour), 991},
		"quiet":                 {&datedRelay{first: 500, last: 1000, at: hourly, quiet: true}, began.Add(900 * time.Hour), 500},
		"all at one time":       {&datedRelay{first: 1, last: 100_000, at: func(int64) time.Time { return began }}, began.Add(-time.Second), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, startsAt(t, c.relay, c.since))
		})
	}
}

// startsAt returns the number of the first event that a client receives if it starts at a time.
func startsAt(t *testing.T, r *datedRelay, since time.Time) (seq int64) {
	t.Helper()
	c := testClient(t, Config{}, r.start(t))
	conn, err := c.Connect(t.Context(), func(string) consumer.Cursor {
		return consumer.Cursor{Kind: consumer.CursorTime, Value: since.UnixMicro()}
	}, nil)
	require.NoError(t, err)
	defer conn.Close() // never fails
	return nextEvent(t, conn).Seq
}
