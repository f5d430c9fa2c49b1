// Package jetstream is a source that reads a Jetstream server's v1 wire, which both
// generations of servers speak. It dials, fails over, decompresses and decodes. It
// has no access to the database.
package jetstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/consumer"
)

// Config configures a client. Zero durations and sizes take the defaults.
type Config struct {
	Endpoints []string        // URLs of subscribe endpoints, ws or wss, in order of preference
	Filter    consumer.Filter // the first filter

	Compress bool // request zstd frames
	// Dictionary returns the zstd dictionary. If it fails, frames are plain.
	Dictionary func(context.Context) ([]byte, error)

	ReadLimit    int64         // 8 MiB: only the beginning of a longer frame is kept; 1 MiB of CBOR is at most 6 MiB of JSON
	MinWait      time.Duration // 500 ms: the first wait before a retry
	MaxWait      time.Duration // 30 s: the waits double up to this
	ProbeEvery   time.Duration // 2 s: how often, during a longer wait, unreachable hosts are probed
	StartingWait time.Duration // 5 s: the longest wait after 502, 503 or 504: the server is starting
	AlertAfter   int           // 10: from this many failures in a row on, failures are logged as errors
	QuietAfter   time.Duration // 5 s: ping the server after this time without a frame
	PongWithin   time.Duration // 10 s: how long the pong may take
	DialTimeout  time.Duration // 10 s: for one endpoint

	Wanted     func(collection string) bool // the collections whose records are decoded; nil: all
	HTTPClient *http.Client                 // nil: http.DefaultClient
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: not exposed
	UserAgent  string
}

// Client connects to one of several servers. One goroutine at a time uses Connect
// and the connection. SetFilter is safe for concurrent use.
type Client struct {
	cfg       Config
	log       *slog.Logger
	endpoints []endpoint
	metrics   metrics
	zip       dictionaryState

	// Of the goroutine that connects and reads.
	at       int                         // the endpoint to try next
	last     int                         // the endpoint that failed last
	dialed   bool                        // an attempt was made
	retries  *backoff.ExponentialBackOff // the waits between attempts
	starting bool                        // the last response was 502, 503 or 504
	refused  bool                        // the last response was 4xx

	filterMu sync.Mutex // held while a filter is sent, so that the latest is sent last

	mu      sync.Mutex // guards what follows
	filter  filter
	live    *conn // the current connection; nil between connections
	failed  int   // attempts since the last event
	lastErr error // why the last one failed
}

type endpoint struct {
	url  *url.URL
	host string

	// Of the goroutine that connects and reads.
	unreachable bool      // the last attempt made no TCP connection
	notBefore   time.Time // from its Retry-After header
}

type metrics struct {
	connects *prometheus.CounterVec
	failed   prometheus.Gauge
	bytes    prometheus.Counter
}

// New checks the configuration and sets the defaults.
func New(cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("no Jetstream endpoint is configured: name at least one")
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.HTTPClient = cmp.Or(cfg.HTTPClient, http.DefaultClient)
	if err := (filter{cfg.Filter}).check(); err != nil {
		return nil, err
	}
	cfg.ReadLimit = cmp.Or(cfg.ReadLimit, 8<<20)
	cfg.MinWait = cmp.Or(cfg.MinWait, 500*time.Millisecond)
	cfg.MaxWait = cmp.Or(cfg.MaxWait, 30*time.Second)
	cfg.ProbeEvery = cmp.Or(cfg.ProbeEvery, 2*time.Second)
	cfg.StartingWait = cmp.Or(cfg.StartingWait, 5*time.Second)
	cfg.AlertAfter = cmp.Or(cfg.AlertAfter, 10)
	cfg.QuietAfter = cmp.Or(cfg.QuietAfter, 5*time.Second)
	cfg.PongWithin = cmp.Or(cfg.PongWithin, 10*time.Second)
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	c := &Client{cfg: cfg, log: cfg.Logger, filter: (filter{cfg.Filter}).sorted(), retries: newRetries(cfg.MinWait, cfg.MaxWait)}
	for _, raw := range cfg.Endpoints {
		e, err := parseEndpoint(raw)
		if err != nil {
			return nil, err
		}
		c.endpoints = append(c.endpoints, e)
	}
	f := promauto.With(cfg.Registerer)
	c.metrics = metrics{
		connects: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_jetstream_connects_total",
			Help: "Attempts to connect, by host and outcome."}, []string{"host", "outcome"}),
		failed: f.NewGauge(prometheus.GaugeOpts{Name: "weir_jetstream_failed_tries",
			Help: "Failed attempts to connect since the last event. Alert from 10 on."}),
		bytes: f.NewCounter(prometheus.CounterOpts{Name: "weir_jetstream_received_bytes_total",
			Help: "Bytes of frames received, as compressed on the wire."}),
	}
	return c, nil
}

func parseEndpoint(raw string) (endpoint, error) {
	u, err := url.Parse(raw)
	if err != nil {
		raw = "something" // it may hold a password
	} else {
		raw = u.Redacted()
	}
	if err != nil || u.Host == "" || u.User != nil {
		return endpoint{}, fmt.Errorf("%q is not a Jetstream endpoint: expected a URL such as wss://jetstream2.us-west.bsky.network/subscribe", raw)
	}
	switch u.Scheme {
	case "ws", "wss", "http", "https":
	default:
		return endpoint{}, fmt.Errorf("%q is not a Jetstream endpoint: expected ws or wss, received %s", raw, u.Scheme)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/subscribe"
	}
	return endpoint{url: u, host: u.Host}, nil
}
