package bluesky

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the client's metrics. Labels are this package's calls and the
// configured hosts; all other hosts are counted together.
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
			Help: "Requests by call, host and outcome: ok, permanent, rate_limited, transient, " +
				"or not_sent (stopped by a rate limit or an open breaker). The host other stands for all that are not configured."},
			[]string{"call", "host", "class"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{Name: name("request_seconds"),
			Help: "Duration of a request with its body, without waits.", Buckets: prometheus.ExponentialBuckets(0.005, 2, 12)}, []string{"call"}),
		remaining: f.NewGaugeVec(prometheus.GaugeOpts{Name: name("rate_limit_remaining"),
			Help: "Requests that a configured host still allows, by its last response. Zero: requests wait."}, []string{"host"}),
		unreadable: f.NewCounterVec(prometheus.CounterOpts{Name: name("unreadable_items_total"),
			Help: "Items of pages omitted because they cannot be read or stored. Expect zero."}, []string{"call"}),
		openings: f.NewCounter(prometheus.CounterOpts{Name: name("breaker_openings_total"),
			Help: "Times the breaker of a host opened after repeated failures. Expect zero."}),
	}
}
