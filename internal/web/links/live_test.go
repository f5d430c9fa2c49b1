package links

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/webtest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// rankedTown is a ranking in memory for tests with synthetic time: links by id, and how long it
// takes to rank them. While streams are open, mu guards what changes.
type rankedTown struct {
	mu    sync.Mutex
	took  time.Duration
	busy  time.Duration
	ranks map[int]int // number of computations by limit
	links []ranking.TrendingLink
	step  func(*rankedTown)
	err   error
}

func newTown(links int) *rankedTown {
	t := &rankedTown{ranks: map[int]int{}}
	for i := range links {
		t.links = append(t.links,
			ranking.TrendingLink{LinkCard: ranking.LinkCard{ID: int64(i + 1),
				URL: fmt.Sprintf("https://news.example/2026/05/04/a-story-with-a-long-address-%d", i), Site: "news.example",
				Title:       strings.Repeat("Words of a title ", 4),
				Description: strings.Repeat("A description of the story ", 6)}, Sharers: 100 - i, LastShared: time.Now(),
				SharedBy: []string{"alice.example", "bob.example", "carol.example"},
				Faces:    []ranking.Face{{DID: "did:plc:z72i7hdynmk6r22z27h6tvur"}, {DID: "did:plc:z72i7hdynmk6r22z27h6tvus"}}})
	}
	return t
}

func (t *rankedTown) rank(ctx context.Context, q ranking.Query) (ranking.Page, error) {
	time.Sleep(t.took)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy += t.took
	if q.Bare {
		t.ranks[q.Limit]++
		if t.step != nil {
			t.step(t)
		}
	}
	return ranking.Page{At: time.Now(), Links: append([]ranking.TrendingLink{}, t.links...)}, t.err
}

// spent returns how long the computations took together, and how many there were by limit.
func (t *rankedTown) spent() (time.Duration, map[int]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.busy, maps.Clone(t.ranks)
}

// liveServer serves streams of a town until the test ends, or stop is called.
func liveServer(t *testing.T, town *rankedTown) (_ *Server, stop func()) {
	t.Helper()
	stopping := make(chan struct{})
	stop = sync.OnceFunc(func() { close(stopping) })
	t.Cleanup(stop)
	s, _ := newServer(t, web.Config{DB: webtest.Hung{}, Now: time.Now, Stopping: stopping, Logger: slog.New(slog.DiscardHandler)})
	s.live.rank, s.live.streams = town.rank, nil
	return s, stop
}

func limited(n int) View { return View{Query: ranking.Query{Window: time.Hour, Limit: n}} }

// TestLiveViewsUseAQuarterOfACore shows that all live views together are computed for a quarter of
// the time, in turn, and that each event has the duration of its view's computation.
func TestLiveViewsUseAQuarterOfACore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const views, minutes = 40, 5
		town := newTown(3)
		town.took = 50 * time.Millisecond
		town.step = func(t *rankedTown) { t.links[0].Sharers++ }
		s, _ := liveServer(t, town)
		l := s.live
		var readers []*liveReader
		began := time.Now()
		for i := range views {
			r, err := l.subscribe(limited(i + 1))
			require.NoError(t, err)
			readers = append(readers, r)
		}
		var every float64
		for time.Since(began) < minutes*time.Minute {
			time.Sleep(time.Second)
			for _, r := range readers {
				for range len(r.events) {
					_, data, _ := strings.Cut(string(<-r.events), "data: ")
					var e liveChange
					require.NoError(t, json.Unmarshal([]byte(data), &e))
					every = e.Every
				}
			}
		}
		busy, ranks := town.spent()
		require.LessOrEqual(t, busy, minutes*time.Minute/4+town.took)
		require.Greater(t, busy, minutes*time.Minute/5, "the views must use the time that they may use")
		for i := range views {
			require.InDelta(t, minutes*60/8, ranks[i+1], 1, "view %d must have its turns", i)
		}
		require.InDelta(t, views*4*town.took.Seconds(), every, 0.2)
		for _, r := range readers {
			l.unsubscribe(r)
		}
		require.Empty(t, l.views)
		require.Zero(t, l.open)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.False(t, l.running, "nobody reads")
	})
}

func TestReadersOfAViewShareItsComputations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(3)
		s, _ := liveServer(t, town)
		l := s.live
		for range maxStreams {
			_, err := l.subscribe(limited(7))
			require.NoError(t, err)
		}
		_, err := l.subscribe(limited(7))
		require.ErrorIs(t, err, errTooManyStreams)
		time.Sleep(time.Minute + time.Second)
		_, ranks := town.spent()
		require.Equal(t, map[int]int{7: 31}, ranks, "expected one computation every two seconds")
		for _, r := range collect(l) {
			require.Contains(t, string(<-r.events), "event: snapshot\n")
			l.unsubscribe(r)
		}
	})
}

func collect(l *liveViews) (all []*liveReader) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range l.views {
		for r := range v.readers {
			all = append(all, r)
		}
	}
	return all
}

// TestSlowReaderIsDropped shows that a reader that does not read is dropped, and that at most a few
// events are buffered for it.
func TestSlowReaderIsDropped(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(3)
		town.step = func(t *rankedTown) { t.links[0].Sharers++ }
		s, _ := liveServer(t, town)
		l := s.live
		slow, err := l.subscribe(limited(1))
		require.NoError(t, err)
		quick, err := l.subscribe(limited(1))
		require.NoError(t, err)
		for range 3 * maxUnread {
			_, open := <-quick.events
			require.True(t, open)
		}
		n := 0
		for range slow.events { // until the stream is closed
			n++
		}
		require.Equal(t, maxUnread, n)
		l.unsubscribe(slow)
		l.unsubscribe(quick)
	})
}

// TestFailedLiveViewGoesOn shows that a view whose ranking fails keeps its readers and its state,
// and that one whose watch was removed ends.
func TestFailedLiveViewGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(3)
		s, _ := liveServer(t, town)
		l := s.live
		r, err := l.subscribe(limited(1))
		require.NoError(t, err)
		<-r.events
		town.mu.Lock()
		town.err = context.DeadlineExceeded
		town.mu.Unlock()
		time.Sleep(time.Minute)
		require.Empty(t, r.events)
		town.mu.Lock()
		town.err, town.links = nil, town.links[1:]
		town.mu.Unlock()
		require.Contains(t, string(<-r.events), `"left":[1]`)
		town.mu.Lock()
		town.err = ranking.ErrWatch
		town.mu.Unlock()
		_, open := <-r.events
		require.False(t, open)
		l.unsubscribe(r)
	})
}

// requestStream opens a stream on a connection in memory. It returns a reader of the data after the
// header, and a count of all bytes read.
func requestStream(t *testing.T, c net.Conn) (*bufio.Reader, *atomic.Int64) {
	t.Helper()
	n := new(atomic.Int64)
	_, err := fmt.Fprint(c, "GET /api/v1/trending/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	read := bufio.NewReader(counting{c, n})
	for line := " "; strings.TrimSpace(line) != ""; {
		line, err = read.ReadString('\n')
		require.NoError(t, err)
	}
	return read, n
}

type counting struct {
	net.Conn
	n *atomic.Int64
}

func (c counting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.n.Add(int64(n))
	return n, err
}

// TestOpenStreamIsCheap shows that an open stream with few changes costs less than 10 kB per
// minute, also while the state of the streams changes with every computation. It outlasts the
// server's limits for requests.
func TestOpenStreamIsCheap(t *testing.T) {
	t.Parallel()
	shares := func(town *rankedTown) {
		n := town.ranks[DefaultLimit]
		at := n * 7 % len(town.links)
		town.links[at].Sharers++
		town.links[at].LastShared = time.Now()
		if n%10 == 0 {
			last := &town.links[len(town.links)-1]
			last.ID += 1000
			last.Sharers = 1
		}
	}
	for name, c := range map[string]struct {
		step  func(*rankedTown)
		state string
		most  int64
	}{
		"nothing changes": {nil, schema.StateLive, 1000},
		"nothing changes, and the consumer catches up":                        {nil, schema.StateCatchingUp, 4000},
		"thirty shares and three new links a minute":                          {shares, schema.StateLive, 10_000},
		"thirty shares and three new links a minute, while it is catching up": {shares, schema.StateCatchingUp, 10_000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				town := newTown(DefaultLimit)
				town.step = c.step
				s, stop := liveServer(t, town)
				var states atomic.Int64
				made := time.Now()
				s.live.streams = func(context.Context, time.Duration) (streamState, error) {
					now := time.Now()
					behind := now.Add(-time.Duration(20+states.Add(1)%7) * time.Second) // the page displays seconds
					status := schema.StreamStatus{
						Name: "jetstream", Host: "jetstream.example", State: c.state, Leased: true, StateSince: made, LastEvent: &behind,
					}
					return newState(coverage{[]schema.StreamStatus{status}, make([]schema.Gap, 2), &made}, now), nil
				}
				l := webtest.StartInMemory(t, web.NewServer(web.ServerConfig{
					Handler: http.HandlerFunc(s.serveStream), Connections: 100, Within: 20 * time.Second,
					Logger: slog.New(slog.DiscardHandler),
				}))
				conn := l.Dial()
				read, n := requestStream(t, conn)
				var all sync.WaitGroup
				all.Go(func() {
					for {
						if _, err := read.ReadByte(); err != nil {
							return
						}
					}
				})
				time.Sleep(time.Second)
				synctest.Wait()
				snapshot := n.Load()
				const minutes = 10
				time.Sleep(minutes * time.Minute)
				synctest.Wait()
				_, ranks := town.spent()
				require.Greater(t, ranks[DefaultLimit], minutes*29, "the stream is still open")
				each := (n.Load() - snapshot) / minutes
				t.Logf("a snapshot of %d bytes, then %d a minute", snapshot, each)
				require.Less(t, snapshot, int64(6000))
				require.Greater(t, states.Load(), int64(minutes*29))
				require.Less(t, each, c.most)
				stop()
				synctest.Wait()
				conn.Close() // the test is over
				all.Wait()
			})
		})
	}
}

// TestStoppingProcessEndsItsStreams shows that a process that stops ends its streams completely, so
// that clients reconnect at once.
func TestStoppingProcessEndsItsStreams(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(3)
		s, stop := liveServer(t, town)
		l := webtest.StartInMemory(t, web.NewServer(web.ServerConfig{
			Handler: http.HandlerFunc(s.serveStream), Connections: 100, Within: 20 * time.Second,
			Logger: slog.New(slog.DiscardHandler),
		}))
		c := l.Dial()
		read, _ := requestStream(t, c)
		began := time.Now()
		var whole strings.Builder
		var all sync.WaitGroup
		all.Go(func() {
			for {
				line, err := read.ReadString('\n')
				if whole.WriteString(line); err != nil || line == "0\r\n" { // the last chunk
					return
				}
			}
		})
		time.Sleep(time.Second)
		town.mu.Lock()
		town.err = context.DeadlineExceeded // no events from here on
		town.mu.Unlock()
		time.Sleep(71 * time.Second)
		stop()
		all.Wait()
		require.Equal(t, 72*time.Second, time.Since(began))
		require.True(t, strings.HasSuffix(whole.String(), "0\r\n"))
		require.Contains(t, whole.String(), "retry: 3000\n")
		require.Equal(t, 1, strings.Count(whole.String(), "event: snapshot\n"))
		c.Close() // the test is over
	})
}

// TestSilentStreamSendsComments shows that comments keep the connection open while no ranking can
// be computed.
func TestSilentStreamSendsComments(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		town := newTown(1)
		town.err = http.ErrServerClosed
		s, stop := liveServer(t, town)
		l := webtest.StartInMemory(t, web.NewServer(web.ServerConfig{
			Handler: http.HandlerFunc(s.serveStream), Connections: 100, Within: 20 * time.Second,
			Logger: slog.New(slog.DiscardHandler),
		}))
		c := l.Dial()
		read, _ := requestStream(t, c)
		comments := 0
		for began := time.Now(); time.Since(began) < time.Minute; {
			line, err := read.ReadString('\n')
			require.NoError(t, err)
			if line == ":\n" {
				comments++
			}
		}
		require.Equal(t, 3, comments, "expected three comments and the beginning of a fourth")
		stop()
		c.Close() // the test is over
	})
}
