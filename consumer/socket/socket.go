// Package socket reads frames from one of several WebSocket servers: it dials, fails over, waits
// between attempts, and checks that a silent server is alive. It does not interpret the frames; the
// sources that use it do.
package socket

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Config configures a dialer. Zero durations and sizes take the defaults.
type Config struct {
	Endpoints []string // URLs, ws or wss, in order of preference

	ReadLimit    int64         // 8 MiB: only the beginning of a longer frame is kept
	MinWait      time.Duration // 500 ms: the first wait before a retry
	MaxWait      time.Duration // 30 s: the waits double up to this
	ProbeEvery   time.Duration // 2 s: how often, during a longer wait, unreachable hosts are probed
	StartingWait time.Duration // 5 s: the longest wait after 502, 503 or 504, which mean that the server is starting
	AlertAfter   int           // 10: after this many failures in a row, failures are logged as errors
	QuietAfter   time.Duration // 5 s: after this time without a frame, the server is pinged
	PongWithin   time.Duration // 10 s: how long the pong may take
	DialTimeout  time.Duration // 10 s: for one endpoint

	HTTPClient *http.Client // nil: NoRedirects
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil: not exposed
	UserAgent  string
}

// A Service describes the servers.
type Service struct {
	Name    string // for errors, such as Jetstream
	Path    string // the path for a URL without one
	Example string // the URL of an endpoint
	// Check returns an error if a frame ends the connection. nil: none does.
	Check func(frame []byte) error
	// Serves: the source reports when a server serves, see Conn.Serves, and an error of Check is a
	// refusal. If false, a server serves from the first frame on, and a connection that had a frame
	// has not failed.
	Serves bool
}

// Dialer connects to one of several servers. One goroutine at a time uses Connect
// and the connection.
type Dialer struct {
	cfg       Config
	service   Service
	log       *slog.Logger
	endpoints []endpoint
	metrics   metrics

	// Used by the goroutine that connects and reads.
	at       int                         // the endpoint to try next
	last     int                         // the endpoint that failed last
	dialed   bool                        // an attempt was made
	retries  *backoff.ExponentialBackOff // the waits between attempts
	starting bool                        // the last response was 502, 503 or 504
	refused  bool                        // the last response was 4xx

	mu      sync.Mutex // guards what follows
	failed  int        // attempts since a server served
	lastErr error      // why the last one failed
}

type endpoint struct {
	url     *url.URL
	host    string
	service string // the path of the service

	// Used by the goroutine that connects and reads.
	unreachable bool      // the last attempt made no TCP connection
	notBefore   time.Time // from the host's Retry-After header
}

type metrics struct {
	connects *prometheus.CounterVec
	failed   prometheus.Gauge
	bytes    prometheus.Counter
}

// NoRedirects is the default client. It does not follow redirects, which could lead to an address
// that only this machine can reach.
var NoRedirects = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// New checks the configuration and sets the defaults.
func New(cfg Config, service Service) (*Dialer, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, fmt.Errorf("no %s endpoint is configured: name at least one", service.Name)
	}
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	cfg.HTTPClient = cmp.Or(cfg.HTTPClient, NoRedirects)
	cfg.ReadLimit = cmp.Or(cfg.ReadLimit, 8<<20)
	cfg.MinWait = cmp.Or(cfg.MinWait, 500*time.Millisecond)
	cfg.MaxWait = cmp.Or(cfg.MaxWait, 30*time.Second)
	cfg.ProbeEvery = cmp.Or(cfg.ProbeEvery, 2*time.Second)
	cfg.StartingWait = cmp.Or(cfg.StartingWait, 5*time.Second)
	cfg.AlertAfter = cmp.Or(cfg.AlertAfter, 10)
	cfg.QuietAfter = cmp.Or(cfg.QuietAfter, 5*time.Second)
	cfg.PongWithin = cmp.Or(cfg.PongWithin, 10*time.Second)
	cfg.DialTimeout = cmp.Or(cfg.DialTimeout, 10*time.Second)
	d := &Dialer{cfg: cfg, service: service, log: cfg.Logger, retries: newRetries(cfg.MinWait, cfg.MaxWait)}
	for _, raw := range cfg.Endpoints {
		e, err := service.parse(raw)
		if err != nil {
			return nil, err
		}
		d.endpoints = append(d.endpoints, e)
	}
	f := promauto.With(cfg.Registerer)
	d.metrics = metrics{
		connects: f.NewCounterVec(prometheus.CounterOpts{Name: "weir_source_connects_total",
			Help: "Attempts to connect, by host and outcome."}, []string{"host", "outcome"}),
		failed: f.NewGauge(prometheus.GaugeOpts{Name: "weir_source_failed_tries",
			Help: "Failed attempts to connect since the last event. Alert from 10 on."}),
		bytes: f.NewCounter(prometheus.CounterOpts{Name: "weir_source_received_bytes_total",
			Help: "Bytes of frames received, as compressed on the wire."}),
	}
	return d, nil
}

// parse reads the URL of an endpoint.
func (s *Service) parse(raw string) (endpoint, error) {
	u, err := url.Parse(raw)
	if err != nil {
		raw = "something" // the URL may hold a password
	} else {
		raw = u.Redacted()
	}
	if err != nil || u.Host == "" || u.User != nil {
		return endpoint{}, fmt.Errorf("%q is not a %s endpoint: expected a URL such as %s", raw, s.Name, s.Example)
	}
	switch u.Scheme {
	case "ws", "wss", "http", "https":
	default:
		return endpoint{}, fmt.Errorf("%q is not a %s endpoint: expected ws or wss, received %s", raw, s.Name, u.Scheme)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = s.Path
	}
	return endpoint{url: u, host: u.Host, service: s.Path}, nil
}
