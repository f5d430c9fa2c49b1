package simnet_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// chosen returns the entries that pass a filter.
func chosen(n *simnet.Net, judge func(*simnet.Entry) bool) (seqs []int64) {
	for _, e := range n.Log().Entries() {
		if judge(e) {
			seqs = append(seqs, e.Seq)
		}
	}
	return seqs
}

func TestFiltersByCollection(t *testing.T) {
	t.Parallel()
	long(t)
	for _, wanted := range [][]string{
		{feedPost}, {feedLike, feedPost}, {"app.bsky.feed.*"}, {"app.bsky.graph.*", "fm.teal.alpha.actor.status"}, {"app.bsky.feed.pos"},
	} {
		n := network(t, simnet.Config{Seed: 2, Mix: simnet.MixNetwork, History: 3000})
		want := chosen(n, func(e *simnet.Entry) bool {
			if e.Kind != "commit" { // other kinds pass every collection filter
				return true
			}
			for _, w := range wanted {
				if w == e.Collection || strings.HasSuffix(w, ".*") && strings.HasPrefix(e.Collection, strings.TrimSuffix(w, "*")) {
					return true
				}
			}
			return false
		})
		var pairs []string
		for _, w := range wanted {
			pairs = append(pairs, "wantedCollections", w)
		}
		require.Greater(t, len(want), 5)
		require.Less(t, len(want), 3000)
		c := dial(t, n, append(pairs, "cursor", "0")...)
		require.Equal(t, want, c.seqs(len(want)))
		c.nothingMore(n)
	}
}

func TestFiltersByAccountApplyToEveryKind(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 3000})
	dids := map[string]bool{}
	for _, e := range n.Log().Entries() {
		if e.Kind != "commit" && len(dids) < 3 {
			dids[e.DID] = true
		}
	}
	want := chosen(n, func(e *simnet.Entry) bool { return dids[e.DID] && (e.Kind != "commit" || e.Collection == feedPost) })
	require.Greater(t, len(want), 4)
	pairs := []string{"cursor", "0", "wantedCollections", feedPost}
	for did := range dids {
		pairs = append(pairs, "wantedDids", did)
	}
	c := dial(t, n, pairs...)
	require.Equal(t, want, c.seqs(len(want)))
	c.nothingMore(n)
}

func TestFramesOverTheSizeAreLeftOut(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 500})
	all := lines(t, n, simnet.V2)
	want := chosen(n, func(e *simnet.Entry) bool { return len(all[e.Seq-n.Log().Entries()[0].Seq]) <= 600 })
	require.Greater(t, len(want), 50)
	require.Less(t, len(want), 450)
	c := dial(t, n, "cursor", "0", "maxMessageSizeBytes", "600")
	require.Equal(t, want, c.seqs(len(want)))
	c = dial(t, n, "cursor", "0", "maxMessageSizeBytes", "garbage")
	require.Len(t, c.seqs(500), 500)
}

func TestExcessiveRequestsAreRefused(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 5})
	many := func(name, form string, count int) (pairs []string) {
		for i := range count {
			pairs = append(pairs, name, fmt.Sprintf(form, i))
		}
		return pairs
	}
	for _, pairs := range [][]string{
		many("wantedCollections", "org.example.c%d", 101),
		many("wantedDids", "did:plc:%024d", 10_001),
		append(many("wantedDids", "did:plc:%024d", 10_000), "cursor", "0"),
		{"wantedCollections", "nonsense"}, {"wantedCollections", "app.*"}, {"wantedCollections", ""}, {"wantedDids", "alice.example"},
	} {
		status, reason := refusal(t, n, nil, pairs...)
		require.Equal(t, http.StatusBadRequest, status)
		require.NotEmpty(t, reason)
	}
	c := dial(t, n, append(many("wantedCollections", "org.example.c%d", 99), "wantedCollections", "org.example.c1", "wantedCollections",
		feedPost, "cursor", "0")...)
	require.Equal(t, "commit", c.next().Kind, "an account that is named twice must count once")
	c = dial(t, n,
		append(many("wantedDids", "did:plc:%024d", 9_998), "wantedDids", n.Log().Last().DID, "cursor", digits(n.Log().Last().Seq))...)
	require.Equal(t, n.Log().Last().Seq, *c.next().Cursor)
}

func update(t *testing.T, collections, dids []string) string {
	t.Helper()
	message, err := json.Marshal(map[string]any{"type": "options_update",
		"payload": map[string]any{"wantedCollections": collections, "wantedDids": dids, "maxMessageSizeBytes": 0}})
	require.NoError(t, err)
	return string(message)
}

// TestRequireHelloSendsNothingBeforeAnUpdate would receive an event of another
// account first if a frame was sent before the update.
func TestRequireHelloSendsNothingBeforeAnUpdate(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 2000})
	entries := n.Log().Entries()
	for at := 1000; at < 1020; at++ {
		did := entries[at].DID
		if did == entries[0].DID {
			continue
		}
		want := chosen(n, func(e *simnet.Entry) bool { return e.DID == did })
		c := dial(t, n, "cursor", "0", "requireHello", "true")
		c.say(`{"type":"heartbeat","payload":"which nobody knows"}`)
		c.say(update(t, nil, []string{did}))
		require.Equal(t, want, c.seqs(len(want)))
	}
}

func TestUpdateReplacesTheWholeFilter(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, Mix: simnet.MixNetwork, History: 300})
	entries := n.Log().Entries()
	c := dial(t, n, "requireHello", "true", "cursor", digits(entries[299].Seq), "wantedCollections", feedPost, "wantedDids", "did:plc:nobody")
	c.say(update(t, nil, nil))
	require.Equal(t, entries[299].Seq, *c.next().Cursor, "an empty list is no filter")

	frames := c.pump()
	c.say(update(t, []string{"app.bsky.actor.*"}, nil))
	c.settle()
	n.Play(2000)
	want := chosen(n, func(e *simnet.Entry) bool {
		return e.Seq > entries[299].Seq && (e.Kind != "commit" || e.Collection == "app.bsky.actor.profile")
	})
	require.Greater(t, len(want), 5)
	for _, seq := range want {
		require.Equal(t, seq, *(<-frames).Cursor)
	}
}

func TestUpdateAcceptsTenThousandAccounts(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 100})
	dids := []string{n.Log().Last().DID}
	for i := range 9_999 {
		dids = append(dids, fmt.Sprintf("did:plc:%024d", i))
	}
	want := chosen(n, func(e *simnet.Entry) bool { return e.DID == dids[0] })
	c := dial(t, n, "cursor", "0", "requireHello", "true")
	c.say(update(t, nil, dids))
	require.Equal(t, want, c.seqs(len(want)))
	c.say(update(t, nil, append(dids, "did:plc:onemore")))
	_, err := c.ending()
	require.Equal(t, websocket.StatusPolicyViolation, websocket.CloseStatus(err), "%v", err)
}

func TestInvalidUpdateClosesWithAReason(t *testing.T) {
	t.Parallel()
	long(t)
	n := network(t, simnet.Config{Seed: 2, History: 20_000})
	for _, message := range []string{
		update(t, []string{"nonsense"}, nil), update(t, nil, []string{"alice.example"}), update(t, []string{strings.Repeat("☃", 500)}, nil),
		`{"type":"options_update","payload":"what"}`, `{"type":"options_update"}`, `{"type":`,
	} {
		idle := dial(t, n)
		idle.say(message)
		busy := dial(t, n, "cursor", "0") // in the middle of a replay
		busy.say(message)
		for _, c := range []*client{idle, busy} {
			_, err := c.ending()
			var closed websocket.CloseError
			require.ErrorAs(t, err, &closed)
			require.Equal(t, websocket.StatusPolicyViolation, closed.Code)
			require.Contains(t, closed.Reason, "invalid")
			require.True(t, utf8.ValidString(closed.Reason))
		}
	}
}

// TestFilterSizesListsEveryFilter shows that every sent filter is listed, and
// none before it is sent.
func TestFilterSizesListsEveryFilter(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 2, History: 10})
	dial(t, n, "wantedDids", "did:plc:a", "wantedDids", "did:plc:b")
	dial(t, n)
	c := dial(t, n, "requireHello", "true")
	require.Equal(t, []int{2, 0}, n.FilterSizes())
	c.say(`{"type":"options_update","payload":{"wantedDids":["did:plc:a"]}}`)
	eventually.True(t, func() bool { return len(n.FilterSizes()) == 3 }, time.Millisecond)
	require.Equal(t, []int{2, 0, 1}, n.FilterSizes())
}
