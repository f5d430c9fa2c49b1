package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

var opsAddress = regexp.MustCompile(`"operating","url":"(http://[^"]+)/health"`)

// opsURL is the URL of the process's ops listener.
func (p *process) opsURL(t testing.TB) string {
	t.Helper()
	var at []string
	eventually.True(t, func() bool {
		at = opsAddress.FindStringSubmatch(p.stderr.String())
		return at != nil
	}, 20*time.Millisecond)
	return at[1]
}

// getOps requests a page of the ops listener, with or without a token.
func getOps(t testing.TB, url, token string) (code int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	raw, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(raw)
}

// reported returns the health. On a busy machine the database may need longer than the few seconds
// after which /health reports that it is down, so reported asks again.
func reported(t testing.TB, opsURL string) (r health.Report, code int) {
	t.Helper()
	eventually.True(t, func() bool {
		var body string
		code, body = getOps(t, opsURL+"/health", "")
		require.NoError(t, json.Unmarshal([]byte(body), &r), body)
		return r.State != health.StateUnknown
	}, 20*time.Millisecond)
	return r, code
}

// responds waits until a page of the ops listener has a status: see reported.
func responds(t testing.TB, url string, status int) (body string) {
	t.Helper()
	eventually.True(t, func() bool {
		var code int
		code, body = getOps(t, url, "")
		return code == status
	}, 20*time.Millisecond, "the status of %s is never %d: %s", url, status, &body)
	return body
}

// measured returns the metrics, those of the database included: see reported.
func measured(t testing.TB, opsURL, token string) (page string) {
	t.Helper()
	eventually.True(t, func() bool {
		_, page = getOps(t, opsURL+"/metrics", token)
		return strings.Contains(page, "\nweir_database_up 1\n")
	}, 20*time.Millisecond, "the database does not respond")
	return page
}

// passes waits until `weir healthcheck` succeeds: see reported.
func passes(t *testing.T, env []string, args ...string) {
	t.Helper()
	eventually.True(t, func() bool {
		_, _, code := weir(t, env, append([]string{"healthcheck"}, args...)...)
		return code == 0
	}, 20*time.Millisecond)
}

// becomes waits until the health has a state, and returns the report.
func becomes(t testing.TB, opsURL, state string) health.Report {
	t.Helper()
	var r health.Report
	eventually.True(t, func() bool {
		r, _ = reported(t, opsURL)
		return r.State == state
	}, 20*time.Millisecond, "the state is never %s", state)
	return r
}

// TestHealthReportsTheState covers a live stream, a quiet one, a process that
// waits for the lease, and an unreachable network.
func TestHealthReportsTheState(t *testing.T) {
	t.Parallel()
	n := network(t, 2000)
	database := schematest.NewURL(t)
	env := keeping(reads(n, database))
	serve := start(t, env, "serve")
	at := serve.opsURL(t)
	responds(t, at+"/livez", http.StatusOK)

	stop := live(t, n, 50)
	var r health.Report
	var code int
	eventually.True(t, func() bool {
		r, code = reported(t, at)
		return r.State == "live" && r.LastEventSecondsAgo != nil // the events before the start are old
	}, 20*time.Millisecond, "the state is never live with an event stored")
	require.Equal(t, health.Healthy, r.Status, "%+v", r.Conditions)
	require.Equal(t, http.StatusOK, code)
	require.True(t, r.WebsocketConnected)
	require.GreaterOrEqual(t, *r.LastEventSecondsAgo, 0.0)
	require.Positive(t, *r.CursorTimeUS)
	var fields map[string]any
	_, body := getOps(t, at+"/health", "")
	require.NoError(t, json.Unmarshal([]byte(body), &fields))
	for _, name := range []string{
		"status", "websocket_connected", "last_event_seconds_ago", "cursor_time_us", "follows_count", "backfill_queue_depth",
	} {
		require.Contains(t, fields, name)
	}
	responds(t, at+"/readyz", http.StatusOK)

	standby := start(t, env, "consume")
	becomes(t, standby.opsURL(t), health.StateWaiting)

	stop()
	r = becomes(t, at, "quiet")
	require.Equal(t, health.Healthy, r.Status)

	require.Contains(t, succeed(t, env, "status"), "healthy: quiet")
	listen := append(env, "WEIR_OPS_LISTEN="+strings.TrimPrefix(at, "http://"))
	passes(t, listen)
	passes(t, listen, "--ready")

	n.Stop()
	r = becomes(t, at, health.StateReconnecting)
	require.False(t, r.WebsocketConnected)
	require.NoError(t, n.Restart())
	becomes(t, at, "quiet")

	stopServe(t, serve)
	becomes(t, standby.opsURL(t), "quiet")
	stopServe(t, standby)
	require.Contains(t, succeed(t, env, "status"), "unhealthy: no consumer is running")
	_, stderr, code := weir(t, listen, "healthcheck")
	require.NotZero(t, code)
	require.Contains(t, stderr, "no response")
}

// TestOpsListenerWithoutADatabase shows that the remaining endpoints report
// what is missing, and that everything is healthy once the database is back.
func TestOpsListenerWithoutADatabase(t *testing.T) {
	t.Parallel()
	n := network(t, 500)
	server := schematest.Server(t)
	env := append(reads(n, server.URL("weir")), "WEIR_OPS_TOKEN=open sesame")
	succeed(t, env, "migrate")
	serve := start(t, env, "serve")
	at := serve.opsURL(t)
	becomes(t, at, "quiet")

	for _, guarded := range []string{"/metrics", "/debug/pprof/heap"} {
		code, body := getOps(t, at+guarded, "")
		require.Equal(t, http.StatusUnauthorized, code)
		require.Contains(t, body, "WEIR_OPS_TOKEN")
		code, _ = getOps(t, at+guarded, "open sesam")
		require.Equal(t, http.StatusUnauthorized, code)
		code, _ = getOps(t, at+guarded, "open sesame")
		require.Equal(t, http.StatusOK, code)
	}

	require.NoError(t, server.Crash(t.Context()))
	code, body := getOps(t, at+"/health", "")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Contains(t, body, "WeirDatabaseDown")
	code, body = getOps(t, at+"/readyz", "")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.NotEqual(t, "ok\n", body)
	code, body = getOps(t, at+"/metrics", "open sesame")
	require.Equal(t, http.StatusOK, code)
	require.Contains(t, body, "\nweir_database_up 0\n")
	require.Contains(t, body, "\nweir_consumer_batches_total{stream=\"jetstream\"} ", "metrics of the process are still exposed")
	code, _ = getOps(t, at+"/livez", "")
	require.Equal(t, http.StatusOK, code, "a restart would not help")

	require.NoError(t, server.Resume(t.Context()))
	becomes(t, at, "quiet")
	measured(t, at, "open sesame")

	pool := open(t, server.URL("weir"))
	_, err := pool.Exec(t.Context(), `DELETE FROM weir_migration WHERE version = (SELECT max(version) FROM weir_migration)`)
	require.NoError(t, err)
	eventually.True(t, func() bool {
		code, body = getOps(t, at+"/readyz", "")
		return code == http.StatusServiceUnavailable && strings.Contains(body, "weir migrate")
	}, 20*time.Millisecond)
}

// TestBackpressure shows that a consumer without workers pauses the stream when
// the queue is full, reports this, and misses nothing.
func TestBackpressure(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := network(t, 1500)
	database := schematest.NewURL(t)
	pool := open(t, database)
	env := append(keeping(reads(n, database)), "WEIR_QUEUE_LIMIT=20", "WEIR_BATCH_EVENTS=10", "WEIR_BATCH_INTERVAL=10ms")
	consume := start(t, env, "consume")
	at := consume.opsURL(t)
	r := becomes(t, at, "paused by backpressure")
	require.False(t, r.WebsocketConnected)
	require.Contains(t, r.Streams[0].Detail, "more workers")
	require.Contains(t, succeed(t, env, "status"), "WeirQueueDeep")
	n.Play(500)
	waiting := func() int {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE queue = 'process' AND state = 'available'`)
	}
	require.Greater(t, waiting(), 20)

	work := start(t, env, "work")
	becomes(t, at, "quiet")
	readsAll(t, pool, n)
	finishes(t, 20*time.Millisecond, func() (int, error) { return unprocessed(pool) }, "not everything is processed")
	oracle := fold(n.Log().Entries())
	problems, err := oracle.problems(t.Context(), pool, time.Now())
	require.NoError(t, err)
	require.Empty(t, problems, strings.Join(problems, "\n"))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM gaps`))
	for _, p := range []*process{work, consume} {
		stopServe(t, p)
	}
}

// lag is the stream's lag in the metrics.
func lag(t testing.TB, opsURL string) float64 {
	t.Helper()
	page := measured(t, opsURL, "")
	found := regexp.MustCompile(`(?m)^weir_stream_lag_seconds\{stream="jetstream"\} (\S+)$`).FindStringSubmatch(page)
	require.NotNil(t, found, page)
	seconds, err := strconv.ParseFloat(found[1], 64)
	require.NoError(t, err)
	return seconds
}

// TestFarBehindIsNotReady shows that the lag grows while nothing is read,
// because of backpressure or an unreachable network. Beyond the limit the lag
// is reported and the consumer is not ready, until it has caught up.
func TestFarBehindIsNotReady(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	const limit = 5
	n := network(t, 1000) // events of the last hour
	env := append(keeping(reads(n, schematest.NewURL(t))), fmt.Sprintf("WEIR_LAG_LIMIT=%ds", limit), "WEIR_QUEUE_LIMIT=20",
		"WEIR_BATCH_EVENTS=10", "WEIR_BATCH_INTERVAL=10ms")
	consume := start(t, env, "consume")
	at := consume.opsURL(t)
	behind := func(state string) {
		t.Helper()
		becomes(t, at, state)
		lowest := lag(t, at) // events that were read before are still committed
		eventually.True(t, func() bool {
			now := lag(t, at)
			lowest = min(lowest, now)
			return now > lowest+1 && now > limit+1
		}, 50*time.Millisecond, "the lag does not grow")
		says := regexp.MustCompile(fmt.Sprintf(`stream jetstream is \S+ behind, more than %ds`, limit))
		eventually.True(t, func() bool { return says.MatchString(responds(t, at+"/readyz", http.StatusServiceUnavailable)) }, 20*time.Millisecond)
		r, code := reported(t, at)
		require.Equal(t, state, r.State)
		require.Equal(t, http.StatusServiceUnavailable, code)
		require.Contains(t, fmt.Sprint(r.Conditions), "WeirLagCritical")
		require.Contains(t, measured(t, at, ""), `weir_condition{name="WeirLagCritical",severity="critical"} 1`)
	}
	ready := func() {
		t.Helper()
		becomes(t, at, "quiet")
		responds(t, at+"/readyz", http.StatusOK)
	}
	behind("paused by backpressure")
	start(t, env, "work")
	ready()
	n.Stop()
	behind(health.StateReconnecting)
	require.NoError(t, n.Restart())
	ready()
}

// TestAddressInUse shows that the default address falls back to another one,
// and that a configured address fails.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	n := network(t, 10)
	env := reads(n, schematest.NewURL(t))
	first := start(t, env, "work")
	taken := strings.TrimPrefix(first.opsURL(t), "http://")
	_, stderr, code := weir(t, append(env, "WEIR_OPS_LISTEN="+taken), "work")
	require.NotZero(t, code)
	require.Contains(t, stderr, "WEIR_OPS_LISTEN="+taken)
}
