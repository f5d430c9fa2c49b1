package e2e

import (
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// spans is an OTLP collector on loopback.
type spans struct {
	*httptest.Server
	mu   sync.Mutex
	byID map[string]*tracev1.Span
	of   map[string]bool // service names
}

func newSpans(t *testing.T) *spans {
	t.Helper()
	s := &spans{byID: map[string]*tracev1.Span{}, of: map[string]bool{}}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		raw, err := io.ReadAll(r.Body)
		var request collector.ExportTraceServiceRequest
		if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(raw, &request) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, resource := range request.ResourceSpans {
			for _, a := range resource.Resource.Attributes {
				if a.Key == "service.name" {
					s.of[a.Value.GetStringValue()] = true
				}
			}
			for _, scope := range resource.ScopeSpans {
				for _, span := range scope.Spans {
					s.byID[hex.EncodeToString(span.SpanId)] = span
				}
			}
		}
	}))
	t.Cleanup(s.Close)
	return s
}

// path returns spans of one trace with these names, each the parent of the
// next; nil if there are none yet.
func (s *spans) path(names ...string) []*tracev1.Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, last := range s.byID {
		path := []*tracev1.Span{last}
		for span := last; len(path) < len(names); {
			parent := s.byID[hex.EncodeToString(span.ParentSpanId)]
			if parent == nil || string(parent.TraceId) != string(last.TraceId) {
				break
			}
			path = append([]*tracev1.Span{parent}, path...)
			span = parent
		}
		found := len(path) == len(names)
		for i := 0; found && i < len(names); i++ {
			found = path[i].Name == names[i]
		}
		if found {
			return path
		}
	}
	return nil
}

func attributes(span *tracev1.Span) map[string]any {
	found := map[string]any{}
	for _, a := range span.Attributes {
		if text := a.Value.GetStringValue(); text != "" {
			found[a.Key] = text
		} else {
			found[a.Key] = a.Value.GetIntValue()
		}
	}
	return found
}

// TestOneTraceFromTheEventToTheRanking spans two processes: one trace leads
// from the batch of the posts to the job that ranks their links. Another leads
// from a watch to the calls that read the feeds of its accounts.
func TestOneTraceFromTheEventToTheRanking(t *testing.T) {
	t.Parallel()
	n := followNetwork(t, 20)
	s := newSpans(t)
	env := append(keeping(follower(n, schematest.NewURL(t))), "WEIR_WATCH="+n.Hub().Handle, "OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL,
		"OTEL_BSP_SCHEDULE_DELAY=100")
	consume, work := start(t, env, "consume"), start(t, env, "work")
	defer live(t, n, 100)()
	var ranked, read []*tracev1.Span
	eventually.True(t, func() bool {
		ranked = s.path("batch", "job process_posts")
		read = s.path("job sync_follows", "job backfill_account", "call app.bsky.feed.getAuthorFeed")
		return ranked != nil && read != nil
	}, 50*time.Millisecond)
	require.LessOrEqual(t, ranked[0].StartTimeUnixNano, ranked[0].EndTimeUnixNano)
	require.LessOrEqual(t, ranked[0].StartTimeUnixNano, ranked[1].StartTimeUnixNano)
	batch := attributes(ranked[0])
	require.Equal(t, "jetstream", batch["weir.stream"])
	require.Positive(t, batch["weir.events"])
	require.Positive(t, batch["weir.stored"])
	require.Positive(t, batch["weir.cursor"])
	job := attributes(ranked[1])
	require.Equal(t, "process", job["weir.job.queue"])
	require.Equal(t, "done", job["weir.job.outcome"])
	require.Equal(t, n.AppViewURL(), attributes(read[2])["weir.host"])
	require.Equal(t, map[string]bool{"weir": true}, s.of)
	for _, p := range []*process{consume, work} {
		stopServe(t, p)
	}
}

// TestRetriedEventsAreTraced shows a trace from the job that retries a dead
// letter to the batch that stores it and the job that ranks its links.
func TestRetriedEventsAreTraced(t *testing.T) {
	t.Parallel()
	pool, env := poisoned(t)
	_, err := pool.Exec(t.Context(), `ALTER TABLE posts_default DROP CONSTRAINT strict`)
	require.NoError(t, err)
	s := newSpans(t)
	start(t, append(env, "OTEL_EXPORTER_OTLP_ENDPOINT="+s.URL, "OTEL_BSP_SCHEDULE_DELAY=100"), "work")
	succeed(t, env, "deadletter", "retry", "--all", "--stage", "commit")
	retriesEnd(t, pool)
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM dead_letters WHERE state = 'retried'`))
	var replayed []*tracev1.Span
	eventually.True(t, func() bool {
		replayed = s.path("job retry_dead_letters", "batch", "job process_posts")
		return replayed != nil
	}, 50*time.Millisecond)
	require.Equal(t, int64(2), attributes(replayed[1])["weir.stored"])
}

// TestUnreachableCollectorDelaysNothing covers a collector that is unreachable
// and one that hangs. The failure is logged once.
func TestUnreachableCollectorDelaysNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	hanging := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body) // otherwise the server does not detect the end of the request
		<-r.Context().Done()
	}))
	t.Cleanup(hanging.Close)
	for name, endpoint := range map[string]string{"away": "http://127.0.0.1:1", "hangs": hanging.URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := network(t, 500)
			database := schematest.NewURL(t)
			pool := open(t, database)
			serve := start(t, append(reads(n, database), "OTEL_EXPORTER_OTLP_ENDPOINT="+endpoint, "OTEL_BSP_SCHEDULE_DELAY=50",
				"OTEL_EXPORTER_OTLP_TIMEOUT=200", "OTEL_BSP_EXPORT_TIMEOUT=300"), "serve")
			eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM shares`) > 0 }, 20*time.Millisecond)
			eventually.True(t, func() bool { return strings.Contains(serve.stderr.String(), "trace_export_failed") }, 20*time.Millisecond)
			settled(t, pool)
			stopServe(t, serve)
			require.Equal(t, 1, strings.Count(serve.stderr.String(), "trace_export_failed"))
		})
	}
}

// TestTracesAreOffByDefault shows that traces are off by default, and that
// unsupported settings are reported.
func TestTracesAreOffByDefault(t *testing.T) {
	t.Parallel()
	database := schematest.NewURL(t)
	pool := open(t, database)
	serve := start(t, reads(network(t, 500), database), "serve")
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM shares`) > 0 }, 20*time.Millisecond)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM river_job WHERE metadata ? 'traceparent'`))
	stopServe(t, serve)
}
