// Package simnet simulates Bluesky on loopback: a seeded network of accounts that
// post, share, follow, edit and delete; a Jetstream server and a relay that send
// their events; XRPC services that show the current state; and faults on demand. The demo, the
// tests and the benchmarks run against it. It shares no code with what it tests:
// an oracle folds its log.
package simnet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/weir-social/weir/consumer/jetstream/dictionary"
	"github.com/weir-social/weir/internal/testing/loopback"
)

// Config configures a network. The same seed, counts and start give the same
// history, byte for byte.
type Config struct {
	Seed       uint64
	Accounts   int // 2000 when zero
	Mix        Mix
	Generation Generation

	History     int           // number of events before the server starts
	HistorySpan time.Duration // period of these events; 24 h when zero
	Start       time.Time     // end of the history; now when zero

	Serving
	Follows int // number of accounts that the hub follows; when zero 342, or all if there are fewer
	Access
	Logger *slog.Logger
}

// Serving is how the servers of the streams behave.
type Serving struct {
	Events     bool          // the Jetstream server also has subscribeEvents, unless its generation is V1
	Lookback   time.Duration // how far back a cursor reaches; 0: no limit
	Relay      Relay         // of the relay's cursors
	Archive    *Archive      // of the Jetstream server; nil: it has none
	Coarse     time.Duration // V2: how much earlier than requested a cursor by time may start
	PingEvery  time.Duration // 30 s when zero
	WriteLimit time.Duration // a client that takes longer to read a frame or to return a pong is cut off; 5 s when zero
	CloseLimit time.Duration // how long clients have to reply to the close frame of a stop; 1 s when zero
	Dictionary []byte        // a zstd dictionary; that of real servers when nil
}

// Access is who may make XRPC calls, and how fast they are.
type Access struct {
	Password      string        // the app password of every account; see Password
	TokenLife     time.Duration // of access tokens; 2 h when zero
	ExpiredStatus int           // status for expired tokens; 401 when zero; the network's PDSs return 400
	RequireLogin  bool          // refuse app.bsky calls without a session, like a PDS
	Rate          Rate          // of XRPC calls; see SetRate
	Latency       time.Duration // of XRPC calls; see SetLatency
}

// Net is a simulated network and its server.
type Net struct {
	cfg Config
	log *Log

	mu    sync.Mutex // guards the model: it generates one event at a time
	model *model

	stream
	relay   relay
	archive archive
	k256    *k256
	services

	address  atomic.Pointer[string] // of the latest start
	life     sync.Mutex             // guards the fields below
	port     *loopback.Port         // of the latest start; reserved while the server is down, too
	listener *listener
	server   *http.Server
	stop     context.CancelFunc
}

// stream is the state of the Jetstream server.
type stream struct {
	shift   atomic.Int64 // added to every sequence number of a renumbered server
	floor   atomic.Int64 // position in the log of the oldest event served
	refuse  atomic.Bool
	fired   firedCounts
	filters filters
	encoder *zstd.Encoder
	events  events
}

// services is the state of the AppView and the PDS.
type services struct {
	index      *index
	hub        string // DID
	sessions   sessions
	limiter    limiter
	calls      calls
	latency    atomic.Int64          // ns
	listings   atomic.Pointer[index] // of the calls about who follows whom; nil: the current index
	feedsHeld  atomic.Int64          // µs; feeds omit records created later; 0: they omit none
	callFaults callFaults
}

// New generates the network and its history.
func New(cfg Config) (*Net, error) {
	cfg.Accounts = cmp.Or(cfg.Accounts, 2000)
	cfg.HistorySpan = cmp.Or(cfg.HistorySpan, 24*time.Hour)
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	cfg.PingEvery = cmp.Or(cfg.PingEvery, 30*time.Second)
	cfg.WriteLimit = cmp.Or(cfg.WriteLimit, 5*time.Second)
	cfg.CloseLimit = cmp.Or(cfg.CloseLimit, time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Accounts < 10 {
		return nil, errors.New("a network needs 10 accounts or more")
	}
	cfg.Follows = cmp.Or(cfg.Follows, min(342, cfg.Accounts))
	if cfg.Follows < 0 || cfg.Follows > cfg.Accounts {
		return nil, fmt.Errorf("the hub follows from 0 to all %d accounts, not %d", cfg.Accounts, cfg.Follows)
	}
	began := cfg.Start.Add(-cfg.HistorySpan)
	n := &Net{
		cfg: cfg, log: newLog(), relay: relay{repos: map[string]*repository{}, hidden: map[string]bool{}, rotations: map[string]int{}},
		k256: newK256(), model: newModel(cfg.Seed, cfg.Accounts, cfg.Mix, began),
	}
	n.connect(began)
	items := make([]*item, 0, cfg.History)
	for i := range cfg.History {
		at := began.Add(time.Duration(float64(cfg.HistorySpan) * float64(i+1) / float64(cfg.History)))
		items = append(items, &item{entry: n.model.next(at)})
	}
	n.log.add(items...)
	if cfg.Dictionary == nil {
		cfg.Dictionary = dictionary.V1
	}
	encoder, err := newEncoder(cfg.Dictionary)
	if err != nil {
		return nil, err
	}
	n.encoder = encoder
	n.events.offered.Store(cfg.Events && cfg.Generation != V1)
	return n, n.useDictionary(firstDictionary)
}

// connect sets up the XRPC services.
func (n *Net) connect(began time.Time) {
	graph := seeds{seed: n.cfg.Seed, writers: n.cfg.Accounts, hub: n.cfg.Follows, before: began}
	n.hub = graph.populate(n.model)
	n.index = newIndex(graph)
	n.sessions.start(n.cfg)
	n.SetRate(n.cfg.Rate)
	n.SetLatency(n.cfg.Latency)
}

// Travel moves the clocks of everybody in the network this much further ahead of now.
func (n *Net) Travel(later time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.model.later = later
}

// Play generates count events now.
func (n *Net) Play(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	entries := make([]*Entry, 0, count)
	for range count {
		entries = append(entries, n.model.next(n.model.clock()))
	}
	n.model.same = nil // the operations of a commit come together
	n.log.add(n.items(entries...)...)
}

// Live generates events at a rate per second until ctx ends.
func (n *Net) Live(ctx context.Context, rate float64) {
	const tick = 20 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	last, owed := time.Now(), 0.0
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			owed += rate * now.Sub(last).Seconds()
			last = now
			if count := int(owed); count > 0 {
				n.Play(count)
				owed -= float64(count)
			}
		}
	}
}

// Log returns the log of all events.
func (n *Net) Log() *Log { return n.log }

// Start serves on an IPv4 address, such as 127.0.0.1:0. The network keeps the port
// until the next Start, even while it is stopped.
func (n *Net) Start(address string) error {
	n.life.Lock()
	defer n.life.Unlock()
	if n.server != nil {
		return errors.New("the simulated network is already serving: stop it first")
	}
	port, err := loopback.Reserve(address)
	if err != nil {
		return fmt.Errorf("start the simulated network: %w", err)
	}
	if n.port != nil {
		n.port.Release() // nothing depends on it
	}
	n.port = port
	return n.start()
}

func (n *Net) start() error {
	l, err := listen(n.port, n.cfg.WriteLimit)
	if err != nil {
		return err
	}
	bound := n.port.Address()
	ctx, stop := context.WithCancel(context.Background())
	server := &http.Server{
		Handler:           n.routes(),
		ReadHeaderTimeout: 10 * time.Second, // a client that never finishes its request
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       withWire,
		ErrorLog:          slog.NewLogLogger(n.cfg.Logger.Handler(), slog.LevelDebug),
	}
	n.address.Store(&bound)
	n.listener, n.server, n.stop = l, server, stop
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.cfg.Logger.Error("simnet_stopped", "error", err)
		}
	}()
	return nil
}

// Stop shuts the server down like SIGTERM: clients get close code 1001.
func (n *Net) Stop() {
	n.life.Lock()
	defer n.life.Unlock()
	n.halt()
}

func (n *Net) halt() {
	if n.server == nil {
		return
	}
	n.stop()
	n.listener.release()
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.CloseLimit)
	defer cancel()
	n.server.Shutdown(ctx) // hijacked connections are not waited for
	n.listener.drain(n.cfg.CloseLimit)
	n.server.Close()   // nothing depends on it
	n.listener.Close() // closed already, unless the server stops before it began to serve
	n.server = nil
}

// Restart stops the server if it is serving, and starts it on the same address.
func (n *Net) Restart() error {
	n.life.Lock()
	defer n.life.Unlock()
	return n.restart(func() {})
}

// restart calls between while the server is down.
func (n *Net) restart(between func()) error {
	if n.port == nil {
		return errors.New("restart the simulated network: it was never started")
	}
	n.halt()
	between()
	return n.start()
}

// Address returns host and port; empty before the first start.
func (n *Net) Address() string {
	if address := n.address.Load(); address != nil {
		return *address
	}
	return ""
}

// URL returns the endpoint for a Jetstream client.
func (n *Net) URL() string { return "ws://" + n.Address() + "/subscribe" }

// RelayURL returns the endpoint for a client of the relay.
func (n *Net) RelayURL() string {
	return "ws://" + n.Address() + "/xrpc/com.atproto.sync.subscribeRepos"
}

// AppViewURL returns the base URL of the AppView for an XRPC client.
func (n *Net) AppViewURL() string { return "http://" + n.Address() }

// PDSURL returns the base URL of every account's PDS for an XRPC client: the
// same server, which also serves the app.bsky calls of sessions.
func (n *Net) PDSURL() string { return "http://" + n.Address() }

// DirectoryURL returns the base URL of the PLC directory; a slash and a DID
// after it name a document.
func (n *Net) DirectoryURL() string { return "http://" + n.Address() }

// ImageBase returns the URL of the pictures of cards, with {did} and {cid} to
// fill in.
func (n *Net) ImageBase() string { return "http://" + n.Address() + "/blob/{did}/{cid}" }
