package consumer

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/weir-social/weir/schema"
)

// metrics are what the consumer counts. Labels are bounded: kinds, stages and
// states are this package's own words, collections those that are stored.
type metrics struct {
	events        *prometheus.CounterVec
	deadLettered  *prometheus.CounterVec
	replaced      prometheus.Counter
	batches       prometheus.Counter
	batchEvents   prometheus.Histogram
	commitSeconds prometheus.Histogram
	commitRetries prometheus.Counter
	latency       prometheus.Histogram
	bufferBytes   prometheus.Gauge
	overflows     prometheus.Counter
	mismatches    prometheus.Counter
	gaps          prometheus.Counter
	pauses        prometheus.Counter
	stored        prometheus.Counter
	age           prometheus.Histogram
	lastEvent     prometheus.Gauge
	epoch         prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) *metrics {
	f := promauto.With(r)
	name := func(s string) string { return "weir_consumer_" + s }
	seconds := prometheus.ExponentialBuckets(0.001, 1.6, 24)
	m := &metrics{
		events: f.NewCounterVec(prometheus.CounterOpts{Name: name("events_total"),
			Help: "Events read, by what was done (write, delete, account, identity, not_followed, or ignored: of a collection or kind that is not stored) and, of commits, by collection: other stands for all that are not stored."},
			[]string{"kind", "collection"}),
		deadLettered: f.NewCounterVec(prometheus.CounterOpts{Name: name("dead_lettered_total"),
			Help: "Frames and events set aside in dead_letters, by stage and by the collection they say they are of: other stands for all that are not stored, and for none. Expect zero."},
			[]string{"stage", "collection"}),
		replaced: f.NewCounter(prometheus.CounterOpts{Name: name("replaced_characters_total"),
			Help: "Characters that Postgres cannot store (NUL, lone surrogates), stored as U+FFFD."}),
		batches: f.NewCounter(prometheus.CounterOpts{Name: name("batches_total"), Help: "Transactions committed."}),
		batchEvents: f.NewHistogram(prometheus.HistogramOpts{Name: name("batch_events"), Help: "Events in a committed batch.",
			Buckets: []float64{1, 5, 10, 25, 50, 100, 250, 500, 1000, 5000}}),
		commitSeconds: f.NewHistogram(prometheus.HistogramOpts{Name: name("commit_seconds"), Help: "Time of a commit, retries apart.", Buckets: seconds}),
		commitRetries: f.NewCounter(prometheus.CounterOpts{Name: name("commit_retries_total"), Help: "Commits tried again because the database did not answer. Expect zero."}),
		latency: f.NewHistogram(prometheus.HistogramOpts{Name: name("event_to_row_seconds"),
			Help: "From the arrival of a batch's first event to its commit.", Buckets: seconds}),
		bufferBytes: f.NewGauge(prometheus.GaugeOpts{Name: name("buffer_bytes"), Help: "Bytes read and not yet decoded."}),
		overflows: f.NewCounter(prometheus.CounterOpts{Name: name("buffer_overflows_total"),
			Help: "Connections dropped because the buffer was full: the database is slower than the stream. Expect zero."}),
		mismatches: f.NewCounter(prometheus.CounterOpts{Name: name("resume_mismatches_total"),
			Help: "Resumes in which the server did not deliver the last event committed: its numbering changed, or the cursor aged out."}),
		gaps: f.NewCounter(prometheus.CounterOpts{Name: name("gaps_total"), Help: "Intervals that a resume could not cover. Expect zero."}),
		pauses: f.NewCounter(prometheus.CounterOpts{Name: name("backpressure_pauses_total"),
			Help: "Times the stream was left alone because too many jobs waited. Expect zero: start more workers."}),
		stored: f.NewCounter(prometheus.CounterOpts{Name: name("stored_total"), Help: "Records stored: new ones, and newer revisions."}),
		age: f.NewHistogram(prometheus.HistogramOpts{Name: name("event_age_seconds"),
			Help: "From when the last event of a batch happened, by the server's clock, to its commit.", Buckets: seconds}),
		lastEvent: f.NewGauge(prometheus.GaugeOpts{Name: name("last_event_timestamp_seconds"), Help: "When the last event committed happened, by the server's clock."}),
		epoch:     f.NewGauge(prometheus.GaugeOpts{Name: name("lease_epoch"), Help: "The epoch of the lease held; 0 while waiting for it."}),
	}
	m.initDeadLetterCounters(otherCollection)
	return m
}

// otherCollection counts all that are not stored: they are strangers' words.
const otherCollection = "other"

// expect makes the counters of a collection's letters, so that the first one is
// an increase.
func (m *metrics) initDeadLetterCounters(collection string) {
	for _, stage := range []string{schema.StageDecode, schema.StageCommit} {
		m.deadLettered.WithLabelValues(stage, collection)
	}
}

// committed counts a batch whose transaction has passed.
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
