package workers

import (
	"crypto/rand"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestAlertIsSentOncePerStateAndDoesNotFlap runs checks a minute apart. Each letter of
// a case is a check with or without the condition.
func TestAlertIsSentOncePerStateAndDoesNotFlap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		condition, checks string
		want              string // the checks at which a message is sent
	}{
		"shorter than its delay":     {"WeirLag", "yn.......", "         "},
		"long enough, then resolved": {"WeirLag", "yyyynnnnnnn", " F      R   "},
		"briefly absent":             {"WeirLag", "yyynyynnynnnnnn", " F           R "},
		"at once":                    {"WeirDeadLetters", "ynnnnnnyy", "F    R F"},
		"ten minutes":                {"WeirGapOpen", "yyyyyyyyyyyyy", "          F  "},
		"ten minutes with a break":   {"WeirGapOpen", "yyyynyyyyyyyyyy", "               "},
		"twice":                      {"WeirLag", "yynnnnnnyyy", " F    R  F "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var alerts []health.Alert
			var sent strings.Builder
			for i, check := range c.checks {
				var holds []health.Condition
				if check == 'y' {
					holds = []health.Condition{{Name: c.condition, Severity: health.Warning, Message: "x", FireAfter: health.FireAfter()[c.condition]}}
				}
				alerts = update(alerts, holds, time.Unix(0, 0).Add(time.Duration(i)*time.Minute))
				word := ' '
				for j := range alerts {
					if message, due := pendingMessage(&alerts[j]); due {
						alerts[j].LastNotified = notifiedState(message)
						word = 'F'
						if message.Resolved {
							word = 'R'
						}
					}
				}
				sent.WriteRune(word)
			}
			require.Equal(t, strings.TrimRight(c.want, " "), strings.TrimRight(sent.String(), " "))
			require.LessOrEqual(t, len(alerts), 1)
		})
	}
}

// TestPendingAlertStartsAgainAfterAStop shows that a pending alert starts again
// after all processes stopped: its condition may not have held meanwhile.
func TestPendingAlertStartsAgainAfterAStop(t *testing.T) {
	t.Parallel()
	holds := []health.Condition{{Name: "WeirNoConsumer", FireAfter: health.FireAfter()["WeirNoConsumer"]}}
	evening := time.Unix(0, 0)
	alerts := update(nil, holds, evening)
	alerts = update(alerts, holds, evening.Add(8*time.Hour))
	require.Nil(t, alerts[0].FiredAt)
	require.Equal(t, evening.Add(8*time.Hour), alerts[0].Since)
}

// hook is a webhook on loopback, controlled by a test.
type hook struct {
	*httptest.Server
	mu       sync.Mutex
	messages []string
}

// newHook returns answer(i) to request i, from 0.
func newHook(t *testing.T, answer func(i int, w http.ResponseWriter, r *http.Request)) *hook {
	t.Helper()
	h := &hook{}
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if strings.Contains(string(body), "WeirNoConsumer") { // holds in these tests, and fires after a minute
			return
		}
		h.mu.Lock()
		i := len(h.messages)
		h.messages = append(h.messages, string(body))
		h.mu.Unlock()
		answer(i, w, r)
	}))
	t.Cleanup(h.Close)
	return h
}

func ok(int, http.ResponseWriter, *http.Request) {}

func (h *hook) got() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]string(nil), h.messages...)
}

// alerting runs a worker that checks twenty times a second and sends JSON to a
// webhook whose path is a secret.
func alerting(t *testing.T, pool *pgxpool.Pool, url string, change func(*Webhook)) *Client {
	t.Helper()
	cfg := Config{
		Shared: Shared{Pool: pool, Projections: registered(t, pool), Logger: slog.New(slog.DiscardHandler)},
		ID:     rand.Text(), Alerting: Alerting{AlertInterval: 50 * time.Millisecond},
	}
	if url != "" {
		var err error
		cfg.Webhook, err = NewWebhook(url+"/sesame", "")
		require.NoError(t, err)
		if change != nil {
			change(cfg.Webhook)
		}
	}
	client, err := New(withPosts(cfg))
	require.NoError(t, err)
	running(t, client)
	return client
}

// letters stores dead letters, so that WeirDeadLetters holds.
const letters = `
INSERT INTO dead_letters (key, stage, cause, raw, raw_bytes, first_seen, last_seen)
SELECT sha256(n::text::bytea), 'decode', 'test', '', 0, now(), now() FROM generate_series(1, 11) AS n`

const checks = `SELECT count(*) FROM river_job WHERE kind = 'check_alerts' AND state = 'completed'`

// moreChecks waits until n more checks have ended.
func (r *rig) moreChecks(n int) {
	r.t.Helper()
	before := r.count(checks)
	eventually.True(r.t, func() bool { return r.count(checks) >= before+n }, 20*time.Millisecond)
}

// TestTwoWorkersSendOneMessage shows that two workers send one message when an
// alert fires, and one when it is resolved.
func TestTwoWorkersSendOneMessage(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, pool: schematest.New(t)}
	h := newHook(t, ok)
	alerting(t, r.pool, h.URL, nil)
	alerting(t, r.pool, h.URL, nil)
	r.execute(letters)
	eventually.True(t, func() bool { return len(h.got()) == 1 }, 20*time.Millisecond)
	require.Contains(t, h.got()[0], `"name":"WeirDeadLetters","severity":"warning","message":"11 dead letters within 10m0s"`)
	r.moreChecks(5)
	require.Len(t, h.got(), 1)
	require.Equal(t, 1, r.count(`
		SELECT count(*) FROM alerts WHERE name = 'WeirDeadLetters' AND fired_at IS NOT NULL AND resolved_at IS NULL
		    AND last_notified = 'fired'`))

	r.execute(`DELETE FROM dead_letters`)
	r.moreChecks(3) // no check that still saw the dead letters is running
	require.Len(t, h.got(), 1, "a condition that ends for a moment must not be resolved")
	r.execute(`UPDATE alerts SET seen_at = seen_at - interval '5 minutes' WHERE name = 'WeirDeadLetters'`)
	eventually.True(t, func() bool { return len(h.got()) == 2 }, 20*time.Millisecond)
	require.Contains(t, h.got()[1], `"resolved":true`)
	r.moreChecks(5)
	require.Len(t, h.got(), 2)
	require.Equal(t, 2, r.count(`SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND args ->> 'name' = 'WeirDeadLetters'`))
}

// TestAlertsAreStoredWithoutAWebhook shows that the first worker with a webhook
// sends the stored messages.
func TestAlertsAreStoredWithoutAWebhook(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, pool: schematest.New(t)}
	r.execute(letters)
	silent := alerting(t, r.pool, "", nil)
	r.becomes(1, `SELECT count(*) FROM alerts WHERE name = 'WeirDeadLetters' AND fired_at IS NOT NULL AND last_notified = ''`)
	r.moreChecks(3)
	require.Zero(t, r.count(`SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND args ->> 'name' = 'WeirDeadLetters'`))
	require.NoError(t, silent.StopAndCancel(t.Context()))
	h := newHook(t, ok)
	alerting(t, r.pool, h.URL, nil)
	eventually.True(t, func() bool { return len(h.got()) == 1 }, 20*time.Millisecond)
}
