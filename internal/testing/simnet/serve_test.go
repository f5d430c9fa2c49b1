package simnet_test

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/jetstream/dictionary"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func TestFramesAreTheLogOfTheGeneration(t *testing.T) {
	t.Parallel()
	for _, g := range []simnet.Generation{simnet.V1, simnet.V2} {
		n := network(t, simnet.Config{Seed: 4, History: 500, Generation: g})
		c := dial(t, n, "cursor", "0")
		for _, line := range lines(t, n, g) {
			require.Equal(t, string(line), string(c.frame()))
		}
	}
}

func (c *client) decodes(dict []byte) *client {
	c.t.Helper()
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderDicts(dict), zstd.WithDecoderConcurrency(1))
	require.NoError(c.t, err)
	c.t.Cleanup(decoder.Close)
	c.zstd = decoder
	return c
}

// requireCompressed requires that the frames of a network are the log, compressed
// with the dictionary.
func requireCompressed(t *testing.T, n *simnet.Net, dict []byte) {
	t.Helper()
	inspected, err := zstd.InspectDictionary(dict)
	require.NoError(t, err)
	all := lines(t, n, simnet.V2)
	header := http.Header{"Socket-Encoding": {"zstd"}}
	for _, c := range []*client{dial(t, n, "cursor", "0", "compress", "true"), dialWith(t, n, &websocket.DialOptions{HTTPHeader: header},
		"cursor", "0")} {
		c.decodes(dict)
		small, large := 0, 0
		for _, line := range all {
			kind, data, err := c.raw()
			require.NoError(t, err)
			require.Equal(t, websocket.MessageBinary, kind)
			var h zstd.Header
			require.NoError(t, h.Decode(data))
			require.Equal(t, inspected.ID(), h.DictionaryID)
			plain, err := c.zstd.DecodeAll(data, nil)
			require.NoError(t, err)
			require.Equal(t, string(line), string(plain))
			small, large = small+len(data), large+len(plain)
		}
		require.Less(t, small, large*6/10, "frames are compressed: %d of %d bytes", small, large)
	}
}

func TestAnyDictionaryCanBeServed(t *testing.T) {
	t.Parallel()
	other := bytes.Clone(dictionary.V1)
	other[4] ^= 0xff // its ID
	for _, dict := range [][]byte{dictionary.V1, other} {
		requireCompressed(t, network(t, simnet.Config{Seed: 4, Mix: simnet.MixNetwork, History: 1000,
			Serving: simnet.Serving{Dictionary: dict}}), dict)
	}
}

func TestInvalidDictionaryIsRefused(t *testing.T) {
	t.Parallel()
	_, err := simnet.New(simnet.Config{Serving: simnet.Serving{Dictionary: []byte("not a dictionary")}})
	require.ErrorContains(t, err, "dictionary")
}

func TestTwoCompressionsAtOnceAreRefused(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, History: 5})
	status, _ := refusal(t, n, &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover}, "compress", "true")
	require.Equal(t, http.StatusBadRequest, status)
	c := dialWith(t, n, &websocket.DialOptions{CompressionMode: websocket.CompressionContextTakeover}, "cursor", "0")
	require.Len(t, c.seqs(5), 5)
}

func TestPingsArriveAndSilentClientsAreCutOff(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4,
		Serving: simnet.Serving{PingEvery: 5 * time.Millisecond, WriteLimit: patience}})
	pings := make(chan struct{}, 100)
	alive := dialWith(t, n, &websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool {
		select {
		case pings <- struct{}{}:
		default:
		}
		return true
	}})
	events := alive.pump()
	for range 5 {
		<-pings
	}
	impatient := network(t, simnet.Config{Seed: 4,
		Serving: simnet.Serving{PingEvery: 5 * time.Millisecond, WriteLimit: 100 * time.Millisecond}})
	mute := dialWith(t, impatient, &websocket.DialOptions{OnPingReceived: func(context.Context, []byte) bool { return false }})
	frames, err := mute.ending()
	require.Zero(t, frames)
	require.EqualValues(t, -1, websocket.CloseStatus(err), "no close frame: %v", err)
	n.Play(1)
	require.Equal(t, n.Log().Last().Seq, *(<-events).Cursor, "a client that replies must stay connected")
}

// TestReplayBecomesLiveWithoutAGap checks the sequence of numbers: a missing,
// repeated or misplaced event between history and live would break it.
func TestReplayBecomesLiveWithoutAGap(t *testing.T) {
	t.Parallel()
	long(t)
	for round := range 15 {
		n := network(t, simnet.Config{Seed: uint64(round), History: 200})
		const batches, size = 20, 20
		var playing sync.WaitGroup
		playing.Go(func() {
			for range batches {
				n.Play(size)
			}
		})
		var reading sync.WaitGroup
		for i := range 4 {
			pairs := []string{"cursor", "0"}
			if i%2 == 1 {
				pairs = append(pairs, "compress", "true")
			}
			c := dial(t, n, pairs...)
			if i%2 == 1 {
				c.decodes(dictionary.V1)
			}
			reading.Go(func() {
				defer c.conn.CloseNow() // everything was read
				want := n.Log().Entries()[0].Seq
				for range 200 + batches*size {
					e := c.next()
					if *e.Cursor != want {
						t.Errorf("got event %d, expected %d", *e.Cursor, want)
						return
					}
					want++
				}
			})
		}
		playing.Wait()
		reading.Wait()
		dial(t, n).nothingMore(n)
	}
}

func TestStopClosesEveryClient(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, History: 20_000})
	busy := dial(t, n, "cursor", "0")
	busy.next()
	var clients []*client
	for range 20 {
		clients = append(clients, dial(t, n), dial(t, n, "requireHello", "true"))
	}
	ends, cut := make(chan error, len(clients)), make(chan error, 1)
	for _, c := range clients {
		go func() {
			_, err := c.ending()
			ends <- err
		}()
	}
	go func() {
		_, err := busy.ending()
		cut <- err
	}()
	n.Stop()
	for range clients {
		err := <-ends
		require.Equal(t, websocket.StatusGoingAway, websocket.CloseStatus(err), "%v", err)
	}
	require.Error(t, <-cut, "a client that is sent the past may be cut off inside a frame")
	n.Stop() // a second stop does nothing
	require.NoError(t, n.Restart())
	require.Len(t, dial(t, n, "cursor", "0").seqs(10), 10)
	require.Error(t, n.Start("127.0.0.1:0"), "it is already serving")
}

// TestStopEndsWithItsLastClient shows that a stop returns once its last client
// has disconnected. Otherwise it would take minutes here.
func TestStopEndsWithItsLastClient(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Serving: simnet.Serving{CloseLimit: 2 * patience}})
	for range 3 {
		events := dial(t, n).pump()
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			n.Stop()
		}()
		select {
		case <-stopped:
		case <-time.After(patience):
			require.Fail(t, "the server still waits although all clients have disconnected")
		}
		_, open := <-events
		require.False(t, open)
		require.NoError(t, n.Restart())
	}
}

func TestNetworkThatWasNeverStartedCannotRestart(t *testing.T) {
	t.Parallel()
	n, err := simnet.New(simnet.Config{})
	require.NoError(t, err)
	n.Stop()
	require.NoError(t, n.Do(simnet.Cut))
	require.ErrorContains(t, n.Restart(), "never started")
	require.ErrorContains(t, n.Do(simnet.Renumber), "never started")
	require.Zero(t, n.Fired()[simnet.Renumber])
}

// TestSlowClientIsCutOffWithoutACloseFrame has the client write, to detect the
// end without reading.
func TestSlowClientIsCutOffWithoutACloseFrame(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 4, Serving: simnet.Serving{WriteLimit: 100 * time.Millisecond}})
	n.Inject(make([]byte, 40<<20)) // more than the buffers between the two hold
	slow := dial(t, n, "cursor", "0")
	eventually.True(t, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return slow.conn.Write(ctx, websocket.MessageText, []byte(`{}`)) != nil
	}, 10*time.Millisecond)
	_, err := slow.ending()
	require.EqualValues(t, -1, websocket.CloseStatus(err), "%v", err)
}

func TestLiveKeepsItsRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, err := simnet.New(simnet.Config{Seed: 4, Accounts: 50})
		require.NoError(t, err)
		for _, rate := range []float64{0.5, 30, 500} {
			before := len(n.Log().Entries())
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			n.Live(ctx, rate)
			cancel()
			require.InDelta(t, 20*rate, len(n.Log().Entries())-before, 1+rate/50)
		}
		last := n.Log().Last()
		require.WithinDuration(t, time.Now(), time.UnixMicro(last.TimeUS), 100*time.Millisecond)
	})
}
