package e2e

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links"
)

// pageData returns how many links and accounts a number of shares has.
func pageData(shares int) (links, accounts int) { return shares * 175 / 1000, shares * 148 / 1000 }

// fillPages stores a day of shares of links, with titles from their sharers: 175 links and 148
// accounts for 1,000 shares. Each shared link has two claims; one link has 30 of 1,000 shares. A
// thousand watches have a thousand members each. All shares are counted.
func fillPages(b *testing.B, pool *pgxpool.Pool, shares int) {
	b.Helper()
	links, accounts := pageData(shares)
	require.NoError(b, ranking.EnsureDays(b.Context(), pool, time.Now(), 7*24*time.Hour))
	conn, err := pool.Acquire(b.Context())
	require.NoError(b, err)
	defer conn.Release()
	for _, sql := range []struct {
		text string
		args []any
	}{
		{`SET session_replication_role = replica`, nil}, // without triggers: the shares are counted at the end
		{`
			INSERT INTO accounts (did, handle) SELECT 'did:plc:' || lpad(n::text, 24, '0'), 'user' || n || '.example'
			FROM generate_series(0, $1::int - 1) AS n`, []any{accounts}},
		{`
			INSERT INTO links (identity, url, site, first_seen)
			SELECT 'site' || n % 5000 || '.example/' || n, 'https://site' || n % 5000 || '.example/' || n, 'site' || n % 5000 || '.example',
			    now() FROM generate_series(1, $1::int) AS n`, []any{links}},
		{`
INSERT INTO claims (id, link_id, hash, url, site, title, description) OVERRIDING SYSTEM VALUE
SELECT 2 * l.id + k, l.id, decode(lpad(k::text, 32, '0'), 'hex'), l.url, l.site, repeat('A title ', 5 + k),
    repeat('A description. ', 10) FROM links AS l, generate_series(0, 1) AS k`, nil},
		{`
INSERT INTO shares (did, collection, rkey, how, shared_at, link_id, named_id, claim_id)
SELECT 'did:plc:' || lpad(account::text, 24, '0'), 'app.bsky.feed.post', tid_floor(at), 'post', at, link, link, 2 * link + n % 2
FROM (
    SELECT n, floor(random() * $3)::int AS account, CASE WHEN n % 33 = 0 THEN 1 ELSE 1 + floor(random() ^ 4 * $2)::int END AS link,
        now() - interval '1 day' * (n / $1::float8) AS at
    FROM generate_series(1, $1::int) AS n
) AS s
ON CONFLICT DO NOTHING`, []any{shares, links, accounts}},
		{`INSERT INTO watches (target, kind) SELECT 'w' || n || '.example', 'follows' FROM generate_series(1, 1000) AS n`, nil},
		{`
INSERT INTO watch_members (watch_id, did)
SELECT w.id, 'did:plc:' || lpad(((w.id * 7919 + k) % $1::int)::text, 24, '0') FROM watches AS w, generate_series(1, 1000) AS k`,
			[]any{accounts}},
		{`VACUUM ANALYZE`, nil},
		{`RESET session_replication_role`, nil},
	} {
		_, err := conn.Exec(b.Context(), sql.text, sql.args...)
		require.NoError(b, err, sql.text)
	}
	for more := true; more; {
		done, err := ranking.Count(b.Context(), pool, time.Now())
		require.NoError(b, err)
		more = done.More
	}
	_, err = conn.Exec(b.Context(), `VACUUM ANALYZE`)
	require.NoError(b, err)
}

// liven stores a hundred shares per second of the links of fillPages, and counts them every second,
// until the benchmark ends.
func liven(b *testing.B, pool *pgxpool.Pool, shares int) {
	b.Helper()
	const arrive = `
INSERT INTO shares (did, collection, rkey, how, shared_at, link_id, named_id, claim_id)
SELECT 'did:plc:' || lpad(account::text, 24, '0'), 'app.bsky.feed.post', tid_floor(at), 'post', at, link, link, 2 * link
FROM (
    SELECT clock_timestamp() + n * interval '1 millisecond' AS at, floor(random() * $2)::int AS account,
        CASE WHEN n = 1 THEN 1 ELSE 1 + floor(random() ^ 4 * $1)::int END AS link
    FROM generate_series(1, 5) AS n
) AS s
ON CONFLICT DO NOTHING`
	links, accounts := pageData(shares)
	ctx, stop := context.WithCancel(b.Context())
	ended := make(chan error, 1)
	go func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				ended <- nil
				return
			case <-tick.C:
			}
			_, err := pool.Exec(ctx, arrive, links, accounts)
			if err == nil && n%20 == 0 {
				_, err = ranking.Count(ctx, pool, time.Now())
			}
			if err != nil && ctx.Err() == nil {
				ended <- err
				return
			}
		}
	}()
	b.Cleanup(func() {
		stop()
		require.NoError(b, <-ended)
	})
}

// BenchmarkWholePage computes whole pages of 50 links, one after the other, with a thousand watches
// and -page-shares shares in a day (200,000), while shares arrive. It also reports the
// processor time of Postgres.
func BenchmarkWholePage(b *testing.B) {
	const turns = 300
	shares := cmp.Or(*pageShares, 200_000)
	if testing.Short() {
		shares = cmp.Or(*pageShares, 20_000)
	}
	_, pool := benchDatabase(b, benchServer(b))
	fillPages(b, pool, shares)
	liven(b, pool, shares)
	config := pool.Config()
	config.MaxConns = 1
	one, err := pgxpool.NewWithConfig(b.Context(), config)
	require.NoError(b, err)
	b.Cleanup(one.Close)
	var backend uint32
	require.NoError(b, one.QueryRow(b.Context(), `SELECT pg_backend_pid()`).Scan(&backend))
	// without a cache
	handler, err := web.Handler(web.Config{Parts: []web.Part{links.Part("")}, DB: one, Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(b, err)
	for _, view := range []string{"/", "/?window=1h", "/?window=24h", "/?window=7d", "/?sort=speed", "/?window=24h&watch=w1.example"} {
		b.Run("view="+view, func(b *testing.B) {
			for b.Loop() {
				times := make([]time.Duration, turns)
				began := schematest.CPU(b, backend)
				for i := range times {
					w, r := httptest.NewRecorder(), httptest.NewRequestWithContext(b.Context(), http.MethodGet, "http://localhost"+view, nil)
					r.RemoteAddr = fmt.Sprintf("10.0.%d.%d:1", i/250, i%250) // one address would exceed the rate limit
					at := time.Now()
					handler.ServeHTTP(w, r)
					times[i] = time.Since(at)
					require.Equal(b, http.StatusOK, w.Code)
					require.Equal(b, 50, strings.Count(w.Body.String(), `<li class="link"`))
				}
				b.ReportMetric(milliseconds(schematest.CPU(b, backend)-began)/turns, "cpu-ms")
				slices.Sort(times)
				b.ReportMetric(milliseconds(times[turns/2]), "p50-ms")
				b.ReportMetric(milliseconds(times[turns*99/100]), "p99-ms")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
}
