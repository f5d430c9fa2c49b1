package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/browsertest"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// TestOperatorsUseRiverUI shows that a browser that logs in with the token lists the queues, pauses and resumes one,
// reads a job's arguments, tags, errors and log, and cancels a job. Weir's own policy is enough for the page.
func TestOperatorsUseRiverUI(t *testing.T) {
	t.Parallel()
	n, database := network(t, 200), schematest.NewURL(t)
	pool := open(t, database)
	serve := start(t, append(reads(n, database), "WEIR_OPS_TOKEN=open sesame"), "serve")
	insert := func(sql string) (id int64) {
		require.NoError(t, pool.QueryRow(t.Context(), `
			INSERT INTO river_job (state, kind, queue, max_attempts, args, tags, scheduled_at) VALUES `+sql+` RETURNING id`).Scan(&id))
		return id
	}
	opsURL := serve.opsURL(t)
	failing := insert(`('available', 'of_nobody', 'network', 1, '{"subject": "<b>the argument</b>"}', '{a_tag}', now())`)
	later := insert(`('scheduled', 'sync_follows', 'network', 1, '{}', '{a_tag}', now() + interval '1 hour')`)
	state := func(id int64) string {
		var text string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT state FROM river_job WHERE id = $1`, id).Scan(&text))
		return text
	}
	eventually.True(t, func() bool { return state(failing) == "discarded" }, 20*time.Millisecond)

	u, err := url.Parse(opsURL)
	require.NoError(t, err)
	u.User = url.UserPassword("anyone", "open sesame")
	b := browsertest.Open(t, u.String())
	b.Show("/riverui/robots.txt") // logs in: a page whose address has a password may not call its API
	b.Base = opsURL
	refused := make(chan string, 100)
	listen(b, refused)
	shows := func(texts ...string) {
		t.Helper()
		for _, text := range texts {
			b.Until(fmt.Sprintf("document.body.textContent.includes(%q)", text))
		}
	}
	press := func(name string) {
		t.Helper()
		b.Until(fmt.Sprintf(`(() => { const e = [...document.querySelectorAll("button")].find((e) => e.innerText.trim() === %q || e.title === `+
			`%q || e.ariaLabel === %q); e?.click(); return !!e })()`, name, name, name))
	}
	b.Show("/riverui/queues")
	shows("process", "backfill", "network", "maintenance")
	b.Show("/riverui/queues/backfill")
	paused := func() bool {
		return count(t, pool, `SELECT count(*) FROM river_queue WHERE name = 'backfill' AND paused_at IS NOT NULL`) == 1
	}
	press("Pause")
	eventually.True(t, paused, 20*time.Millisecond)
	press("Resume")
	eventually.True(t, func() bool { return !paused() }, 20*time.Millisecond)

	b.Show(fmt.Sprintf("/riverui/jobs/%d", failing))
	shows("<b>the argument</b>", "a_tag", "job kind is not registered")
	var logged int64
	var text string
	eventually.True(t, func() bool {
		return pool.QueryRow(t.Context(), `
			SELECT id, substring(metadata -> 'river:log' -> 0 ->> 'log' FROM 'msg=(\w+)') FROM river_job
			WHERE state = 'completed' AND jsonb_array_length(metadata -> 'river:log') = 1 LIMIT 1`).Scan(&logged, &text) == nil
	}, 20*time.Millisecond)
	b.Show(fmt.Sprintf("/riverui/jobs/%d", logged))
	require.NotEmpty(t, text)
	shows(text)
	b.Show(fmt.Sprintf("/riverui/jobs/%d", later))
	press("Cancel")
	eventually.True(t, func() bool { return state(later) == "cancelled" }, 20*time.Millisecond)
	select {
	case what := <-refused:
		require.Fail(t, "the policy refuses a part of the page", what)
	default:
	}
}

// listen collects what the browser's policies refused.
func listen(b *browsertest.Tab, refused chan<- string) {
	b.Helper()
	require.NoError(b, chromedp.Listen(b.Context, func(event any) {
		if e, ok := event.(*log.EventEntryAdded); ok && e.Entry.Source == log.EntrySourceSecurity {
			refused <- e.Entry.Text
		}
	}))
}

// TestRiverUIIsForOperatorsOnly shows that nothing of River UI is reached without the token, that a page of another
// site changes nothing although the browser sends the token, and that a process without a token, or one that only reads
// streams, does not serve it.
func TestRiverUIIsForOperatorsOnly(t *testing.T) {
	t.Parallel()
	n, database := network(t, 50), schematest.NewURL(t)
	pool := open(t, database)
	body := `{"ids": ["1"]}`
	request := func(method, url, token string, headers ...string) int {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
		require.NoError(t, err)
		if method == http.MethodGet {
			r.Body, r.ContentLength = http.NoBody, 0
		}
		if token != "" {
			r.SetBasicAuth("anyone", token)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		response, err := http.DefaultTransport.RoundTrip(r)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, "nosniff", response.Header.Get("X-Content-Type-Options"), url)
		require.Contains(t, response.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'", url)
		return response.StatusCode
	}
	web := start(t, append(reads(n, database), "WEIR_OPS_TOKEN=open sesame"), "web")
	ui := web.opsURL(t) + "/riverui"
	paused := func() int { return count(t, pool, `SELECT count(*) FROM river_queue WHERE paused_at IS NOT NULL`) }
	_, err := pool.Exec(t.Context(), `INSERT INTO river_queue (name, updated_at) VALUES ('process', now()) ON CONFLICT DO NOTHING`)
	require.NoError(t, err)
	for _, token := range []string{"", "open sesam"} {
		for _, path := range []string{
			"", "/", "/queues", "/api/jobs", "/api/queues", "/api/states", "/api/health-checks/minimal", "/robots.txt", "/assets/none.js",
		} {
			require.Equal(t, http.StatusUnauthorized, request(http.MethodGet, ui+path, token), path)
		}
		require.Equal(t, http.StatusUnauthorized, request(http.MethodPut, ui+"/api/queues/process/pause", token))
		require.Equal(t, http.StatusUnauthorized, request(http.MethodPost, ui+"/api/jobs/delete", token))
	}
	require.Equal(t, http.StatusOK, request(http.MethodGet, ui+"/api/queues", "open sesame"))
	for _, foreign := range [][]string{
		{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://elsewhere.example"},
	} {
		require.Equal(t, http.StatusForbidden, request(http.MethodPut, ui+"/api/queues/process/pause", "open sesame", foreign...), foreign)
	}
	require.Zero(t, paused())
	require.Equal(t, http.StatusOK, request(http.MethodPut, ui+"/api/queues/process/pause", "open sesame", "Sec-Fetch-Site", "same-origin"))
	require.Equal(t, 1, paused())

	body = `{"ids": ["` + strings.Repeat("1", 64<<10) + `"]}`
	require.Equal(t, http.StatusRequestEntityTooLarge, request(http.MethodPost, ui+"/api/jobs/cancel", "open sesame"))

	work, consume := start(t, reads(n, database), "work"), start(t, append(reads(n, database), "WEIR_OPS_TOKEN=open sesame"), "consume")
	for _, other := range []*process{work, consume} {
		require.Equal(t, http.StatusNotFound, request(http.MethodGet, other.opsURL(t)+"/riverui/api/queues", "open sesame"))
	}
}
