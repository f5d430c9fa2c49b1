package e2e

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// series is a line of /metrics.
type series struct {
	name   string
	labels map[string]string
}

var (
	sample = regexp.MustCompile(`(?m)^([a-z_]+)(?:\{(.*)\})? \S+$`)
	label  = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
)

func scrape(t testing.TB, opsURL string) (all []series) {
	t.Helper()
	page := measured(t, opsURL, "")
	for _, m := range sample.FindAllStringSubmatch(page, -1) {
		s := series{m[1], map[string]string{}}
		for _, l := range label.FindAllStringSubmatch(m[2], -1) {
			s.labels[l[1]] = l[2]
		}
		all = append(all, s)
	}
	require.Equal(t, len(all), len(regexp.MustCompile(`(?m)^[^#\n]`).FindAllString(page, -1)), "every line is read")
	return all
}

// hostile returns an attacker's frames, with a name in every field that takes
// free text.
func hostile(i int) (frames []string) {
	name := fmt.Sprintf("mallory%d", i)
	now := time.Now()
	rev := syntax.NewTIDFromTime(now, uint(i)).String()
	commit := func(did, operation, collection, rkey, rev, record string) string {
		return fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":"commit","commit":{"rev":%q,"operation":%q,"collection":%q,"rkey":%q,"record":%s,`+
			`"cid":"bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa"}}`,
			did, now.UnixMicro(), rev, operation, collection, rkey, record)
	}
	author, post := "did:web:"+name+".example", "app.bsky.feed.post"
	text := fmt.Sprintf(`{"$type":"app.bsky.feed.post","text":"https://%s.example/\"} weir_up{mallory=\"1","createdAt":%q}`, name,
		now.UTC().Format(time.RFC3339))
	return []string{
		commit(author, "create", post, rev, rev, text),
		commit(author, "create", "com."+name+".thing", rev, rev, `{"$type":"com.`+name+`.thing"}`),
		commit(author, name, post, rev, rev, text),
		commit(author, "create", post, name+"/"+name, rev, text),
		commit(author, "create", post, rev, name, text),
		commit(name, "create", post, rev, rev, text),
		commit(author, "create", post, rev, rev, `"`+name+`"`),
		fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":%q,%q:{}}`, author, now.UnixMicro(), name, name),
		fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":"identity","identity":{"did":%q,"handle":"%s.example","seq":1,"time":"2026-01-01T00:00:00Z"}}`,
			author, now.UnixMicro(), author, name),
		fmt.Sprintf(`{"did":%q,"time_us":%d,"kind":"account","account":{"active":false,"did":%q,"status":%q,"seq":1,`+
			`"time":"2026-01-01T00:00:00Z"}}`,
			author, now.UnixMicro(), author, name),
		name + ` is no JSON`,
	}
}

// TestUntrustedInputAddsNoLabels shows that, whatever the network sends and
// clients request, no metric has more series than Weir's own label values
// allow, and no label contains untrusted text.
func TestUntrustedInputAddsNoLabels(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const strangers, most = 300, 100 // more than the tables
	n := followNetwork(t, 20)
	database := schematest.NewURL(t)
	pool := open(t, database)
	serve := start(t,
		append(reads(n, database), "WEIR_START=tip", "WEIR_APPVIEW="+n.AppViewURL(), "WEIR_DIRECTORY="+n.DirectoryURL(), "WEIR_API_INTERVAL=0s"),
		"serve")
	at, page := serve.opsURL(t), serve.page(t)
	becomes(t, at, "quiet")
	for i := range strangers {
		for _, frame := range hostile(i) {
			n.Inject([]byte(frame))
		}
	}
	for _, fault := range []simnet.Fault{simnet.Garbage, simnet.NotUTF8, simnet.Duplicate, simnet.Stale, simnet.Oversized, simnet.Cut} {
		require.NoError(t, n.Do(fault))
	}
	for i := range strangers {
		getOps(t, fmt.Sprintf("%smallory%d?window=mallory%d", page, i, i), "")
	}
	eventually.True(t, func() bool {
		reached, err := tryCount(pool, fmt.Sprintf(`
			SELECT (SELECT count(*) >= %[1]d FROM links WHERE url LIKE '%%mallory%%')::int + (SELECT count(*) >= 4 * %[1]d
			    FROM dead_letters)::int`, strangers))
		return err == nil && reached == 2
	}, 50*time.Millisecond, "the frames did not arrive")
	becomes(t, at, "quiet")

	counted, ignored := map[string]map[string]bool{}, false
	for _, s := range scrape(t, at) {
		delete(s.labels, "le") // a histogram's buckets
		for name, value := range s.labels {
			require.NotContains(t, strings.ToLower(value), "mallory", "%s{%s}", s.name, name)
			require.Regexp(t, `^[\w .:/()+-]*$`, value, "%s{%s}", s.name, name)
			require.LessOrEqual(t, len(value), 80, "%s{%s}", s.name, name)
		}
		ignored = ignored || s.name == "weir_consumer_events_total" && s.labels["kind"] == "ignored" && s.labels["collection"] == "other"
		if counted[s.name] == nil {
			counted[s.name] = map[string]bool{}
		}
		counted[s.name][fmt.Sprint(s.labels)] = true
	}
	require.True(t, ignored, "unknown collections must be counted under one label")
	require.Greater(t, len(counted), 50)
	for name, of := range counted {
		require.LessOrEqual(t, len(of), most, "%s: %v", name, slices.Sorted(maps.Keys(of)))
	}
}

// documented is a name that one of the source documents requires, and where
// Weir exposes it: as series, as a field of /health, or as an alert.
type documented struct {
	document, name string
	metrics        []string // such as weir_queue_jobs{queue="backfill"}
	field          string   // of /health
	alert          string   // of the rules, with its severity and what its expression holds
	severity, expr string
}

// everyName returns every metric, field and threshold that the three documents
// name.
func everyName() []documented {
	return slices.Concat(namesOfDecision(), namesOfResume(), namesOfLayers())
}

func namesOfDecision() []documented {
	const of = "adr-005-jetstream-firehose"
	return []documented{
		{document: of, name: "WebSocket connection uptime (%)", metrics: []string{`weir_stream_connected`}},
		{document: of, name: "Events processed per second (rate)", metrics: []string{`weir_consumer_events_total`}},
		{
			document: of, name: "Backfill queue depth (count)",
			metrics: []string{`weir_queue_jobs{queue="backfill",state="available"}`, `weir_queue_jobs{queue="backfill",state="scheduled"}`},
		},
		{document: of, name: "Database size", metrics: []string{`weir_database_bytes`}},
		{
			document: of, name: "Latency: Jetstream event to database insert (p50, p99)",
			metrics: []string{`weir_consumer_event_age_seconds_bucket`, `weir_consumer_event_to_row_seconds_bucket`},
		},
		{
			document: of, name: "Cursor lag: current time - last cursor time",
			metrics: []string{`weir_stream_last_event_age_seconds`, `weir_stream_lag_seconds`},
		},
		{document: of, name: "status", field: "status"},
		{document: of, name: "websocket_connected", field: "websocket_connected"},
		{document: of, name: "last_event_seconds_ago", field: "last_event_seconds_ago"},
		{document: of, name: "cursor_time_us", field: "cursor_time_us"},
		{document: of, name: "follows_count", field: "follows_count"},
		{document: of, name: "backfill_queue_depth", field: "backfill_queue_depth"},
		{
			document: of, name: "WebSocket disconnected > 5 minutes",
			metrics: []string{`weir_stream_state_seconds`, `weir_stream_state{state="reconnecting"}`}, alert: "WeirDisconnected",
			severity: "critical", expr: "> 300",
		},
		{
			document: of, name: "No events received > 2 minutes", metrics: []string{`weir_stream_state{state="stalled"}`}, alert: "WeirNoEvents",
			severity: "critical", expr: `state="stalled"`,
		},
		{
			document: of, name: "Backfill queue > 50 items", metrics: []string{`weir_queue_jobs{queue="backfill"}`}, alert: "WeirBackfillsWait",
			severity: "warning", expr: "> 50",
		},
		{
			document: of, name: "Database size > 3 GB", metrics: []string{`weir_database_limit_bytes`}, alert: "WeirDatabaseLarge",
			severity: "warning", expr: "3 * 1024 ^ 3",
		},
		{
			document: of, name: "Failed reconnects > 10 attempts", metrics: []string{`weir_stream_failed_tries`}, alert: "WeirReconnectsFail",
			severity: "warning", expr: "> 10",
		},
	}
}

func namesOfResume() []documented {
	const of = "jetstream-reconnection-and-resume"
	return []documented{
		{
			document: of, name: "indexer_reconnection_attempts_total",
			metrics: []string{`weir_source_connects_total{outcome="accepted"}`, `weir_source_connects_total{outcome="failed"}`},
		},
		{document: of, name: "indexer_reconnection_success_total", metrics: []string{`weir_source_connects_total{outcome="accepted"}`}},
		{
			document: of, name: "indexer_pending_messages",
			metrics: []string{`weir_consumer_buffer_bytes`, `weir_queue_jobs{queue="process",state="available"}`},
		},
		{
			document: of, name: "indexer_processing_lag_seconds",
			metrics: []string{`weir_stream_lag_seconds`, `weir_consumer_event_age_seconds_count`},
		},
		{
			document: of, name: "max reconnection attempts reached - alerting required",
			metrics: []string{`weir_source_failed_tries`, `weir_stream_failed_tries`}, alert: "WeirReconnectsFail", severity: "warning",
		},
	}
}

func namesOfLayers() []documented {
	const of = "layers-firehose-ingestion-pipeline"
	return []documented{
		{
			document: of, name: "layers_firehose_cursor_lag_seconds",
			metrics: []string{`weir_stream_last_event_age_seconds`, `weir_stream_lag_seconds`},
		},
		{
			document: of, name: "layers_firehose_events_processed_total{collection}",
			metrics: []string{`weir_consumer_events_total{collection="app.bsky.feed.post",kind="write"}`},
		},
		{
			document: of, name: "layers_firehose_events_filtered_total",
			metrics: []string{`weir_consumer_events_total{collection="other",kind="ignored"}`},
		},
		{document: of, name: "layers_firehose_validation_failures_total{stage}", metrics: []string{
			`weir_consumer_dead_lettered_total{stage="decode"}`, `weir_consumer_dead_lettered_total{stage="commit"}`,
			`weir_projector_dead_lettered_total{stage="process"}`,
		}},
		{document: of, name: "layers_firehose_queue_depth{queue}", metrics: []string{
			`weir_queue_jobs{queue="process"}`, `weir_queue_jobs{queue="network"}`, `weir_queue_jobs{queue="backfill"}`,
			`weir_queue_jobs{queue="maintenance"}`, `weir_queue_jobs{queue="alerts"}`,
		}},
		{document: of, name: "DLQ inflow", metrics: []string{
			`weir_dead_letters_new`, `weir_dead_letters{stage="decode"}`, `weir_dead_letters{stage="commit"}`, `weir_dead_letters{stage="job"}`,
		}},
		{document: of, name: "cursor_lag_seconds > 60", alert: "WeirLag", severity: "warning", expr: "weir_stream_lag_seconds) > 60"},
		{
			document: of, name: "cursor_lag_seconds > 300", metrics: []string{`weir_lag_limit_seconds`}, alert: "WeirLagCritical",
			severity: "critical", expr: "vector(300)",
		},
		{
			document: of, name: "queue_depth > 10000 (any queue)", metrics: []string{`weir_queue_limit_jobs`}, alert: "WeirQueueDeep",
			severity: "warning", expr: "vector(10000)",
		},
		{
			document: of, name: "validation_failures_total spike", metrics: []string{`weir_dead_letters_new`}, alert: "WeirDeadLetters",
			severity: "warning", expr: "weir_dead_letters_new) > 10",
		},
	}
}

// TestEveryDocumentedMetricIsExposed shows that a running Weir, its health or
// its rules expose every name of the documents.
func TestEveryDocumentedMetricIsExposed(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := followNetwork(t, 20)
	database := schematest.NewURL(t)
	env := append(reads(n, database), "WEIR_JETSTREAM=ws://127.0.0.1:1/subscribe,"+n.URL()) // the first endpoint fails
	serve := start(t, env, "serve")
	at := serve.opsURL(t)
	stop := live(t, n, 100)
	defer stop()
	n.Inject([]byte(`{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":` + fmt.Sprint(time.Now().UnixMicro()) +
		`,"kind":"commit","commit":{"rev":"3mptdaeh36222","operation":"create","collection":"com.example.thing","rkey":"x",` +
		`"record":{"$type":"com.example.thing"},"cid":"bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa"}}`))
	rules, err := os.ReadFile(rulesFile)
	require.NoError(t, err)
	_, report := getOps(t, at+"/health", "")
	for _, d := range everyName() {
		about := d.document + ": " + d.name
		require.True(t, d.metrics != nil || d.field != "" || d.alert != "", about)
		for _, wanted := range d.metrics {
			eventually.True(t, func() bool { return exposes(scrape(t, at), wanted) }, 50*time.Millisecond, "%s: nothing is %s", about, wanted)
		}
		if d.field != "" {
			require.Regexp(t, `(?m)"`+d.field+`":`, report, about)
		}
		if d.alert != "" {
			rule := regexp.MustCompile(`(?s)- alert: ` + d.alert + `\n.*?severity: (\w+)`).FindStringSubmatch(string(rules))
			require.NotNil(t, rule, about)
			require.Equal(t, d.severity, rule[1], about)
			require.Contains(t, rule[0], d.expr, about)
		}
	}
}

// exposes reports whether a selector's series is among those scraped.
func exposes(all []series, selector string) bool {
	name, labels, _ := strings.Cut(selector, "{")
	wanted := label.FindAllStringSubmatch(labels, -1)
	return slices.ContainsFunc(all, func(s series) bool {
		return s.name == name && !slices.ContainsFunc(wanted, func(l []string) bool { return s.labels[l[1]] != l[2] })
	})
}
