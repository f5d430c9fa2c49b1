package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/eventually"
	"github.com/weir-social/weir/schema/schematest"
)

// TestKillBetweenAlertStateAndWebhook kills the process while the webhook reads
// its message. The next process sends the message about the same state again.
// No log contains the webhook's URL.
func TestKillBetweenAlertStateAndWebhook(t *testing.T) {
	t.Parallel()
	n := network(t, 10)
	database := schematest.NewURL(t)
	pool := open(t, database)
	var mu sync.Mutex
	var messages []string
	delivered := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(messages)
	}
	kill := make(chan *process, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		select {
		case p := <-kill:
			p.kill()
		default:
		}
		mu.Lock()
		messages = append(messages, string(body))
		mu.Unlock()
	}))
	t.Cleanup(hook.Close)
	env := append(reads(n, database), "WEIR_DATABASE_LIMIT=1", "WEIR_ALERT_WEBHOOK="+hook.URL+"/open/sesame", "WEIR_ALERT_INTERVAL=1s", "WEIR_LOG_LEVEL=debug")
	first := start(t, env, "work")
	kill <- first
	<-first.exited
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM alerts WHERE name = 'WeirDatabaseLarge' AND last_notified = 'fired'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND state = 'running'`))

	second := start(t, env, "work")
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND state = 'completed'`) == 1
	}, 20*time.Millisecond)
	require.Equal(t, 2, delivered())
	require.Contains(t, messages[1], `"name":"WeirDatabaseLarge"`)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM alerts WHERE name = 'WeirDatabaseLarge'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND args ->> 'name' = 'WeirDatabaseLarge'`))
	second.signal(syscall.SIGTERM)
	require.Zero(t, second.wait(t, time.Minute))
	written := first.stderr.String() + second.stderr.String() + strings.Join(texts(t, pool, `SELECT j::text FROM river_job AS j`), "\n")
	require.NotContains(t, written, "sesame")
}
