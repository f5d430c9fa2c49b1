package bluesky

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are what the client counts. Calls are this package's own names, hosts
// those of the configuration: strangers' hosts never become labels, they are
// counted together.
type metrics struct {
	requests   *prometheus.CounterVec
	seconds    *prometheus.HistogramVec
	remaining  *prometheus.GaugeVec
	unreadable *prometheus.CounterVec
	openings   prometheus.Counter
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	name := func(s string) string { return "weir_bluesky_" + s }
	return &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{Name: name("requests_total"),
			Help: "Requests by call, host (other: those that accounts choose) and outcome: ok, permanent, rate_limited, transient; not_sent were held back by a rate limit or an open breaker."},
			[]string{"call", "host", "class"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: name("request_seconds"), Help: "Time of a request and its body, waits apart.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12)}, []string{"call"}),
		remaining: f.NewGaugeVec(prometheus.GaugeOpts{Name: name("rate_limit_remaining"),
			Help: "Requests that a configured host still allows, as it said last. Zero: requests wait for it."}, []string{"host"}),
		unreadable: f.NewCounterVec(prometheus.CounterOpts{Name: name("unreadable_items_total"),
			Help: "Items of pages that were left out because they could not be read or stored. Expect zero."}, []string{"call"}),
		openings: f.NewCounter(prometheus.CounterOpts{Name: name("breaker_openings_total"),
			Help: "Times a host was left alone for a while because it failed again and again. Expect zero."}),
	}
}
