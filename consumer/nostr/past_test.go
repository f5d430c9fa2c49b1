package nostr_test

import (
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestSecondLongerThanPageIsSplitOrAGap reads relays that have more events of one second than they
// send in a page. If the events are of several kinds, requests by kind return all of them. If they
// are of one kind, the rest is a gap. Older events are read in both cases.
func TestSecondLongerThanPageIsSplitOrAGap(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const page = 30
	for name, c := range map[string]struct {
		relay       simnet.NostrRelay
		same, newer bool
	}{
		"by kind":                           {simnet.NostrRelay{Page: page, Silent: true}, false, true},
		"of one kind":                       {simnet.NostrRelay{Page: page, Silent: true}, true, true},
		"the newest, by kind":               {simnet.NostrRelay{Page: page, Says: 500}, false, false},
		"the newest, of one kind":           {simnet.NostrRelay{Page: page, Says: 500}, true, false},
		"the newest, and the oldest first":  {simnet.NostrRelay{Page: page, Says: 500, Oldest: true}, false, false},
		"not the newest, the oldest first":  {simnet.NostrRelay{Page: page, Silent: true, Oldest: true}, false, true},
		"of one kind, and the oldest first": {simnet.NostrRelay{Page: page, Silent: true, Oldest: true}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, simnet.NostrConfig{Authors: 1, Relays: []simnet.NostrRelay{c.relay}})
			at := time.Now().Add(-time.Hour).Unix()
			for i := range page + 5 {
				n.Write(at-100-int64(i), 1, nil, "older")
			}
			for i := range page + 6 {
				kind := 1
				if !c.same && i%2 == 0 {
					kind = 30023
				}
				n.Write(at, kind, [][]string{{"d", strconv.Itoa(i)}}, strconv.Itoa(i))
			}
			if c.newer {
				n.Write(at+1, 1, nil, "newer")
			}
			stop := n.run(nil)
			n.read()
			stop()
			if !c.same {
				require.Equal(t, n.fold(), n.records())
				require.Zero(t, n.count(`SELECT count(*) FROM gaps`))
				return
			}
			require.Equal(t, len(n.fold())-6, n.count(`SELECT count(*) FROM records`))
			require.Equal(t, 1, n.count(`
SELECT count(*)
FROM gaps WHERE from_at = to_timestamp($1) AND to_at = to_timestamp($1 + 1) AND problem <> '' AND closed_at IS NULL`, at))
			require.Equal(t, 1, n.count(`SELECT count(*) FROM gaps`))
			require.Zero(t, n.count(`SELECT count(*) FROM river_job WHERE kind = 'close_gap'`),
				"no job may be enqueued: no repository has the missing events")
		})
	}
}

// TestSecondThatIsNotCutIsNoGap covers a second whose events fit in one page.
func TestSecondThatIsNotCutIsNoGap(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Authors: 1, Relays: []simnet.NostrRelay{{Page: 500}}})
	at := time.Now().Add(-time.Hour).Unix()
	for i := range 40 {
		n.Write(at, 1, nil, strconv.Itoa(i))
	}
	stop := n.run(nil)
	n.read()
	stop()
	require.Equal(t, n.fold(), n.records())
	require.Zero(t, n.count(`SELECT count(*) FROM gaps`))
}

// TestRelayTellsWhetherPageIsComplete reads relays that tell it, with pages so short that they are
// else taken for complete. If it is not, the rest of a second is read by kind; if it is, nothing
// more is requested.
func TestRelayTellsWhetherPageIsComplete(t *testing.T) {
	t.Parallel()
	const page = 10
	requests := map[bool]int{}
	for _, tells := range []bool{false, true} {
		cut := newNetwork(t, simnet.NostrConfig{Authors: 1, Relays: []simnet.NostrRelay{{Page: page, Tells: tells, Silent: true}}})
		whole := newNetwork(t, simnet.NostrConfig{Authors: 1, Relays: []simnet.NostrRelay{{Page: 500, Tells: tells}}})
		at := time.Now().Add(-time.Hour).Unix()
		for i := range page + 6 {
			kind := []int{1, 30023}[i%2]
			cut.Write(at, kind, [][]string{{"d", strconv.Itoa(i)}}, strconv.Itoa(i))
			whole.Write(at+int64(i), kind, [][]string{{"d", strconv.Itoa(i)}}, strconv.Itoa(i))
		}
		for _, n := range []*network{cut, whole} {
			stop := n.run(nil)
			n.read()
			stop()
		}
		require.Equal(t, whole.fold(), whole.records())
		require.Equal(t, tells, len(cut.fold()) == len(cut.records()), "of %d events, %d are stored", len(cut.fold()), len(cut.records()))
		requests[tells] = len(whole.Requests(0))
	}
	require.Less(t, requests[true], requests[false])
}

// TestPagesThatCannotBeReadHideNothing shows that older events are read behind pages that anybody
// can place at the top of a relay: events with the last possible date, with a later one, or
// unreadable text.
func TestPagesThatCannotBeReadHideNothing(t *testing.T) {
	t.Parallel()
	const page = 30
	yesterday := time.Now().Add(-24 * time.Hour).Unix()
	for name, c := range map[string]struct {
		at             func(i int64) int64
		text           string
		readable, gaps int
	}{
		"the last date":          {func(int64) int64 { return protocol.MaxCreatedAt }, "", page, 1},
		"a later date":           {func(i int64) int64 { return protocol.MaxCreatedAt + 1 + i }, "", 0, 0},
		"no text":                {func(i int64) int64 { return yesterday + i }, "\xff", 0, 0},
		"no text, in one second": {func(int64) int64 { return yesterday }, "\xff", 0, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNetwork(t, simnet.NostrConfig{Authors: 1, Relays: []simnet.NostrRelay{{Page: page}}})
			for i := range int64(page + 10) {
				n.Write(c.at(i), 1, nil, strconv.FormatInt(i, 10)+c.text)
				n.Write(yesterday-1-i, 1, nil, "older")
			}
			stop := n.run(nil)
			n.read()
			stop()
			require.Equal(t, page+10, n.count(`SELECT count(*) FROM records WHERE record ->> 'content' = 'older'`))
			require.Equal(t, page+10+c.readable, n.count(`SELECT count(*) FROM records`))
			require.Equal(t, c.gaps, n.count(`SELECT count(*) FROM gaps WHERE to_at = from_at + interval '1 second' AND problem <> ''
AND to_at BETWEEN now() - interval '2 days' AND '9999-12-31'`))
			require.Equal(t, c.gaps, n.count(`SELECT count(*) FROM gaps`))

			key, _ := protocol.ParseKey(n.Key(0))
			found := 0
			err := nostr.NewReader(nostr.ReaderConfig{Relays: n.URLs()}).Stored(t.Context(), n.URLs()[0], func(page []*protocol.Event) error {
				found += len(slices.DeleteFunc(page, func(e *protocol.Event) bool { return e.Content != "older" }))
				return nil
			}, nostr.Query{Kinds: []int{1}, Authors: [][32]byte{key}, Most: 5000})
			require.GreaterOrEqual(t, found, page+10)
			if c.gaps == 0 {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, nostr.ErrIncomplete)
			}
		})
	}
}

// TestPositionMovesOnlyAtTheEnd cuts the connection while the past is read. The next one starts
// again, because the newest events arrived first.
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
	require.Equal(t, 1, n.count(`
SELECT count(*)
FROM streams
WHERE last_event_at >= $1 AND anchor IS NULL`, before.Add(-time.Second)), "the position must be by our clock")
}

// TestRefusedPageIsAskedForAgain shows that a refused page is requested again on the same
// connection. Otherwise a relay that refuses some requests would never be read to its end, because
// each connection begins with the newest page.
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
