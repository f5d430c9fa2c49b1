package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/schema"
)

// metrics are the consumer's metrics. Labels are bounded: kinds, stages and states
// come from this package, collections from the configuration.
type metrics struct {
	events       *prometheus.CounterVec
	deadLettered *prometheus.CounterVec
	replaced     prometheus.Counter
	commitMetrics
	bufferBytes prometheus.Gauge
	overflows   prometheus.Counter
	mismatches  prometheus.Counter
	gaps        prometheus.Counter
	pauses      prometheus.Counter
	epoch       prometheus.Gauge
}

// commitMetrics are those of the transactions.
type commitMetrics struct {
	batches       prometheus.Counter
	batchEvents   prometheus.Histogram
	commitSeconds prometheus.Histogram
	commitRetries prometheus.Counter
	latency       prometheus.Histogram
	stored        prometheus.Counter
	duplicates    prometheus.Counter
	age           prometheus.Histogram
	lastEvent     prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	name := func(s string) string { return "weir_consumer_" + s }
	seconds := prometheus.ExponentialBuckets(0.001, 1.6, 24)
	m := &metrics{
		events: f.NewCounterVec(prometheus.CounterOpts{Name: name("events_total"),
			Help: "Events read, by kind and, for commits, by collection. Kinds: write, delete, account, identity, sync, erasure, " +
				"chained (a commit without a stored record), not_followed, and ignored (the collection or kind is not stored). " +
				"The collection other stands for all that are not stored."},
			[]string{"kind", "collection"}),
		deadLettered: f.NewCounterVec(prometheus.CounterOpts{Name: name("dead_lettered_total"),
			Help: "Frames and events dead-lettered, by stage and by the collection that they claim. " +
				"The collection other stands for all that are not stored, and for none. Expect zero."},
			[]string{"stage", "collection"}),
		replaced: f.NewCounter(prometheus.CounterOpts{Name: name("replaced_characters_total"),
			Help: "Characters that Postgres cannot store (NUL, lone surrogates) and that were replaced by U+FFFD."}),
		commitMetrics: commitMetrics{
			batches: f.NewCounter(prometheus.CounterOpts{Name: name("batches_total"), Help: "Transactions committed."}),
			batchEvents: f.NewHistogram(prometheus.HistogramOpts{Name: name("batch_events"), Help: "Events in a committed batch.",
				Buckets: []float64{1, 5, 10, 25, 50, 100, 250, 500, 1000, 2000, 4000}}),
			commitSeconds: f.NewHistogram(prometheus.HistogramOpts{
				Name: name("commit_seconds"), Help: "Duration of a commit, without retries.", Buckets: seconds,
			}),
			commitRetries: f.NewCounter(prometheus.CounterOpts{
				Name: name("commit_retries_total"), Help: "Commits retried because the database did not respond. Expect zero.",
			}),
			latency: f.NewHistogram(prometheus.HistogramOpts{Name: name("event_to_row_seconds"),
				Help: "Time from the arrival of a batch's first event to its commit.", Buckets: seconds}),
			stored: f.NewCounter(prometheus.CounterOpts{Name: name("stored_total"), Help: "Records stored, new ones and newer revisions."}),
			duplicates: f.NewCounter(prometheus.CounterOpts{Name: name("duplicates_total"),
				Help: "Events that another server, or an earlier connection, had brought before."}),
			age: f.NewHistogram(prometheus.HistogramOpts{Name: name("event_age_seconds"),
				Help: "Time from the last event of a batch, by the server's clock, to its commit.", Buckets: seconds}),
			lastEvent: f.NewGauge(prometheus.GaugeOpts{
				Name: name("last_event_timestamp_seconds"), Help: "The time of the last committed event, by the server's clock.",
			}),
		},
		bufferBytes: f.NewGauge(prometheus.GaugeOpts{Name: name("buffer_bytes"), Help: "Bytes read and not decoded yet."}),
		overflows: f.NewCounter(prometheus.CounterOpts{Name: name("buffer_overflows_total"),
			Help: "Connections dropped because the buffer was full: the database is slower than the stream. Expect zero."}),
		mismatches: f.NewCounter(prometheus.CounterOpts{Name: name("resume_mismatches_total"),
			Help: "Resumes in which the server did not deliver the last committed event: its numbering changed, or the cursor was too old."}),
		gaps: f.NewCounter(prometheus.CounterOpts{
			Name: name("gaps_total"), Help: "Gaps recorded: intervals that a resume could not cover. Expect zero.",
		}),
		pauses: f.NewCounter(prometheus.CounterOpts{Name: name("backpressure_pauses_total"),
			Help: "Pauses of the stream because too many jobs were waiting. Expect zero: start more workers."}),
		epoch: f.NewGauge(prometheus.GaugeOpts{
			Name: name("lease_epoch"), Help: "The epoch of the lease that this process holds; 0 without a lease.",
		}),
	}
	m.initDeadLetterCounters(otherCollection)
	return m
}

// otherCollection labels all collections that are not stored: their names come from
// the network.
const otherCollection = "other"

// initDeadLetterCounters creates a collection's counters of dead letters at zero,
// so that the first dead letter is an increase.
func (m *metrics) initDeadLetterCounters(collection string) {
	for _, stage := range []string{schema.StageDecode, schema.StageVerify, schema.StageCommit} {
		m.deadLettered.WithLabelValues(stage, collection)
	}
}

// committed counts a committed batch.
func (m *metrics) committed(b *batch, started time.Time) {
	now := time.Now()
	m.batches.Inc()
	m.batchEvents.Observe(float64(b.count))
	m.commitSeconds.Observe(now.Sub(started).Seconds())
	if !b.oldest.IsZero() {
		m.latency.Observe(now.Sub(b.oldest).Seconds())
	}
	if b.last != nil {
		m.lastEvent.Set(float64(b.last.LastEvent.UnixMilli()) / 1000)
		m.age.Observe(max(0, now.Sub(b.last.LastEvent).Seconds()))
	}
}
