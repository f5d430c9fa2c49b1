package simnet_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// payload holds the fields of a frame of subscribeEvents that the tests read.
type payload struct {
	Type       string `json:"$type"`
	Seq        int64
	DID, Time  string
	Collection string
	Rkey, Rev  string
	Record     json.RawMessage
	Name       string
}

// dialEvents connects to subscribeEvents. It returns the response if that is refused.
func dialEvents(t *testing.T, n *simnet.Net, pairs ...string) (*client, *http.Response) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	options := &websocket.DialOptions{Subprotocols: []string{"xrpc.v1.json"}}
	conn, response, err := websocket.Dial(ctx, n.EventsURL()+query(pairs...), options)
	if err != nil {
		return nil, response
	}
	require.Equal(t, "xrpc.v1.json", conn.Subprotocol())
	conn.SetReadLimit(-1)
	t.Cleanup(func() { conn.CloseNow() }) // the test is over
	return &client{t: t, conn: conn}, response
}

// payload reads a frame of subscribeEvents.
func (c *client) payload() payload {
	c.t.Helper()
	var message struct {
		Type    string `json:"$type"`
		Payload payload
	}
	require.NoError(c.t, json.Unmarshal(c.frame(), &message))
	require.Equal(c.t, "message", message.Type)
	return message.Payload
}

func TestEventsAreTheLog(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, History: 200, Serving: simnet.Serving{Events: true}, Mix: simnet.MixNetwork})
	found, err := n.FindMissed(n.Hub().DID, "found")
	require.NoError(t, err)
	c, _ := dialEvents(t, n, "cursor", digits(n.Log().Entries()[0].Seq))
	sent := 0
	for _, e := range n.Log().Entries() {
		if e.Withheld && !e.Resynced {
			continue
		}
		p := c.payload()
		sent++
		at := time.UnixMicro(e.TimeUS).UTC().Format("2006-01-02T15:04:05.000000Z")
		require.Equal(t, payload{Type: "network.bsky.jetstream.subscribeEvents#" + e.Kind, Seq: e.Seq, DID: e.DID, Time: at,
			Collection: e.Collection, Rkey: e.Rkey, Rev: map[bool]string{true: e.Rev}[e.Kind == "commit"], Record: e.Record}, p)
	}
	require.Equal(t, 200+2, sent)
	require.NotEqual(t, n.Log().Entries()[200].Rev, found.Rev, "it has the revision of the #sync")

	_, err = n.PostNow(n.Hub().DID, "the last")
	require.NoError(t, err)
	older := dial(t, n, "cursor", digits(found.Seq-1))
	require.Equal(t, n.Log().Last().Seq, *older.next().Cursor, "neither the #sync nor the record is sent to clients of /subscribe")
}

func TestEventsAreFilteredByKind(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Serving: simnet.Serving{Events: true}})
	did := n.Hub().DID
	_, err := n.FindMissed(did, "found")
	require.NoError(t, err)
	_, err = n.PostNow(did, "a post")
	require.NoError(t, err)
	first := n.Log().Entries()[0].Seq // of the post that is only found later
	for kind, want := range map[string]int64{"sync": first + 1, "commit": first + 2} {
		c, _ := dialEvents(t, n, "cursor", "1000000000000000", "kinds", kind, "dids", did)
		require.Equal(t, "OutdatedCursor", c.payload().Name)
		require.Equal(t, want, c.payload().Seq, kind)
	}
}

// TestEventsAreRefused covers the errors before the upgrade.
func TestEventsAreRefused(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, History: 50, Serving: simnet.Serving{Events: true}})
	first := n.Forget(time.Hour)
	for _, c := range []struct {
		pairs  []string
		status int
		name   string
	}{
		{[]string{"wantedDids", "did:plc:a"}, 400, "InvalidRequest"},
		{[]string{"requireHello", "true"}, 400, "InvalidRequest"},
		{[]string{"compress", "true"}, 400, "InvalidRequest"},
		{[]string{"kinds", "other"}, 400, "InvalidRequest"},
		{[]string{"kinds", "account", "collections", "app.bsky.feed.post"}, 400, "InvalidRequest"},
		{[]string{"collections", "post"}, 400, "InvalidRequest"},
		{[]string{"dids", "nobody"}, 400, "InvalidRequest"},
		{[]string{"cursor", "-1"}, 400, "InvalidRequest"},
		{[]string{"cursor", "1"}, 400, "CursorTooOld"},
		{[]string{"zstdDictionary", "7"}, 400, "UnknownZstdDictionary"},
	} {
		none, response := dialEvents(t, n, c.pairs...)
		require.Nil(t, none, c.pairs)
		require.Equal(t, c.status, response.StatusCode)
		body, err := io.ReadAll(response.Body)
		require.NoError(t, err)
		require.Contains(t, string(body), `"error":"`+c.name+`"`)
		if c.name == "CursorTooOld" {
			require.Contains(t, string(body), digits(first), "it names the floor")
		}
	}
	n.LimitURL(100, http.StatusRequestURITooLong)
	_, response := dialEvents(t, n, "x", strings.Repeat("x", 100))
	require.Equal(t, http.StatusRequestURITooLong, response.StatusCode)
	n.LimitURL(0, 0)
	require.NoError(t, n.Do(simnet.Downgrade))
	_, response = dialEvents(t, n)
	require.Equal(t, http.StatusNotFound, response.StatusCode)
}

func TestEventsAcceptNoMessage(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Serving: simnet.Serving{Events: true}})
	c, _ := dialEvents(t, n)
	require.NoError(t, c.conn.Write(t.Context(), websocket.MessageText, []byte(`{"type":"options_update","payload":{}}`)))
	_, err := c.ending()
	require.Equal(t, websocket.StatusPolicyViolation, websocket.CloseStatus(err), "%v", err)
}

func TestEventsAreRenumberedAndEndWithErrors(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, History: 10, Serving: simnet.Serving{Events: true}})
	last := n.Log().Last()
	do(t, n, simnet.Renumber)
	c, _ := dialEvents(t, n, "cursor", digits(last.Seq-4))
	require.Equal(t, last.Rkey, c.payload().Rkey)
	ahead, _ := dialEvents(t, n, "cursor", digits(last.Seq))
	require.Equal(t, "FutureCursor", ahead.payload().Name)
	do(t, n, simnet.ConsumerTooSlow)
	require.JSONEq(t, `{"$type":"error","error":"ConsumerTooSlow","message":"reconnect"}`, string(c.frame()))
	for _, one := range []*client{c, ahead} {
		_, err := one.ending()
		require.Error(t, err)
	}
	require.Equal(t, 2, n.Fired()[simnet.ConsumerTooSlow])
	again, _ := dialEvents(t, n, "cursor", digits(last.Seq-4))
	require.Equal(t, last.Rkey, again.payload().Rkey, "the error is not replayed")
}
