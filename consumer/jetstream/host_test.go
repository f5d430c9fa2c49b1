package jetstream_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func quietly(log *lockedBuffer, cfg jetstream.Config) jetstream.Config {
	cfg.Logger = slog.New(slog.NewTextHandler(log, nil))
	return cfg
}

// reads reads the whole history of a network with one connection.
func reads(t *testing.T, c *jetstream.Client, n *simnet.Net) {
	t.Helper()
	conn := connect(t, c, oldest)
	defer conn.Close() // never fails
	for range n.Log().Entries() {
		f, err := conn.Next(t.Context())
		require.NoError(t, err)
		var m consumer.Message
		require.NoError(t, conn.Decode(f, &m))
		for m.TimeUS == 0 && len(m.Malformed) == 0 { // a notice
			f, err = conn.Next(t.Context())
			require.NoError(t, err)
			require.NoError(t, conn.Decode(f, &m))
		}
		require.Empty(t, m.Malformed)
	}
}

// TestSubscribeEventsIsUsedWhereItIs reads a host that gets, loses and gets back the better service.
// What a host does not have is remembered.
func TestSubscribeEventsIsUsedWhereItIs(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{History: 20})
	for _, retry := range []time.Duration{time.Nanosecond, time.Hour} {
		var log lockedBuffer
		cfg := quietly(&log, everyone(n.URL()))
		cfg.RetryEvents = retry
		c := client(t, cfg)
		before := n.Fired()[simnet.Downgrade]
		reads(t, c, n)
		reads(t, c, n)
		asked := n.Fired()[simnet.Downgrade] - before
		require.Equal(t, map[time.Duration]int{time.Nanosecond: 2, time.Hour: 1}[retry], asked)
		require.NoError(t, n.Do(simnet.Upgrade))
		reads(t, c, n)
		require.NoError(t, n.Do(simnet.Downgrade))
		reads(t, c, n)
		require.Equal(t, map[time.Duration]int{time.Nanosecond: 3, time.Hour: 1}[retry], strings.Count(log.String(), "subscribe_used"))
	}
}

// TestEndpointMayNameEitherService reads through both URLs of a server.
func TestEndpointMayNameEitherService(t *testing.T) {
	t.Parallel()
	for _, events := range []bool{true, false} {
		n := network(t, simnet.Config{History: 20, Serving: simnet.Serving{Events: events}})
		for _, endpoint := range []string{n.URL(), n.EventsURL(), "ws://" + n.Address()} {
			reads(t, client(t, everyone(endpoint)), n)
		}
	}
}

// TestBusyServerIsNotAnOlderOne checks that a server that is starting is not asked for the older
// service, whose clamps are silent.
func TestBusyServerIsNotAnOlderOne(t *testing.T) {
	t.Parallel()
	for _, status := range []int{500, 502, 503, 429, 408} {
		var older atomic.Int64
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/subscribe" {
				older.Add(1)
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(s.Close)
		ctx, cancel := context.WithCancel(t.Context())
		_, err := client(t, everyone("ws"+strings.TrimPrefix(s.URL, "http"))).Connect(ctx, tip, func(a consumer.Attempt) {
			require.ErrorContains(t, a.Err, fmt.Sprint(status))
			cancel()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.Zero(t, older.Load())
	}
}

// TestLongListIsSentToTheOlderService limits the URL, as proxies do. The list is sent after the
// dial, until it is short again. What was too long is remembered.
func TestLongListIsSentToTheOlderService(t *testing.T) {
	t.Parallel()
	for _, status := range []int{413, 414, 431, 400} {
		n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}})
		n.LimitURL(8<<10, status)
		var log lockedBuffer
		cfg := quietly(&log, everyone(n.URL()))
		cfg.Filter = consumer.Filter{Accounts: dids(1000)}
		c := client(t, cfg)
		for range 2 {
			connect(t, c, tip).Close() // never fails
			require.Equal(t, 1, n.Fired()[simnet.LongURL], "it is asked once")
		}
		eventually.True(t, func() bool { return slices.Equal([]int{1000, 1000}, n.FilterSizes()) }, time.Millisecond)
		require.Equal(t, 1, strings.Count(log.String(), "subscribe_used"))
		require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(100)}))
		connect(t, c, tip).Close() // never fails
		require.Equal(t, []int{1000, 1000, 100}, n.FilterSizes())
		require.Equal(t, 1, strings.Count(log.String(), "subscribe_used"), "a short list fits")
	}
	n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}})
	cfg := everyone(n.URL())
	cfg.Filter = consumer.Filter{Accounts: dids(10_000)}
	connect(t, client(t, cfg), oldest)
	const tooMany = "with the cursor, a URL has too many parameters"
	eventually.True(t, func() bool { return slices.Equal([]int{10_000}, n.FilterSizes()) }, time.Millisecond, tooMany)
	cfg.Filter.Accounts = dids(9_000)
	connect(t, client(t, cfg), oldest)
	require.Equal(t, []int{10_000, 9_000}, n.FilterSizes())
}

// TestLongListWithoutTheOlderServiceIsTheWholeNetwork checks that the position gets another filter
// with it, because its next connection must not expect an anchor of these accounts.
func TestLongListWithoutTheOlderServiceIsTheWholeNetwork(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 10})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/subscribe":
			http.NotFound(w, r)
		case len(r.RequestURI) > 8<<10:
			w.WriteHeader(http.StatusRequestURITooLong)
		default:
			http.Redirect(w, r, "http://"+n.Address()+r.RequestURI, http.StatusTemporaryRedirect)
		}
	}))
	t.Cleanup(s.Close)
	cfg := everyone("ws" + strings.TrimPrefix(s.URL, "http"))
	cfg.HTTPClient = http.DefaultClient // which follows the redirect
	cfg.Filter = consumer.Filter{Accounts: dids(1000)}
	c := client(t, cfg)
	narrow := c.FilterHash()
	_, err := c.Connect(t.Context(), oldest, nil)
	require.ErrorIs(t, err, consumer.ErrCursorRefused, "the consumer plans the resume again")
	require.ErrorContains(t, err, "the whole network is requested")
	whole := c.FilterHash()
	require.NotEqual(t, narrow, whole)
	reads(t, c, n)
	require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(950)}))
	require.Equal(t, whole, c.FilterHash())
	require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(800)}))
	require.NotEqual(t, whole, c.FilterHash(), "a tenth below, the list is tried again")
}

// TestChangedFilterEndsTheConnection changes the filter of a service that cannot change it. The
// first change has an effect at once, later ones no more often than RenewEvery.
func TestChangedFilterEndsTheConnection(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}})
	cfg := everyone(n.URL())
	cfg.Filter, cfg.RenewEvery = consumer.Filter{Accounts: dids(1)}, time.Hour
	c := client(t, cfg)
	ends := func(conn consumer.Conn) <-chan error {
		ended := make(chan error, 1)
		go func() {
			_, err := conn.Next(t.Context())
			ended <- err
		}()
		return ended
	}
	first := ends(connect(t, c, tip))
	require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(2)}))
	require.ErrorContains(t, <-first, "the filter has changed")
	second := ends(connect(t, c, tip))
	for size := range 5 {
		require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(3 + size)}))
	}
	require.Equal(t, []int{1, 2}, n.FilterSizes())
	require.NoError(t, n.Do(simnet.Cut))
	require.NotContains(t, (<-second).Error(), "the filter has changed", "it is not due")
	connect(t, c, tip)
	require.Equal(t, []int{1, 2, 7}, n.FilterSizes())

	cfg.RenewEvery = time.Nanosecond
	c = client(t, cfg)
	for size := range 3 {
		next := ends(connect(t, c, tip))
		require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(2 + size)}))
		require.ErrorContains(t, <-next, "the filter has changed")
	}
}

// requested is a transport that counts the bytes of the requested paths.
type requested struct{ bytes atomic.Int64 }

func (c *requested) RoundTrip(r *http.Request) (*http.Response, error) {
	c.bytes.Add(int64(len(r.URL.RequestURI())))
	return http.DefaultTransport.RoundTrip(r)
}

// TestListThatChangesAllTheTimeCostsWhatIsEstimated changes a list whenever it can be changed. The
// URLs of the connections that follow are 42 bytes of every 112 that jetstream-wires.md estimates
// for 60 kB a second. Where the list is too long for a URL, the lists are as few, and are messages.
func TestListThatChangesAllTheTimeCostsWhatIsEstimated(t *testing.T) {
	t.Parallel()
	const accounts, changes = 600, 3
	n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}})
	var sent requested
	cfg := everyone(n.URL())
	cfg.HTTPClient, cfg.Filter = &http.Client{Transport: &sent}, consumer.Filter{Accounts: dids(accounts)}
	c := client(t, cfg)
	var began time.Time
	for i := range changes + 1 {
		conn := connect(t, c, tip)
		if i == 0 { // the first change has its effect at once, and the time until the second begins
			began = time.Now()
			sent.bytes.Store(0)
		}
		for more := range 10 {
			require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(accounts + i + more)}))
		}
		_, err := conn.Next(t.Context())
		require.ErrorContains(t, err, "the filter has changed")
		conn.Close() // never fails
	}
	perSecond := float64(sent.bytes.Load()) / time.Since(began).Seconds()
	require.Less(t, perSecond, 60_000*42/112.0)
	require.Greater(t, sent.bytes.Load(), int64(changes*accounts*40), "the list is in the URL")

	n.LimitURL(8<<10, http.StatusRequestURITooLong)
	before := len(n.FilterSizes())
	conn := connect(t, c, tip)
	sent.bytes.Store(0)
	for i := range 100 {
		require.NoError(t, c.SetFilter(t.Context(), consumer.Filter{Accounts: dids(accounts + 100 + i)}))
	}
	_, err := conn.Next(t.Context())
	require.ErrorContains(t, err, "the filter has changed")
	require.Less(t, len(n.FilterSizes()), before+20, "not every list is sent")
	connect(t, c, tip)
	eventually.True(t, func() bool { sizes := n.FilterSizes(); return sizes[len(sizes)-1] == accounts+199 }, time.Millisecond)
	require.Less(t, sent.bytes.Load(), int64(accounts), "the list is in no URL")
}

// TestDictionaryIsTheServers reads compressed frames with the dictionary of the server, which
// replaces it; a server whose dictionary cannot be used is read uncompressed.
func TestDictionaryIsTheServers(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 50})
	var log lockedBuffer
	cfg := quietly(&log, everyone(n.URL()))
	cfg.Compress = true
	c := client(t, cfg)
	for i := range 3 {
		conn := connect(t, c, oldest)
		f, err := conn.Next(t.Context())
		require.NoError(t, err)
		require.True(t, f.Compressed)
		conn.Close() // never fails
		reads(t, c, n)
		require.Equal(t, i, n.Fired()[simnet.UnknownDictionary], "the dictionary is kept while the server has it")
		require.NoError(t, n.Do(simnet.RotateDictionary))
	}
	require.NotContains(t, log.String(), "plain_frames")

	const magic = "\x37\xA4\x30\xEC"
	for name, document := range map[string]string{"empty": "", "not a dictionary": "<html>not found</html>",
		"cut": magic + "\x01\x00\x00\x00\x00", "long": strings.Repeat(magic, 1<<19)} {
		var opened atomic.Pointer[http.Request]
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "getZstdDictionary") {
				fmt.Fprint(w, document) // the client left
				return
			}
			opened.Store(r)
			ws, err := websocket.Accept(w, r, nil)
			if err == nil {
				held(r.Context(), ws)
			}
		}))
		t.Cleanup(s.Close)
		cfg.Endpoints = []string{"ws" + strings.TrimPrefix(s.URL, "http")}
		connect(t, client(t, cfg), oldest).Close() // never fails
		require.False(t, opened.Load().URL.Query().Has("zstdDictionary"), name)
		require.Equal(t, "1000000000000000", opened.Load().URL.Query().Get("cursor"), "the oldest event has no number of its own")
		require.Equal(t, "xrpc.v1.json", opened.Load().Header.Get("Sec-WebSocket-Protocol"))
	}
	require.Contains(t, log.String(), "plain_frames")
}

// TestCursorsAreNotMovedSilently requests events that the server has no more, or does not have yet.
func TestCursorsAreNotMovedSilently(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Serving: simnet.Serving{Events: true}, History: 50})
	first := n.Log().Entries()[0]
	n.Forget(time.Hour)
	metrics := prometheus.NewRegistry()
	cfg := everyone(n.URL())
	cfg.Registerer = metrics
	c := client(t, cfg)
	at := func(kind consumer.CursorKind, value int64) func(string) consumer.Cursor {
		return func(string) consumer.Cursor { return consumer.Cursor{Kind: kind, Value: value} }
	}
	_, err := c.Connect(t.Context(), at(consumer.CursorSeq, first.Seq), func(consumer.Attempt) { require.Fail(t, "it is no failure") })
	require.ErrorIs(t, err, consumer.ErrCursorRefused)
	require.ErrorContains(t, err, "CursorTooOld")

	ahead := connect(t, c, at(consumer.CursorSeq, n.Log().Last().Seq+5))
	f, err := ahead.Next(t.Context())
	require.NoError(t, err)
	_, err = decoded(ahead, f)
	require.ErrorIs(t, err, consumer.ErrCursorRefused)
	require.ErrorContains(t, err, "FutureCursor")

	clamped := connect(t, c, at(consumer.CursorTime, first.TimeUS))
	f, err = clamped.Next(t.Context())
	require.NoError(t, err)
	_, err = decoded(clamped, f)
	require.NoError(t, err, "the first event shows the gap")
	families, err := metrics.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "weir_jetstream_notices_total" {
			for _, m := range f.GetMetric() {
				counted[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{"CursorTooOld": 1, "FutureCursor": 1, "OutdatedCursor": 1}, counted)
}

// TestServerThatOnlySendsErrorsHasFailed checks that an error is not taken for service, also if it
// is compressed: the next host is tried.
func TestServerThatOnlySendsErrorsHasFailed(t *testing.T) {
	t.Parallel()
	for _, compress := range []bool{false, true} {
		serving := simnet.Serving{Events: true}
		broken, up := network(t, simnet.Config{Serving: serving}), network(t, simnet.Config{Serving: serving, History: 5})
		cfg := everyone(broken.URL(), up.URL())
		cfg.Compress = compress
		c := client(t, cfg)
		conn := connect(t, c, tip)
		require.NoError(t, broken.Do(simnet.FailStream))
		f, err := conn.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, compress, f.Compressed)
		_, err = decoded(conn, f)
		require.ErrorContains(t, err, "InternalError: reconnect")
		_, err = conn.Next(t.Context())
		require.Error(t, err)
		var failed []int
		conn, err = c.Connect(t.Context(), oldest, func(a consumer.Attempt) { failed = append(failed, a.Failed) })
		require.NoError(t, err)
		require.Equal(t, []int{1}, failed)
		require.Equal(t, up.Address(), conn.Host())
		conn.Close() // never fails
	}
}
