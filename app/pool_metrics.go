package app

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolMetrics are the connections of this process to the database.
type poolMetrics struct{ pool *pgxpool.Pool }

func poolDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("weir_pool_"+name, help, nil, nil)
}

var (
	poolUsed   = poolDesc("used_connections", "Connections that work at this moment.")
	poolIdle   = poolDesc("idle_connections", "Connections that wait.")
	poolMost   = poolDesc("max_connections", "Connections there may be.")
	poolWaits  = poolDesc("waits_total", "Times somebody waited for a connection because all were used.")
	poolWaited = poolDesc("wait_seconds_total", "Time spent on getting connections.")
)

// Describe says what Collect sends.
func (m poolMetrics) Describe(out chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, out) }

// Collect reads the pool's own counts.
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
