package nostr_test

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/nostr/negentropy"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// compared is a day of some authors' events at one relay, some of which are stored here.
type compared struct {
	t      *testing.T
	net    *simnet.Nostr
	reader *nostr.Reader
	c      nostr.Comparison

	want   []string        // the ids that are missing
	seen   map[string]bool // ids of events that were stored once and are no longer
	stored []string
}

// compare starts such a relay, and adds events outside the comparison.
func compare(t *testing.T, count int, relay simnet.NostrRelay) *compared {
	t.Helper()
	net, reader, keys := relays(t, 4, 1, relay)
	day := time.Date(2026, 3, 4, 0, 0, 0, 0, time.UTC)
	x := &compared{t: t, net: net, reader: reader, seen: map[string]bool{}}
	x.c = nostr.Comparison{Query: nostr.Query{Kinds: []int{1, 5}, Authors: keys[:3], Since: day, Most: 1000}, Until: day.Add(24 * time.Hour),
		Unknown: func(_ context.Context, ids [][32]byte) ([][32]byte, error) {
			return slices.DeleteFunc(ids, func(id [32]byte) bool { return x.seen[hex.EncodeToString(id[:])] }), nil
		},
		Store: func(_ context.Context, events []*protocol.Event) error {
			x.stored = append(x.stored, ids(events)...)
			return nil
		}}
	r := rand.New(rand.NewPCG(uint64(count), 2))
	for i := range count {
		e := net.WriteAs(i%3, nil, day.Unix()+int64(r.IntN(86400)), 1+4*(i%2), nil, strconv.Itoa(i))
		switch r.IntN(20) {
		case 0:
			x.want = append(x.want, e.ID)
		case 1:
			x.seen[e.ID] = true
		default:
			id, _ := hex.DecodeString(e.ID)
			x.c.Have = append(x.c.Have, nostr.StoredEvent{Author: keys[i%3], Item: negentropy.Item{At: e.CreatedAt, ID: [32]byte(id)}})
		}
	}
	net.WriteAs(0, nil, day.Unix()-1, 1, nil, "the day before")
	net.WriteAs(0, nil, day.Unix()+86400, 1, nil, "the day after")
	net.WriteAs(3, nil, day.Unix()+5, 1, nil, "of somebody else")
	net.WriteAs(0, nil, day.Unix()+5, 7, nil, "of another kind")
	x.want = append(x.want, net.WriteAs(1, nil, day.Unix(), 1, nil, "first").ID, net.WriteAs(1, nil, day.Unix()+86399, 1, nil, "last").ID)
	return x
}

func (x *compared) run() (nostr.Compared, error) {
	return x.reader.Compare(x.t.Context(), x.net.URLs()[0], x.c)
}

// fetched returns the ids that were requested from the relay.
func (x *compared) fetched() (all []string) {
	for _, request := range x.net.Requests(0) {
		all = append(all, request.IDs...)
	}
	return all
}

// TestComparisonFindsWhatIsMissing compares sets of ids with relays that support it, and reads
// everything from the others. It does not request events that were stored once.
func TestComparisonFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		relay simnet.NostrRelay
		count int
		by    string
	}{
		"by sets":             {simnet.NostrRelay{Page: 50, Sync: simnet.SyncAnswers}, 2000, nostr.BySets},
		"short messages":      {simnet.NostrRelay{Page: 5, Sync: simnet.SyncAnswers, Message: 9500}, 3000, nostr.BySets},
		"few events":          {simnet.NostrRelay{Page: 50, Sync: simnet.SyncAnswers}, 10, nostr.BySets},
		"a key":               {simnet.NostrRelay{Page: 50, Sync: simnet.SyncAnswers, Auth: true}, 100, nostr.BySets},
		"by pages":            {simnet.NostrRelay{Page: 50}, 400, nostr.ByPages},
		"no limits are named": {simnet.NostrRelay{Page: 50, Silent: true, Sync: simnet.SyncAnswers}, 200, nostr.ByPages},
		"refused":             {simnet.NostrRelay{Page: 50, Sync: simnet.SyncBlocked}, 200, nostr.ByPages},
		"forgotten":           {simnet.NostrRelay{Page: 50, Sync: simnet.SyncExpires}, 600, nostr.ByPages},
		"nonsense":            {simnet.NostrRelay{Page: 50, Sync: simnet.SyncNonsense}, 200, nostr.ByPages},
		"without end":         {simnet.NostrRelay{Page: 50, Sync: simnet.SyncEndless}, 60, nostr.ByPages},
		"cut":                 {simnet.NostrRelay{Page: 50, Sync: simnet.SyncAnswers, CutAt: 1}, 200, nostr.ByPages},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x := compare(t, test.count, test.relay)
			found, err := x.run()
			require.NoError(t, err)
			require.Equal(t, nostr.Compared{By: test.by, Missing: len(x.want), Sent: len(x.want)}, found)
			require.ElementsMatch(t, x.want, x.stored)
			if test.by == nostr.BySets {
				require.ElementsMatch(t, x.want, x.fetched(), "other events were requested too")
				return
			}
			require.Empty(t, x.fetched())
		})
	}
}

// TestLongEventsAreFetched fetches events that would use too much memory to be read at once.
func TestLongEventsAreFetched(t *testing.T) {
	t.Parallel()
	x := compare(t, 0, simnet.NostrRelay{Page: 250, Sync: simnet.SyncAnswers})
	for i := range int64(30) {
		x.want = append(x.want, x.net.WriteAs(1, nil, x.c.Since.Unix()+i, 1, nil, strings.Repeat("x", 900_000)).ID)
	}
	found, err := x.run()
	require.NoError(t, err)
	require.Equal(t, nostr.Compared{By: nostr.BySets, Missing: len(x.want), Sent: len(x.want)}, found)
	require.ElementsMatch(t, x.want, x.stored)
}

// TestSentEventsThatAreNotStoredAreNotMissing covers a request to vanish from another relay, and an
// event that is too long to be read. The relay does send both.
func TestSentEventsThatAreNotStoredAreNotMissing(t *testing.T) {
	t.Parallel()
	x := compare(t, 50, simnet.NostrRelay{Page: 250, Sync: simnet.SyncAnswers})
	x.c.Kinds = append(x.c.Kinds, 62)
	x.net.WriteAs(1, nil, x.c.Since.Unix()+9, 62, [][]string{{"relay", "wss://other.example"}}, "")
	x.net.WriteAs(1, nil, x.c.Since.Unix()+10, 1, nil, strings.Repeat("x", 1_100_000))
	found, err := x.run()
	require.NoError(t, err)
	require.Equal(t, nostr.Compared{By: nostr.BySets, Missing: len(x.want) + 2, Sent: len(x.want) + 2}, found)
	require.ElementsMatch(t, x.want, x.stored)
}

// TestManyEventsThatWereStoredOnceAreNotMissing covers a relay that keeps events for longer than
// Weir and names more of them than the comparison's limit.
func TestManyEventsThatWereStoredOnceAreNotMissing(t *testing.T) {
	t.Parallel()
	x := compare(t, 0, simnet.NostrRelay{Page: 250, Sync: simnet.SyncAnswers})
	x.c.Most = 20
	for i := range 700 {
		x.seen[x.net.WriteAs(i%3, nil, x.c.Since.Unix()+int64(i*100), 1, nil, strconv.Itoa(i)).ID] = true
	}
	found, err := x.run()
	require.NoError(t, err)
	require.Equal(t, nostr.Compared{By: nostr.BySets, Missing: len(x.want), Sent: len(x.want)}, found)
	require.ElementsMatch(t, x.want, x.stored)
	require.Greater(t, x.net.Compared(0), 4)
}

// TestSilentRelayIsReadByPages covers a relay that announces that it compares sets and then does
// not reply.
func TestSilentRelayIsReadByPages(t *testing.T) {
	t.Parallel()
	x := compare(t, 100, simnet.NostrRelay{Page: 50, Sync: simnet.SyncSilent})
	x.reader = nostr.NewReader(nostr.ReaderConfig{Relays: x.net.URLs(), Timeout: 5 * time.Second})
	found, err := x.run()
	require.NoError(t, err)
	require.Equal(t, nostr.Compared{By: nostr.ByPages, Missing: len(x.want), Sent: len(x.want)}, found)
}

// TestRelayGoesAwayInTheMiddle covers a relay that disconnects during the comparison and does not
// come back.
func TestRelayGoesAwayInTheMiddle(t *testing.T) {
	t.Parallel()
	var served atomic.Bool
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept") == "application/nostr+json" {
			io.WriteString(w, `{"supported_nips":[77]}`) // the client would fail
			return
		}
		if served.Swap(true) {
			http.Error(w, "away", http.StatusServiceUnavailable)
			return
		}
		if ws, err := websocket.Accept(w, r, nil); err == nil {
			ws.CloseNow() // the relay disconnects
		}
	}))
	t.Cleanup(relay.Close)
	address := "ws" + strings.TrimPrefix(relay.URL, "http")
	reader := nostr.NewReader(nostr.ReaderConfig{Relays: []string{address}})
	_, err := reader.Compare(t.Context(), address, nostr.Comparison{
		Query: nostr.Query{Kinds: []int{1}, Everyone: true, Most: 5}, Until: time.Now(),
	})
	require.ErrorContains(t, err, "503")
}

// TestInventedEventsAreNoneThatWereSent covers a relay that names events that do not exist.
func TestInventedEventsAreNoneThatWereSent(t *testing.T) {
	t.Parallel()
	x := compare(t, 20, simnet.NostrRelay{Page: 500, Sync: simnet.SyncInvents})
	found, err := x.run()
	require.NoError(t, err)
	require.Equal(t, nostr.Compared{By: nostr.BySets, Missing: 100}, found)
	x.c.Most = 99
	found, err = x.run()
	require.ErrorIs(t, err, nostr.ErrIncomplete)
	require.Empty(t, x.stored)
	require.Equal(t, 100, found.Missing)
}

// TestComparisonIsBounded shows that if more events are missing than the limit, the relay is not
// read to its end, and that a relay that cannot be paged is not reported as complete.
func TestComparisonIsBounded(t *testing.T) {
	t.Parallel()
	for _, sync := range []simnet.NostrSync{simnet.SyncAnswers, simnet.SyncUnknown} {
		x := compare(t, 300, simnet.NostrRelay{Page: 50, Sync: sync})
		x.c.Most = 5
		_, err := x.run()
		require.ErrorIs(t, err, nostr.ErrIncomplete)
		require.LessOrEqual(t, len(x.stored), 5)
	}
	x := compare(t, 0, simnet.NostrRelay{Page: 30, Silent: true})
	for i := range 40 {
		x.net.WriteAs(0, nil, x.c.Since.Unix()+77, 1, nil, fmt.Sprint("crowded ", i))
	}
	_, err := x.run()
	require.ErrorIs(t, err, nostr.ErrIncomplete)
	require.Subset(t, x.stored, x.want, "events that can be read must be stored")
}

// TestEveryoneIsCompared compares all authors if the whole network is followed, and none if the
// list of authors is empty.
func TestEveryoneIsCompared(t *testing.T) {
	t.Parallel()
	x := compare(t, 100, simnet.NostrRelay{Page: 50, Sync: simnet.SyncAnswers})
	x.c.Authors = nil
	found, err := x.run()
	require.NoError(t, err)
	require.Zero(t, found.Missing)
	require.Zero(t, x.net.Compared(0))
	x.c.Everyone = true
	found, err = x.run()
	require.NoError(t, err)
	require.Equal(t, len(x.want)+1, found.Missing)
	require.Subset(t, x.stored, x.want)
}
