// Package simnet is a small Bluesky on loopback: a seeded network of accounts
// that post, share, follow, edit and delete, a Jetstream server that tells of it
// as the real ones do, and the XRPC services that show what it has come to, with
// faults on demand. It is the counterpart for the demo, the tests and the
// benchmarks, so it shares no code with what it tests: its log is the truth that
// a judge may fold.
package simnet

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
)

// Config describes a network. The same seed, counts and start give the same
// history, byte for byte.
type Config struct {
	Seed       uint64
	Accounts   int // 2000 when zero
	Mix        Mix
	Generation Generation

	History     int           // events that happened before the server starts
	HistorySpan time.Duration // over how long; 24 h when zero
	Start       time.Time     // when the history ends; now when zero

	Lookback   time.Duration // how far back a cursor reaches; 0: everything
	Coarse     time.Duration // V2: how much earlier than asked a cursor by time may start
	PingEvery  time.Duration // 30 s when zero
	WriteLimit time.Duration // a client that takes longer for a frame, or to answer a ping, is cut off; 5 s when zero

	Follows int // how many accounts the hub follows; 342 when zero, or all there are
	Crowd   int // how many accounts one more account follows, most of whom never post; none when zero

	Password      string        // the app password of every account; see Password
	TokenLife     time.Duration // of access tokens; 2 h when zero
	ExpiredStatus int           // with which expired tokens are refused: 401 when zero; 400 is what the PDS of the network answers
	RequireLogin  bool          // app.bsky calls without a session are refused, as by a PDS
	Rate          Rate          // of XRPC calls; see SetRate
	Latency       time.Duration // of XRPC calls; see SetLatency

	Dictionary []byte // a zstd dictionary; made from the network's own events when nil
	Logger     *slog.Logger
}

// Net is a network and its server.
type Net struct {
	cfg  Config
	log  *Log
	dict []byte

	mu    sync.Mutex // guards the model: events are made one at a time
	model *model

	shift   atomic.Int64 // added to every sequence number: a renumbered server
	floor   atomic.Int64 // the place in the log of the oldest event served
	refuse  atomic.Bool
	fired   firedCounts
	asked   asked
	encoder *zstd.Encoder

	index      *index
	hub        string // DID
	crowded    string // DID
	sessions   sessions
	limiter    limiter
	calls      calls
	latency    atomic.Int64 // ns
	feedsHeld  atomic.Int64 // µs; feeds show nothing that was made later; 0: they do
	callFaults callFaults

	address atomic.Pointer[string] // of the latest start

	life     sync.Mutex // guards what follows
	listener *listener
	server   *http.Server
	stop     context.CancelFunc
}

// New makes the network and its history.
func New(cfg Config) (*Net, error) {
	cfg.Accounts = cmp.Or(cfg.Accounts, 2000)
	cfg.HistorySpan = cmp.Or(cfg.HistorySpan, 24*time.Hour)
	if cfg.Start.IsZero() {
		cfg.Start = time.Now()
	}
	cfg.PingEvery = cmp.Or(cfg.PingEvery, 30*time.Second)
	cfg.WriteLimit = cmp.Or(cfg.WriteLimit, 5*time.Second)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Accounts < 10 {
		return nil, errors.New("a network needs 10 accounts or more")
	}
	cfg.Follows = cmp.Or(cfg.Follows, min(342, cfg.Accounts))
	if cfg.Follows < 0 || cfg.Follows > cfg.Accounts || cfg.Crowd < 0 {
		return nil, fmt.Errorf("the hub follows from 0 to all %d accounts, not %d; a larger crowd is Config.Crowd", cfg.Accounts, cfg.Follows)
	}
	began := cfg.Start.Add(-cfg.HistorySpan)
	n := &Net{cfg: cfg, log: newLog(), model: newModel(cfg.Seed, cfg.Accounts, cfg.Mix, began)}
	n.connect(began)
	items := make([]*item, 0, cfg.History)
	for i := range cfg.History {
		at := began.Add(time.Duration(float64(cfg.HistorySpan) * float64(i+1) / float64(cfg.History)))
		items = append(items, &item{entry: n.model.next(at)})
	}
	n.log.add(items...)
	n.dict = cfg.Dictionary
	if n.dict == nil {
		dict, err := makeDictionary(cfg.Seed)
		if err != nil {
			return nil, err
		}
		n.dict = dict
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderDict(n.dict), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(2))
	if err != nil {
		return nil, fmt.Errorf("read the zstd dictionary: %w", err)
	}
	n.encoder = encoder
	return n, nil
}

// connect makes what the XRPC services need.
func (n *Net) connect(began time.Time) {
	graph := seeds{seed: n.cfg.Seed, writers: n.cfg.Accounts, hub: n.cfg.Follows, crowd: n.cfg.Crowd, before: began}
	n.hub, n.crowded = graph.populate(n.model)
	n.index = newIndex(graph)
	n.sessions.start(n.cfg)
	n.SetRate(n.cfg.Rate)
	n.SetLatency(n.cfg.Latency)
}

// Play makes count events happen now.
func (n *Net) Play(count int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	entries := make([]*Entry, 0, count)
	for range count {
		entries = append(entries, n.model.next(time.Now()))
	}
	n.log.add(n.items(entries...)...)
}

// Live makes events happen at a rate, per second, until ctx ends.
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

// Log is the truth.
func (n *Net) Log() *Log { return n.log }

// Start serves on an address, such as 127.0.0.1:0.
func (n *Net) Start(address string) error {
	n.life.Lock()
	defer n.life.Unlock()
	if n.server != nil {
		return errors.New("the simulated network serves already: stop it first")
	}
	return n.start(address)
}

func (n *Net) start(address string) error {
	l, err := listen(address, n.cfg.WriteLimit)
	if err != nil {
		return err
	}
	bound := l.Addr().String()
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

// Stop ends the server as SIGTERM does: clients are told with close code 1001.
func (n *Net) Stop() {
	n.life.Lock()
	defer n.life.Unlock()
	n.halt()
}

// goodbye is how long clients have to answer that the server leaves.
const goodbye = time.Second

func (n *Net) halt() {
	if n.server == nil {
		return
	}
	n.stop()
	n.listener.release()
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	n.server.Shutdown(ctx) //nolint:errcheck // hijacked connections are not waited for
	n.listener.drain(goodbye)
	n.server.Close() //nolint:errcheck // it is over
	n.server = nil
}

// Restart stops the server, if it serves, and starts it on the same address.
func (n *Net) Restart() error {
	n.life.Lock()
	defer n.life.Unlock()
	return n.restart(func() {})
}

// restart does something while the server is down.
func (n *Net) restart(between func()) error {
	if n.address.Load() == nil {
		return errors.New("restart the simulated network: it was never started")
	}
	n.halt()
	between()
	return n.start(n.Address())
}

// Address is the host and port; empty before the first start.
func (n *Net) Address() string {
	if address := n.address.Load(); address != nil {
		return *address
	}
	return ""
}

// URL is the endpoint for a Jetstream client.
func (n *Net) URL() string { return "ws://" + n.Address() + "/subscribe" }

// AppViewURL is the host of the AppView, for an XRPC client.
func (n *Net) AppViewURL() string { return "http://" + n.Address() }

// PDSURL is the host of everybody's PDS, for an XRPC client: the same one, which
// also serves the app.bsky calls of those who are logged in.
func (n *Net) PDSURL() string { return "http://" + n.Address() }

// DirectoryURL is the PLC directory: a slash and a DID after it give a document.
func (n *Net) DirectoryURL() string { return "http://" + n.Address() }

// DictionaryURL serves the zstd dictionary.
func (n *Net) DictionaryURL() string { return "http://" + n.Address() + "/dictionary" }

// DictionarySHA256 pins it, in hex.
func (n *Net) DictionarySHA256() string {
	sum := sha256.Sum256(n.dict)
	return hex.EncodeToString(sum[:])
}

// ImageBase is where the pictures of cards are, with {did} and {cid} to fill in.
func (n *Net) ImageBase() string { return "http://" + n.Address() + "/blob/{did}/{cid}" }
