package nostr_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/guard"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/loopback"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// relays starts a network of relays, and a reader of the first of them.
func relays(t *testing.T, authors, configured int, all ...simnet.NostrRelay) (*simnet.Nostr, *nostr.Reader, [][32]byte) {
	t.Helper()
	net, err := simnet.NewNostr(simnet.NostrConfig{Seed: 8, Authors: authors, Now: time.Now(), Relays: all})
	require.NoError(t, err)
	t.Cleanup(net.Stop)
	keys := make([][32]byte, authors)
	for i := range keys {
		keys[i], _ = protocol.ParseKey(net.Key(i))
	}
	guarded := &http.Client{Transport: guard.Config{Loopback: true}.Transport(http.DefaultTransport.(*http.Transport))}
	return net, nostr.NewReader(nostr.ReaderConfig{
		Relays: net.URLs()[:configured], Key: &[32]byte{31: 5}, AuthorRelays: guarded, Timeout: time.Minute,
	}), keys
}

func ids(events []*protocol.Event) (all []string) {
	for _, e := range events {
		all = append(all, fmt.Sprintf("%x", e.ID))
	}
	return all
}

// TestLatestIsTheNewestSignedOne asks several relays, one of which is down and one of which sends
// forgeries.
func TestLatestIsTheNewestSignedOne(t *testing.T) {
	t.Parallel()
	n, reader, keys := relays(t, 3, 2, simnet.NostrRelay{Page: 2}, simnet.NostrRelay{Page: 500, Auth: true}, simnet.NostrRelay{Page: 500})
	n.WriteAs(0, []int{1}, 100, 3, nil, "old")
	newest := n.WriteAs(0, []int{0}, 200, 3, nil, "new")
	n.WriteAs(0, []int{1}, 150, 3, nil, "between")
	n.Put(0, n.Forge(0, 300, 3, nil, "forged"))
	n.WriteAs(0, []int{0}, 300, 1, nil, "another kind")
	a, b := n.WriteAs(1, []int{0}, 100, 3, nil, "a"), n.WriteAs(1, []int{1}, 100, 3, nil, "b")
	lowest := a.ID
	if b.ID < a.ID {
		lowest = b.ID
	}
	strangers := n.WriteAs(2, []int{2}, 100, 3, nil, "at a further relay")
	found, unread, err := reader.Latest(t.Context(), []string{n.URLs()[2]}, []int{3}, keys)
	require.NoError(t, err)
	require.Empty(t, unread)
	require.ElementsMatch(t, []string{newest.ID, lowest, strangers.ID}, ids(found))

	port, err := loopback.Reserve("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, port.Release()) })
	gone := "ws://" + port.Address()
	found, unread, err = reader.Latest(t.Context(), []string{gone}, []int{3}, keys)
	require.NoError(t, err)
	require.Len(t, unread, 1)
	require.ElementsMatch(t, []string{newest.ID, lowest}, ids(found))

	away := nostr.NewReader(nostr.ReaderConfig{Relays: []string{gone}})
	_, _, err = away.Latest(t.Context(), nil, []int{3}, keys)
	require.ErrorContains(t, err, "connect to "+gone)
	before := len(n.Requests(0))
	found, _, err = reader.Latest(t.Context(), nil, []int{3}, nil)
	require.NoError(t, err)
	require.Empty(t, found)
	require.Len(t, n.Requests(0), before, "a request without authors asks for everyone: none must be sent")
}

// TestAuthorRelaysAreGuarded shows that a relay named by an author is not contacted in a
// private network.
func TestAuthorRelaysAreGuarded(t *testing.T) {
	t.Parallel()
	n, _, keys := relays(t, 1, 1, simnet.NostrRelay{Page: 500}, simnet.NostrRelay{Page: 500})
	n.WriteAs(0, nil, 100, 3, nil, "")
	guarded := &http.Client{Transport: guard.Config{}.Transport(http.DefaultTransport.(*http.Transport))}
	reader := nostr.NewReader(nostr.ReaderConfig{Relays: n.URLs()[:1], AuthorRelays: guarded})
	found, unread, err := reader.Latest(t.Context(), n.URLs()[1:], []int{3}, keys)
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Len(t, unread, 1)
	require.ErrorIs(t, unread[0], guard.ErrPrivate)
	require.Empty(t, n.Requests(1))
}

// TestRelaysRedirectNowhere shows that neither the stream of a configured relay nor the reader
// follows a relay's redirect.
func TestRelaysRedirectNowhere(t *testing.T) {
	t.Parallel()
	var hidden, asked atomic.Int64
	private := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { hidden.Add(1) }))
	t.Cleanup(private.Close)
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.Redirect(w, r, private.URL+"/admin", http.StatusFound)
	}))
	t.Cleanup(relay.Close)
	url := "ws" + strings.TrimPrefix(relay.URL, "http")
	_, _, err := nostr.NewReader(nostr.ReaderConfig{Relays: []string{url}}).Latest(t.Context(), nil, []int{3}, [][32]byte{{1}})
	require.ErrorContains(t, err, "302")
	loopback := guard.Config{Loopback: true}.Transport(http.DefaultTransport.(*http.Transport))
	strangers := nostr.NewReader(nostr.ReaderConfig{AuthorRelays: &http.Client{Transport: loopback}})
	err = strangers.Stored(t.Context(), url, func([]*protocol.Event) error { return nil },
		nostr.Query{Kinds: []int{3}, Authors: [][32]byte{{1}}, Most: 1})
	require.ErrorContains(t, err, "302")

	source, err := nostr.New(nostr.Config{
		Kinds: stored(), Verifier: nostr.NewVerifier(nostr.VerifierConfig{}),
		Config: socket.Config{Endpoints: []string{url}, MinWait: time.Millisecond, MaxWait: time.Millisecond},
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	before := asked.Load()
	go func() {
		// ends with the cancelled context
		source.Connect(ctx, func(string) consumer.Cursor { return consumer.Cursor{} }, func(consumer.Attempt) {})
		close(ended)
	}()
	eventually.True(t, func() bool { return asked.Load() > before+4 }, time.Millisecond)
	cancel()
	<-ended
	require.Zero(t, hidden.Load())
}

// TestOneMessageHidesNoOther shows that a message that is too long, or invalid JSON, affects only
// its author: the other messages are read.
func TestOneMessageHidesNoOther(t *testing.T) {
	t.Parallel()
	good := signed(t, 1000, 1, "good")
	url := scriptedRelay(t, func(s *scripted) {
		for kind, sub := s.hear(); kind == "REQ" || kind == "CLOSE"; kind, sub = s.hear() {
			if kind == "REQ" {
				s.say(`["EVENT",%q,{"content":"%s"}]`, sub, strings.Repeat("x", 1<<20))
				s.say(`["EVENT", %q, {"content":"\\ud800"}]`, sub)
				s.say(`["EVENT",%q,%s]`, sub, good.AppendJSON(nil))
				s.say(`["EOSE",%q]`, sub)
			}
		}
	})
	var got []string
	err := nostr.NewReader(nostr.ReaderConfig{Relays: []string{url}}).Stored(t.Context(), url, func(page []*protocol.Event) error {
		got = append(got, ids(page)...)
		return nil
	}, nostr.Query{Kinds: []int{1}, Authors: [][32]byte{good.PubKey}, Most: 100})
	require.NoError(t, err)
	require.Subset(t, got, ids([]*protocol.Event{good}))
}

// TestLongEventsHideNoOthers shows that a page ends early if its events use too much memory, and
// that the next page continues from there.
func TestLongEventsHideNoOthers(t *testing.T) {
	t.Parallel()
	n, reader, keys := relays(t, 2, 1, simnet.NostrRelay{Page: 250})
	now := time.Now().Unix()
	text := strings.Repeat("x", 900_000)
	for i := range int64(30) {
		n.WriteAs(0, nil, now-i, 1, nil, text)
		n.WriteAs(1, nil, now-100-i, 1, nil, "short")
	}
	found, longest := map[[32]byte]bool{}, 0
	err := reader.Stored(t.Context(), n.URLs()[0], func(page []*protocol.Event) error {
		size := 0
		for _, e := range page {
			found[e.ID] = true
			size += len(e.Content)
		}
		longest = max(longest, size)
		return nil
	}, nostr.Query{Kinds: []int{1}, Authors: keys, Most: 1000})
	require.NoError(t, err)
	require.Len(t, found, 60)
	require.Less(t, longest, 17<<20+len(text))
}

// TestStoredIsReadToItsEnd reads all stored events in requests within the relay's limits. It
// returns only events of the requested authors and within the requested time.
func TestStoredIsReadToItsEnd(t *testing.T) {
	t.Parallel()
	n, reader, keys := relays(t, 40, 1, simnet.NostrRelay{Page: 7, Message: 2048})
	want := map[string]bool{}
	for i := range 100 {
		e := n.WriteAs(i%40, nil, int64(1000+i/10), 1, nil, strconv.Itoa(i))
		if i%40 > 0 && e.CreatedAt >= 1002 {
			want[e.ID] = true
		}
	}
	got := map[string]bool{}
	each := func(page []*protocol.Event) error {
		for _, id := range ids(page) {
			got[id] = true
		}
		return nil
	}
	q := nostr.Query{Kinds: []int{1}, Authors: keys[1:], Since: time.Unix(1002, 0), Most: 1000}
	require.NoError(t, reader.Stored(t.Context(), n.URLs()[0], each, q))
	require.Equal(t, want, got)
	for _, r := range n.Requests(0) {
		require.NotEmpty(t, r.Authors)
		require.LessOrEqual(t, r.Bytes, 2048)
	}
	q.Most = 20
	require.ErrorIs(t, reader.Stored(t.Context(), n.URLs()[0], each, q), nostr.ErrIncomplete)
}

// TestIncompleteQueryDoesNotEndTheOthers shows that more articles of one second than fit in a page
// do not hide the notes.
func TestIncompleteQueryDoesNotEndTheOthers(t *testing.T) {
	t.Parallel()
	n, reader, keys := relays(t, 1, 1, simnet.NostrRelay{Page: 5})
	for i := range 20 {
		n.WriteAs(0, nil, 1000, 30023, [][]string{{"d", strconv.Itoa(i)}}, "")
		n.WriteAs(0, nil, int64(2000+i), 1, nil, "")
	}
	notes := map[string]bool{}
	err := reader.Stored(t.Context(), n.URLs()[0], func(page []*protocol.Event) error {
		for i, id := range ids(page) {
			if page[i].Kind == 1 {
				notes[id] = true
			}
		}
		return nil
	}, nostr.Query{Kinds: []int{30023}, Authors: keys, Most: 1000}, nostr.Query{Kinds: []int{1}, Authors: keys, Most: 1000})
	require.ErrorIs(t, err, nostr.ErrIncomplete)
	require.Len(t, notes, 20)
}

// TestDemandsToVanishElsewhereAreNotRead shows that a request to vanish from another relay is not
// returned.
func TestDemandsToVanishElsewhereAreNotRead(t *testing.T) {
	t.Parallel()
	n, reader, keys := relays(t, 1, 1, simnet.NostrRelay{Page: 5})
	want := map[string]bool{}
	for i, relay := range []string{"wss://other.example", n.URLs()[0] + "/", "ALL_RELAYS", ""} {
		e := n.WriteAs(0, nil, int64(1000+i), protocol.KindVanish, [][]string{{"relay", relay}}, "")
		if i == 1 || i == 2 {
			want[e.ID] = true
		}
	}
	got := map[string]bool{}
	require.NoError(t, reader.Stored(t.Context(), n.URLs()[0], func(page []*protocol.Event) error {
		for _, id := range ids(page) {
			got[id] = true
		}
		return nil
	}, nostr.Query{Kinds: []int{protocol.KindVanish}, Authors: keys, Most: 100}))
	require.Equal(t, want, got)
}

// TestAuthorsAreDividedByTheRelaysLimits shows that a relay with a low limit on message length is
// asked for all authors, in several subscriptions.
func TestAuthorsAreDividedByTheRelaysLimits(t *testing.T) {
	t.Parallel()
	n := newNetwork(t, simnet.NostrConfig{Seed: 9, Authors: 40, Relays: []simnet.NostrRelay{{Page: 100, Message: 2048}}})
	source, err := nostr.New(nostr.Config{Kinds: stored(), Verifier: n.verify, Config: socket.Config{Endpoints: n.URLs()}})
	require.NoError(t, err)
	filter := consumer.Filter{Accounts: []string{"did:plc:ewvi7nxzyoun6zhxrhs64oiz"}}
	for i := range 40 {
		filter.Accounts = append(filter.Accounts, "did:nostr:"+n.Key(i))
	}
	require.NoError(t, source.SetFilter(t.Context(), filter))
	conn, err := source.Connect(t.Context(), func(string) consumer.Cursor { return consumer.Cursor{} }, nil)
	require.NoError(t, err)
	defer conn.Close()
	asked := map[string]bool{}
	eventually.True(t, func() bool {
		for _, r := range n.Requests(0) {
			require.LessOrEqual(t, r.Bytes, 2048)
			require.NotEmpty(t, r.Authors)
			for _, author := range r.Authors {
				asked[author] = true
			}
		}
		return len(asked) == 40
	}, 10*time.Millisecond, "not everyone is asked for")
}
