package workers

import (
	"cmp"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
)

// TestMessagesThatFailAtFirst shows that such messages are retried, snoozed, or
// given up with a reason that never contains the webhook's address.
func TestMessagesThatFailAtFirst(t *testing.T) {
	t.Parallel()
	status := func(codes ...int) func(int, http.ResponseWriter, *http.Request) {
		return func(i int, w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(codes[min(i, len(codes)-1)])
			io.WriteString(w, strings.Repeat("no room ", 100_000)) // the sender does not read all of it
		}
	}
	for name, c := range map[string]struct {
		answer            func(int, http.ResponseWriter, *http.Request)
		tries, most       int
		state, why, where string
		patience          time.Duration // 0 means longer than a response takes
	}{
		"500 and then well": {status(500, 200), 2, 8, "completed", "returned 500", "attempt = 2", 0},
		"429 and then well": {
			status(429, 204), 2, 8, "completed", "", "attempt = 1 AND finalized_at - created_at > interval '1 second'", 0,
		},
		"500 for ever":    {status(500), 2, 2, "discarded", "returned 500", "true", 0},
		"no such webhook": {status(404), 1, 8, "cancelled", `returned 404: \"no room`, "true", 0},
		"moved":           {status(302), 1, 8, "cancelled", "returned 302", "true", 0},
		"hangs":           {hangs, 2, 8, "completed", "did not respond within 300ms", "attempt >= 2", 300 * time.Millisecond},
		// would never complete if this counted as a failure
		"hangs in its response":   {hangsLater, 1, 8, "completed", "", "true", 300 * time.Millisecond},
		"falls, and stands again": {falls, 2, 8, "completed", "EOF", "attempt = 2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &rig{t: t, pool: schematest.New(t)}
			h := newHook(t, c.answer)
			client := alerting(t, r.pool, h.URL, func(w *Webhook) { w.client.Timeout = cmp.Or(c.patience, w.client.Timeout) })
			_, err := client.Insert(t.Context(), jobs.SendAlert{Name: "WeirLag", At: time.Now()},
				&river.InsertOpts{MaxAttempts: c.most + jobs.Deaths})
			require.NoError(t, err)
			r.moreChecks(3) // whatever the webhook does
			const sent = ` FROM river_job WHERE kind = 'send_alert' AND args ->> 'name' = 'WeirLag'`
			r.becomes(1, `SELECT count(*)`+sent+` AND state = $1`, c.state)
			if c.patience == 0 {
				require.Len(t, h.got(), c.tries)
			}
			require.Equal(t, 1, r.count(`SELECT count(*)`+sent+` AND `+c.where))
			var reasons string
			require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT coalesce(array_to_json(errors)::text, '')`+sent).Scan(&reasons))
			require.Contains(t, strings.ReplaceAll(reasons, `\\\"`, `\"`), c.why)
			require.NotContains(t, reasons, "sesame")
			require.Less(t, len(reasons), 3000)
		})
	}
}

func hangs(i int, _ http.ResponseWriter, r *http.Request) {
	if i == 0 {
		<-r.Context().Done()
	}
}

func hangsLater(_ int, w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	<-r.Context().Done()
}

func falls(i int, _ http.ResponseWriter, _ *http.Request) {
	if i == 0 {
		panic(http.ErrAbortHandler)
	}
}

// TestHangingWebhookBlocksNoOtherJob shows that while every worker of the queue
// hangs, the checks and the other queues continue.
func TestHangingWebhookBlocksNoOtherJob(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := &rig{t: t, pool: schematest.New(t)}
	h := newHook(t, func(_ int, _ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	client := alerting(t, r.pool, h.URL, func(w *Webhook) { w.client.Timeout = time.Second })
	for range 200 { // more than can be sent during the test
		_, err := client.Insert(t.Context(), jobs.SendAlert{Name: "WeirLag", At: time.Now()}, nil)
		require.NoError(t, err)
	}
	eventually.True(t, func() bool { return len(h.got()) >= 4 }, 20*time.Millisecond)
	_, err := client.Insert(t.Context(), readPosts{}, nil)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'read_posts' AND state = 'completed'`)
	require.Positive(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND state IN ('running', 'available')`))
	r.moreChecks(2)
}

func TestOldMessageIsNotSent(t *testing.T) {
	t.Parallel()
	w := &SendAlert{now: time.Now}
	err := w.Work(t.Context(), &river.Job[jobs.SendAlert]{Args: jobs.SendAlert{At: time.Now().Add(-25 * time.Hour)}})
	require.Equal(t, permanent, classify(err))
}

// TestRetryAfter shows that the wait is bounded, whatever a server requests.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 7, 4, 12, 0, 0, 0, time.UTC)
	w := &SendAlert{now: func() time.Time { return now }}
	for header, want := range map[string]time.Duration{
		"": 30 * time.Second, "7": 7 * time.Second, "0.3": time.Second, "-5": time.Second, "1e300": time.Hour, "NaN": 30 * time.Second,
		"soon":                          30 * time.Second,
		"Sat, 04 Jul 2026 12:02:00 GMT": 2 * time.Minute, "Sat, 04 Jul 2020 12:02:00 GMT": time.Second,
	} {
		require.Equal(t, want, w.retryAfter(http.Header{"Retry-After": {header}}), header)
	}
}

// TestFormats shows that each service gets its format, and that text from
// strangers cannot add markup.
func TestFormats(t *testing.T) {
	t.Parallel()
	fired := jobs.SendAlert{
		Name: "WeirLag", Severity: "warning", Message: "refused by <!channel> & co", Hint: "weir status", Since: time.Unix(0, 0),
		At: time.Unix(60, 0),
	}
	for address, want := range map[string]string{
		"https://hooks.slack.com/services/x": `{"text":"WARNING: WeirLag. Now: refused by &lt;!channel&gt; &amp; co. Since 1970-01-01 ` +
			`00:00:00 UTC. Hint at: weir status."}`,
		"https://discord.com/api/webhooks/x/y": `{"allowed_mentions":{"parse":[]},` +
			`"content":"WARNING: WeirLag. Now: refused by <!channel> & co. Since 1970-01-01 00:00:00 UTC. Hint at: weir status."}`,
		"http://127.0.0.1:1/": `{"name":"WeirLag","severity":"warning","message":"refused by <!channel> & co","hint":"weir status",` +
			`"since":"1970-01-01T00:00:00Z","at":"1970-01-01T00:01:00Z"}`,
	} {
		h, err := NewWebhook(address, "")
		require.NoError(t, err)
		fired.Since, fired.At = fired.Since.UTC(), fired.At.UTC()
		body, err := h.body(fired)
		require.NoError(t, err)
		require.JSONEq(t, want, string(body))
	}
	h, err := NewWebhook("https://proxy.example/", FormatDiscord)
	require.NoError(t, err)
	fired.Resolved, fired.Message = true, strings.Repeat("é", 5000)
	body, err := h.body(fired)
	require.NoError(t, err)
	var message struct{ Content string }
	require.NoError(t, json.Unmarshal(body, &message))
	require.Len(t, []rune(message.Content), 2000)
	require.Contains(t, message.Content, "Resolved: WeirLag")
	for _, wrong := range []string{"sesame", "ftp://sesame/", "https:///sesame", "https://u:sesame@[", "://sesame"} {
		_, err := NewWebhook(wrong, "")
		require.Error(t, err)
		require.NotContains(t, err.Error(), "sesame")
	}
}
