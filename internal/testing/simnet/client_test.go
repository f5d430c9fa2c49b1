package simnet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// patience is how long an expected event may take on a busy machine.
const patience = 4 * time.Minute

// event holds the fields of a frame that the tests read.
type event struct {
	DID    string `json:"did"`
	TimeUS int64  `json:"time_us"`
	Cursor *int64 `json:"cursor"`
	Kind   string `json:"kind"`
	Commit *struct {
		Rev        string          `json:"rev"`
		Operation  string          `json:"operation"`
		Collection string          `json:"collection"`
		Rkey       string          `json:"rkey"`
		Record     json.RawMessage `json:"record"`
		CID        string          `json:"cid"`
	} `json:"commit"`
	Identity *struct {
		DID    string `json:"did"`
		Handle string `json:"handle"`
		Seq    int64  `json:"seq"`
		Time   string `json:"time"`
	} `json:"identity"`
	Account *struct {
		Active bool   `json:"active"`
		DID    string `json:"did"`
		Seq    int64  `json:"seq"`
		Time   string `json:"time"`
		Status string `json:"status"`
	} `json:"account"`
}

// long skips a test under -short, like schematest.Long, which needs Postgres.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: skipped by -short")
	}
}

// network creates a network that serves until the test ends.
func network(t testing.TB, cfg simnet.Config) *simnet.Net {
	t.Helper()
	if cfg.Accounts == 0 {
		cfg.Accounts = 200
	}
	n, err := simnet.New(cfg)
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	return n
}

// client is a plain websocket client.
type client struct {
	t    testing.TB
	conn *websocket.Conn
	zstd *zstd.Decoder
}

// query makes a query string from pairs of names and values.
func query(pairs ...string) string {
	q := url.Values{}
	for i := 0; i < len(pairs); i += 2 {
		q.Add(pairs[i], pairs[i+1])
	}
	return "?" + q.Encode()
}

func dial(t testing.TB, n *simnet.Net, pairs ...string) *client {
	t.Helper()
	return dialWith(t, n, nil, pairs...)
}

func dialWith(t testing.TB, n *simnet.Net, options *websocket.DialOptions, pairs ...string) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, n.URL()+query(pairs...), options)
	require.NoError(t, err)
	conn.SetReadLimit(16 << 20)
	t.Cleanup(func() { conn.CloseNow() }) // the connection may be closed
	return &client{t: t, conn: conn}
}

// refusal returns the status and the reason of a refused websocket request.
func refusal(t testing.TB, n *simnet.Net, options *websocket.DialOptions, pairs ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, n.URL()+query(pairs...), options)
	if err == nil {
		conn.CloseNow() // the test is over
		require.Fail(t, "the connection was accepted")
	}
	require.NotNil(t, response, "%v", err)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(body)
}

// raw reads one frame.
func (c *client) raw() (websocket.MessageType, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return c.conn.Read(ctx)
}

// frame reads one frame and decompresses it.
func (c *client) frame() []byte {
	c.t.Helper()
	kind, data, err := c.raw()
	require.NoError(c.t, err)
	if c.zstd == nil {
		require.Equal(c.t, websocket.MessageText, kind)
		return data
	}
	require.Equal(c.t, websocket.MessageBinary, kind)
	data, err = c.zstd.DecodeAll(data, nil)
	require.NoError(c.t, err)
	return data
}

// next reads one event.
func (c *client) next() event {
	c.t.Helper()
	data := c.frame()
	var e event
	require.NoError(c.t, json.Unmarshal(data, &e), "%s", data)
	return e
}

// seqs reads events and returns their sequence numbers.
func (c *client) seqs(count int) []int64 {
	c.t.Helper()
	all := make([]int64, 0, count)
	for range count {
		e := c.next()
		require.NotNil(c.t, e.Cursor)
		all = append(all, *e.Cursor)
	}
	return all
}

// pump reads events in the background until the connection ends.
func (c *client) pump() <-chan event {
	events := make(chan event, 100)
	go func() {
		defer close(events)
		for {
			_, data, err := c.conn.Read(context.Background())
			if err != nil {
				return
			}
			var e event
			if json.Unmarshal(data, &e) == nil {
				events <- e
			}
		}
	}()
	return events
}

// settle waits until the server has processed the client's message, while pump reads.
func (c *client) settle() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(c.t, c.conn.Ping(ctx))
}

func (c *client) say(message string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(c.t, c.conn.Write(ctx, websocket.MessageText, []byte(message)))
}

// ending reads to the end, and returns the number of frames before it.
func (c *client) ending() (frames int, end error) {
	c.t.Helper()
	for {
		if _, _, err := c.raw(); err != nil {
			require.False(c.t, errors.Is(err, context.DeadlineExceeded), "the connection did not end")
			return frames, err
		}
		frames++
	}
}

// nothingMore stops the network, and requires that no frame was in flight.
func (c *client) nothingMore(n *simnet.Net) {
	c.t.Helper()
	go n.Stop() // waits a second for clients that do not read
	frames, err := c.ending()
	require.Zero(c.t, frames, "unexpected frames were received")
	require.Equal(c.t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
}

// seqsOf returns the sequence numbers of entries.
func seqsOf(entries []*simnet.Entry) []int64 {
	all := make([]int64, len(entries))
	for i, e := range entries {
		all[i] = e.Seq
	}
	return all
}

func digits(n int64) string { return strconv.FormatInt(n, 10) }

// get fetches a page of the network.
func get(t testing.TB, n *simnet.Net, path string) (*http.Response, []byte) {
	t.Helper()
	return request(t, http.MethodGet, "http://"+n.Address()+path)
}

func request(t testing.TB, method, address string) (*http.Response, []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, address, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	defer response.Body.Close() // read to the end
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response, body
}

// lines returns the log as a server of that generation sends it.
func lines(t testing.TB, n *simnet.Net, g simnet.Generation) [][]byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, n.Log().WriteJSONL(&out, g))
	return bytes.Split(bytes.TrimSuffix(out.Bytes(), []byte("\n")), []byte("\n"))
}
