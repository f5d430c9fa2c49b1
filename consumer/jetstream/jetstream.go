// Package jetstream reads a Jetstream server's v1 wire, as both generations of
// servers speak it. It dials, fails over, decompresses and decodes. It knows no
// database: where to start is told to it, and what it reads it hands on.
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

// Config is what a client needs. Zero durations and sizes take the defaults.
type Config struct {
	Endpoints []string        // URLs of subscribe endpoints, ws or wss, in order of preference
	Filter    consumer.Filter // what to ask for at first

	Compress bool // ask for zstd frames
	// Dictionary answers the zstd dictionary. When it cannot, frames are plain.
	Dictionary func(context.Context) ([]byte, error)

	ReadLimit    int64         // 8 MiB: of a longer frame only the beginning is kept; 1 MiB of CBOR is at most 6 MiB of JSON
	MinWait      time.Duration // 500 ms: before the first new try
	MaxWait      time.Duration // 30 s: the waits double up to this
	ProbeEvery   time.Duration // 2 s: how often, during a longer wait, unreachable hosts are probed
	StartingWait time.Duration // 5 s: the longest wait after 502, 503 or 504: the server is starting
	AlertAfter   int           // 10: from this many failures in a row on, they are errors in the log
	QuietAfter   time.Duration // 5 s without a frame: ask the server whether it lives
	PongWithin   time.Duration // 10 s: how long its answer may take
	DialTimeout  time.Duration // 10 s: for one endpoint

	Wanted     func(collection string) bool // of which collections records are read; nil: of all
	HTTPClient *http.Client                 // nil: http.DefaultClient
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: not exposed
	UserAgent  string
}

// Client connects to one of several servers. Connect and the connection it
// made are used by one goroutine at a time, SetFilter by any.
type Client struct {
	cfg       Config
	log       *slog.Logger
	endpoints []endpoint
	metrics   metrics
	zip       dictionaryState

	// Of the goroutine that connects and reads.
	at       int                         // the endpoint to try next
	last     int                         // the endpoint that failed last
	dialed   bool                        // some try was made
	retries  *backoff.ExponentialBackOff // the waits between tries
	starting bool                        // the last try was answered 502, 503 or 504
	refused  bool                        // the last try was answered 4xx

	asking sync.Mutex // held while a filter is said on a connection: the latest is said last

	mu      sync.Mutex // guards what follows
	filter  filter
	live    *conn // the connection at work; nil between connections
	failed  int   // tries since the last event arrived
	because error // why the last one failed
}

type endpoint struct {
	url  *url.URL
	host string

	// Of the goroutine that connects and reads.
	unreachable bool      // the last try made no TCP connection
	notBefore   time.Time // it asked to be left alone until then
}

type metrics struct {
	connects *prometheus.CounterVec
	failed   prometheus.Gauge
	bytes    prometheus.Counter
}

// New checks the configuration and fills in the defaults.
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
			Help: "Tries to connect, by host and outcome."}, []string{"host", "outcome"}),
		failed: f.NewGauge(prometheus.GaugeOpts{Name: "weir_jetstream_failed_tries",
			Help: "Tries to connect that failed since the last event arrived. Alert from 10 on."}),
		bytes: f.NewCounter(prometheus.CounterOpts{Name: "weir_jetstream_received_bytes_total",
			Help: "Bytes of frames as they came over the wire."}),
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
		return endpoint{}, fmt.Errorf("%q is no Jetstream endpoint: expected a URL such as wss://jetstream2.us-west.bsky.network/subscribe", raw)
	}
	switch u.Scheme {
	case "ws", "wss", "http", "https":
	default:
		return endpoint{}, fmt.Errorf("%q is no Jetstream endpoint: expected ws or wss, received %s", raw, u.Scheme)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/subscribe"
	}
	return endpoint{url: u, host: u.Host}, nil
}
