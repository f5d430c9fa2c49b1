package app

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolMetrics exports the state of this process's connection pool.
type poolMetrics struct{ pool *pgxpool.Pool }

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("weir_pool_"+name, help, nil, nil)
}

var (
	poolUsed   = poolDesc("used_connections", "Connections in use.")
	poolIdle   = poolDesc("idle_connections", "Idle connections.")
	poolMost   = poolDesc("max_connections", "The maximum number of connections.")
	poolWaits  = poolDesc("waits_total", "Times a query waited for a connection because all were in use.")
	poolWaited = poolDesc("wait_seconds_total", "Total time spent waiting for connections.")
)

// Describe sends the descriptions of the metrics.
func (m poolMetrics) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect sends the pool's statistics.
func (m poolMetrics) Collect(out chan<- prometheus.Metric) {
	st := m.pool.Stat()
	gauge := func(d *prometheus.Desc, v float64) { out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v)
	}
	gauge(poolUsed, float64(st.AcquiredConns()))
	gauge(poolIdle, float64(st.IdleConns()))
	gauge(poolMost, float64(st.MaxConns()))
	count(poolWaits, float64(st.EmptyAcquireCount()))
	count(poolWaited, st.AcquireDuration().Seconds())
}
