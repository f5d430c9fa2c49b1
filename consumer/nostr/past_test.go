package nostr_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/simnet"
)

// TestSecondLongerThanPageIsSplitOrAGap reads a relay with more events of one second than
// it sends in a page: by kind it sends all of them, of one kind it cannot be made to. What
// is older is read all the same.
func TestSecondLongerThanPageIsSplitOrAGap(t *testing.T) {
	t.Parallel()
	const page = 30
	for _, same := range []bool{false, true} {
		n := newNetwork(t, simnet.NostrConfig{Authors: 1, Relays: []simnet.NostrRelay{{Page: page, Silent: true}}})
		at := time.Now().Add(-time.Hour).Unix()
		for i := range 5 {
			n.Write(at-100-int64(i), 1, nil, "older")
		}
		for i := range page + 10 {
			kind := 1
			if !same && i%2 == 0 {
				kind = 30023
			}
			n.Write(at, kind, [][]string{{"d", strconv.Itoa(i)}}, strconv.Itoa(i))
		}
		n.Write(at+1, 1, nil, "newer")
		stop := n.run(nil)
		n.read()
		stop()
		if !same {
			require.Equal(t, n.fold(), n.records())
			require.Zero(t, n.count(`SELECT count(*) FROM gaps`))
			continue
		}
		require.Equal(t, page+6, n.count(`SELECT count(*) FROM records`))
		require.Equal(t, 1, n.count(`SELECT count(*) FROM gaps WHERE from_at = to_timestamp($1) AND to_at = to_timestamp($1 + 1) AND problem <> '' AND closed_at IS NULL`, at))
		require.Equal(t, 1, n.count(`SELECT count(*) FROM gaps`))
		require.Zero(t, n.count(`SELECT count(*) FROM river_job WHERE kind = 'close_gap'`), "no repository has what is missing")
	}
}

// TestPositionMovesOnlyAtTheEnd cuts the connection in the past: the next one starts from
// the beginning, because the newest events came first.
func TestPositionMovesOnlyAtTheEnd(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 4, Relays: []simnet.NostrRelay{{Page: 20, CutAt: 60}}})
	n.Play(100)
	before := time.Now()
	stop := n.run(func(cfg *consumer.Config) {
		cfg.BatchEvents = 5
	})
	defer stop()
	n.read()
	n.holds()
	require.Equal(t, 1, n.count(`SELECT count(*) FROM streams WHERE last_event_at >= $1 AND anchor IS NULL`, before.Add(-time.Second)), "the position is of our clock")
}

// TestRefusedPageIsAskedForAgain on the same connection: a relay that refuses a request now
// and then would otherwise never be read to its end, because each connection begins with
// the newest page.
func TestRefusedPageIsAskedForAgain(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 7, Relays: []simnet.NostrRelay{{Page: 20, CloseEach: 3}}})
	n.Play(200)
	stop := n.run(nil)
	n.read()
	n.holds()
	stop()
	asked := n.Requests(0)
	subscribed := slices.DeleteFunc(slices.Clone(asked), func(r simnet.NostrRequest) bool { return r.Limit != 1 })
	require.Len(t, subscribed, 1, "one connection")
	require.Greater(t, len(asked), 15)
}
