package jetstream_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/socket"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestManyDIDsAreSentAfterDial checks that few DIDs are sent in the URL.
func TestManyDIDsAreSentAfterDial(t *testing.T) {
	t.Parallel()
	type hello struct {
		query   url.Values
		payload map[string]any
	}
	heard := make(chan hello, 1)
	address := server(t, func(ctx context.Context, ws *websocket.Conn, r *http.Request) {
		h := hello{query: r.URL.Query()}
		if h.query.Get("requireHello") == "true" {
			_, message, err := ws.Read(ctx)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(message, &h.payload))
		}
		heard <- h
		held(ctx, ws)
	})
	for _, many := range []int{1, 100, 101, 10_000} {
		cfg := everyone(address)
		cfg.Filter = consumer.Filter{Collections: []string{"app.bsky.feed.post"}, Accounts: dids(many)}
		connect(t, client(t, cfg), oldest)
		h := <-heard
		require.Equal(t, "0", h.query.Get("cursor"))
		if many <= 100 {
			require.Len(t, h.query["wantedDids"], many)
			require.Equal(t, []string{"app.bsky.feed.post"}, h.query["wantedCollections"])
			require.Empty(t, h.query.Get("requireHello"))
			continue
		}
		require.Empty(t, h.query["wantedDids"])
		require.Equal(t, "options_update", h.payload["type"])
		payload := h.payload["payload"].(map[string]any) // the test fails otherwise
		require.Len(t, payload["wantedDids"], many)
		require.Equal(t, []any{"app.bsky.feed.post"}, payload["wantedCollections"])
	}
	_, err := jetstream.New(jetstream.Config{
		Config: socket.Config{Endpoints: []string{address}}, Filter: consumer.Filter{Accounts: dids(10_001)},
	})
	require.ErrorContains(t, err, "10000 DIDs at most, not 10001")
}

// TestEmptyFilterIsNotEveryone covers the empty filter, because a server treats
// an empty list as the whole network.
func TestEmptyFilterIsNotEveryone(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{History: 100})
	entries := n.Log().Entries()
	other := slices.IndexFunc(entries, func(e *simnet.Entry) bool { return e.DID != entries[0].DID })
	someone := entries[other].DID // not whose event everyone would get first
	cfg := everyone(n.URL())
	cfg.Filter, cfg.RenewEvery = consumer.Filter{Accounts: []string{someone}}, time.Nanosecond
	c := client(t, cfg)
	conn := connect(t, c, oldest)
	require.Equal(t, someone, events(t, conn, 1)[0].Author)

	// The last account is unfollowed: later events are not wanted.
	require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{}))
	nobodyDID := connect(t, c, oldest)
	arrived := make(chan consumer.Event, 1)
	go func() {
		f, err := nobodyDID.Next(t.Context())
		if err == nil {
			ev, _ := decoded(nobodyDID, f) // an event with an error is none of those awaited
			arrived <- ev
		}
	}()
	n.Play(500)
	require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: []string{someone}}))
	eventually.True(t, func() bool {
		n.Play(20)
		select {
		case ev := <-arrived:
			require.Equal(t, someone, ev.Author, "an unwanted event was received")
			return true
		default:
			return false
		}
	}, time.Millisecond)
}

// TestFilterChangesWithoutANewDial follows one account, then another.
func TestFilterChangesWithoutANewDial(t *testing.T) {
	t.Parallel()
	dials := atomic.Int64{}
	updates := make(chan []byte, 1)
	address := server(t, func(ctx context.Context, ws *websocket.Conn, _ *http.Request) {
		dials.Add(1)
		for {
			_, message, err := ws.Read(ctx)
			if err != nil {
				return
			}
			updates <- message
		}
	})
	cfg := everyone(address)
	cfg.Filter = consumer.Filter{Accounts: dids(1)}
	c := client(t, cfg)
	conn := connect(t, c, tip)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Next(t.Context())
		ended <- err
	}()
	before := c.FilterHash()
	require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(2)}))
	require.JSONEq(t, fmt.Sprintf(`{"type":"options_update","payload":{"wantedCollections":[],"wantedDids":[%q,%q],"maxMessageSizeBytes":0}}`,
		dids(2)[0], dids(2)[1]), string(<-updates))
	require.NotEqual(t, before, c.FilterHash())
	require.EqualValues(t, 1, dials.Load())
	require.ErrorContains(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: []string{"nobody"}}), `"nobody" is not a DID`)
	conn.Close() // never fails
	require.Error(t, <-ended)
}

// TestListThatChangesOftenIsSentSeldom changes a list of /subscribe all the time. The first change is a message at once,
// the others wait until the connection ends for them, and the next one has the newest list.
func TestListThatChangesOftenIsSentSeldom(t *testing.T) {
	t.Parallel()
	var updates atomic.Int64
	requested := make(chan int, 10)
	address := server(t, func(ctx context.Context, ws *websocket.Conn, r *http.Request) {
		requested <- len(r.URL.Query()["wantedDids"])
		for {
			if _, _, err := ws.Read(ctx); err != nil {
				return
			}
			updates.Add(1)
		}
	})
	cfg := everyone(address)
	cfg.Filter, cfg.RenewEvery = consumer.Filter{Accounts: dids(1)}, 300*time.Millisecond
	c := client(t, cfg)
	conn := connect(t, c, tip)
	require.Equal(t, 1, <-requested)
	ended := make(chan error, 1)
	go func() {
		_, err := conn.Next(t.Context())
		ended <- err
	}()
	began, newest := time.Now(), 0
	eventually.True(t, func() bool {
		newest = 2 + (newest+1)%90
		require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(newest)}))
		return len(ended) == 1
	}, time.Millisecond)
	require.ErrorContains(t, <-ended, "the filter has changed")
	require.LessOrEqual(t, updates.Load(), 1+int64(time.Since(began)/cfg.RenewEvery))
	require.Positive(t, updates.Load())
	connect(t, c, tip)
	require.Equal(t, newest, <-requested)
}

func dids(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("did:plc:%024d", i)
	}
	return all
}
