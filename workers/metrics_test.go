package workers

import (
	"github.com/weir-social/weir/internal/testing/workertest"
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/jobs"
)

// TestFailedAttemptIsCountedAsFailed checks the metric and the span, also for
// the kinds that continue at a stored position.
func TestFailedAttemptIsCountedAsFailed(t *testing.T) {
	t.Parallel()
	registry, spans := prometheus.NewRegistry(), tracetest.NewSpanRecorder()
	r := newRig(t, func(c *Config) {
		c.Registerer = registry
		c.Tracer = sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans)).Tracer("test")
	})
	someone := r.followed()[0]
	for _, endpoint := range []string{"app.bsky.feed.getAuthorFeed", "app.bsky.graph.getFollows"} {
		require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Severed, Endpoint: endpoint, Count: 2})) // a call and its retry
	}
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: someone, Since: time.Now().Add(-time.Hour)}, nil)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed' AND attempt = 2`)
	r.pauses(jobs.QueueBackfill) // the backfills of the watch's accounts
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, someone)
	r.becomes(1,
		`SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' = '1' AND state = 'completed' AND attempt = 2`)

	// including the sync at startup
	want := map[string]uint64{"backfill_account failed": 1, "backfill_account done": 1, "sync_follows failed": 1, "sync_follows done": 2}
	counted := func() map[string]uint64 {
		n := workertest.Samples(t, registry, "weir_job_seconds", func(m *dto.Metric) uint64 { return m.GetHistogram().GetSampleCount() })
		for name := range n {
			if _, ok := want[name]; !ok {
				delete(n, name)
			}
		}
		return n
	}
	eventually.True(t, func() bool { return maps.Equal(want, counted()) }, 20*time.Millisecond,
		"an attempt is counted after its job has completed in its own transaction")
	failed := map[string]int{}
	for _, span := range spans.Ended() {
		if span.Status().Code == codes.Error {
			require.NotEmpty(t, span.Status().Description)
			failed[span.Name()]++
		}
	}
	require.Equal(t, map[string]int{"job backfill_account": 1, "job sync_follows": 1}, failed)
}
