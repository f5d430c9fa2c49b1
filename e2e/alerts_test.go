package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
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
	messages := 0
	kill := make(chan *process, 1)
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if p, ok := <-kill; ok {
			p.kill()
		}
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(string(body), `"name":"WeirDatabaseLarge"`) {
			messages++
		}
	}))
	t.Cleanup(hook.Close)
	env := append(keeping(reads(n, database)), "WEIR_DATABASE_LIMIT=1", "WEIR_ALERT_WEBHOOK="+hook.URL+"/open/sesame",
		"WEIR_ALERT_INTERVAL=1s", "WEIR_LOG_LEVEL=debug")
	first := start(t, env, "work")
	kill <- first
	close(kill)
	<-first.exited
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM alerts WHERE name = 'WeirDatabaseLarge' AND last_notified = 'fired'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND state = 'running'`))

	rescued(t, pool, first)
	second := start(t, env, "work")
	const sent = `SELECT count(*) FROM river_job WHERE kind = 'send_alert' AND args ->> 'name' = 'WeirDatabaseLarge'`
	eventually.True(t, func() bool { return count(t, pool, sent+` AND state = 'completed'`) == 1 }, 20*time.Millisecond)
	mu.Lock()
	require.Equal(t, 2, messages)
	mu.Unlock()
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM alerts WHERE name = 'WeirDatabaseLarge'`))
	require.Equal(t, 1, count(t, pool, sent))
	stopServe(t, second)
	written := first.stderr.String() + second.stderr.String() + strings.Join(texts(t, pool, `SELECT j::text FROM river_job AS j`), "\n")
	require.NotContains(t, written, "sesame")
}
