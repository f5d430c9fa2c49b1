package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// rankedDatabase has 5 links. Link n has n sharers: one reposted it, the others posted it.
func rankedDatabase(t *testing.T) string {
	t.Helper()
	url := schematest.NewURL(t)
	pool := open(t, url)
	for _, sql := range []string{
		`
			INSERT INTO links (identity, url, site, title, first_seen, kept_sharers, kept_at)
			SELECT n || '.example', 'https://' || n || '.example/', n || '.example', 'Title ' || n, now(), 1, now()
			FROM generate_series(1, 5) AS n`,
		`INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			SELECT 'did:plc:' || m, 'c', m || '-' || n, n, n, CASE m WHEN n THEN 'repost' ELSE 'post' END, now() - interval '1 minute'
			FROM generate_series(1, 5) AS n, generate_series(1, 5) AS m WHERE m <= n`,
		`INSERT INTO accounts (did, handle) VALUES ('did:plc:4', 'four.example')`,
		`INSERT INTO watches (target) VALUES ('alice.example'), ('bob.example')`,
		`
			INSERT INTO watch_members (watch_id, did) SELECT w.id, 'did:plc:' || m FROM watches AS w, generate_series(1, 5) AS m
			WHERE w.target = 'alice.example' OR m = 5`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return url
}

// TestLinksAreMergedAndSplit merges and splits links by their ids and URLs. Errors say what to do.
func TestLinksAreMergedAndSplit(t *testing.T) {
	t.Parallel()
	env := []string{"DATABASE_URL=" + rankedDatabase(t)}
	trending := func() (all []string) {
		var page struct{ Links []ranking.TrendingLink }
		require.NoError(t, json.Unmarshal([]byte(succeed(t, env, "trending", "--json")), &page))
		for _, l := range page.Links {
			all = append(all, fmt.Sprint(l.ID, " ", l.Sharers))
		}
		return all
	}
	require.Equal(t, "link 4 counts as link 2\n", succeed(t, env, "link", "merge", "https://www.4.example", "2"))
	require.Equal(t, []string{"5 5", "2 4", "3 3", "1 1"}, trending(), "two of the four sharers shared both links")
	require.Equal(t, "link 5 counts as link 4\n", succeed(t, env, "link", "merge", "5", "http://4.example/"))
	require.Equal(t, []string{"2 5", "3 3", "1 1"}, trending())
	for args, says := range map[string]string{
		"merge 4 1":                        "link 4 is merged into link 2 already: undo that first with weir link split 4",
		"merge 2 4":                        "link 4 is merged into link 2 already: undo that first with weir link split 4",
		"merge 1 17":                       "link 17: there is no such link",
		"merge 1 https://unknown.example/": "there is no link https://unknown.example/: nobody shares it",
		"merge 1 nothing":                  `"nothing" is neither the id of a link nor its URL`,
		"split 1":                          "link 1: the link is not merged into another",
	} {
		_, stderr, code := weir(t, env, append([]string{"link"}, strings.Fields(args)...)...)
		require.Equal(t, 1, code, args)
		require.Contains(t, stderr, says)
	}
	traced := succeed(t, env, "trace", "https://5.example/")
	require.Contains(t, traced, "https://2.example/")
	require.Contains(t, traced, "post, named as https://5.example/ of")
	require.Equal(t, "link 4 counts for itself\n", succeed(t, env, "link", "split", "4"))
	require.Equal(t, []string{"4 5", "3 3", "2 2", "1 1"}, trending(), "a split link keeps the links that were merged into it")
	succeed(t, env, "link", "split", "https://5.example")
	require.Equal(t, []string{"5 5", "4 4", "3 3", "2 2", "1 1"}, trending())

	require.Equal(t, "blocked the domain 4.example\n", succeed(t, env, "block", "add", "www.4.Example"))
	require.Equal(t, "already blocked: the domain 4.example\n", succeed(t, env, "block", "add", "4.example"))
	require.Contains(t, succeed(t, env, "block", "add", "http://5.example/?utm_source=x"), "blocked the link ")
	require.Equal(t, []string{"3 3", "2 2", "1 1"}, trending())
	require.Regexp(t, `domain +4\.example +1 +4 `, succeed(t, env, "block", "list"))
	require.Contains(t, succeed(t, env, "trace", "https://5.example/"), "its link is blocked")
	succeed(t, env, "block", "remove", "https://5.example/")
	require.Equal(t, []string{"5 5", "3 3", "2 2", "1 1"}, trending())
	_, stderr, code := weir(t, env, "block", "remove", "did:plc:nobodynobodynobodynobody")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "is not blocked")
}

// TestMergeIsTriedAgain shows that a merge is retried when Postgres aborts it for a deadlock with
// the deletion of shares.
func TestMergeIsTriedAgain(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	at := rankedDatabase(t)
	conn, err := pgx.Connect(t.Context(), at)
	require.NoError(t, err)
	defer conn.Close(context.Background()) // the test is over
	other, err := pgx.Connect(t.Context(), at)
	require.NoError(t, err)
	defer other.Close(context.Background()) // the test is over
	tx, err := conn.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), `SET LOCAL deadlock_timeout = '10min'`) // so that Postgres aborts the merge
	require.NoError(t, err)
	// the share that the merge locks last
	_, err = tx.Exec(t.Context(), `DELETE FROM shares WHERE link_id = 4 AND ctid = (SELECT max(ctid) FROM shares WHERE link_id = 4)`)
	require.NoError(t, err)
	merged := make(chan string, 1)
	go func() {
		stdout, stderr, _ := weir(t, []string{"DATABASE_URL=" + at + "&deadlock_timeout=30s"}, "link", "merge", "4", "2")
		merged <- stdout + stderr
	}()
	eventually.True(t, func() bool { return schematest.Blocks(t, other, tx) }, 10*time.Millisecond)
	_, err = tx.Exec(t.Context(), `DELETE FROM shares WHERE link_id = 4`)
	require.NoError(t, err, "Postgres must abort the merge, not the deletion")
	require.NoError(t, tx.Commit(t.Context()))
	require.Equal(t, "link 4 counts as link 2\n", <-merged)
}

// TestTrendingHasTheOptionsOfTheAPI shows that `weir trending` has the API's options as flags of
// the same names.
func TestTrendingHasTheOptionsOfTheAPI(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	env := []string{"DATABASE_URL=" + rankedDatabase(t)}
	for args, want := range map[string]string{
		"":                               "5 5, 4 4, 3 3, 2 2, 1 1",
		"--window 1h --sort newest":      "5 5, 4 4, 3 3, 2 2, 1 1",
		"--sort speed --limit 2":         "5 5, 4 4",
		"--at-least 4":                   "5 5, 4 4",
		"--ways post":                    "5 4, 4 3, 3 2, 2 1",
		"--domain 3.example":             "3 3",
		"--text 3.example":               "3 3",
		"--by did:plc:4":                 "5 5, 4 4",
		"--by @four.example --ways post": "5 4",
		"--by did:plc:4 --domain 4.example --watch bob.example": "",
		"--watch bob.example":                              "5 1",
		"--watch bob.example --degree second --window 24h": "",
	} {
		var page struct{ Links []ranking.TrendingLink }
		require.NoError(t, json.Unmarshal([]byte(succeed(t, env, append([]string{"trending", "--json"}, strings.Fields(args)...)...)), &page),
			args)
		var got []string
		for _, l := range page.Links {
			got = append(got, strings.TrimPrefix(l.Title, "Title ")+" "+string(rune('0'+l.Sharers)))
		}
		require.Equal(t, want, strings.Join(got, ", "), args)
	}
	first := succeed(t, env, "trending", "--limit", "3", "--sort", "speed")
	require.Regexp(t, `1\. +5  Title 5\n +https://5.example/  \(1\.6 sharers per hour, \S+ ago\)`, first)
	_, cursor, more := strings.Cut(strings.TrimSpace(first), "more: --cursor ")
	require.True(t, more)
	second := succeed(t, env, "trending", "--limit", "3", "--sort", "speed", "--cursor", cursor)
	require.Contains(t, second, "Title 2")
	require.NotContains(t, second, "Title 3")
	require.NotContains(t, second, "more:")
	for args, want := range map[string]string{
		"--limit -1":                 "--limit is -1: expected a whole number from 1 to 1000",
		"--at-least x":               "--at-least is x: expected a whole number from 1 to 1000000",
		"--ways like":                "--ways is like: expected some of post,quote,repost, separated by commas",
		"--watch carol.example":      "--watch is carol.example: no watch has this target",
		"--degree first":             "--degree is first: expected a watch beside it",
		"--cursor " + cursor:         "--cursor is invalid, more than an hour old, or of other flags",
		"--domain https://a.example": "--domain is https://a.example: expected a host such as news.example",
	} {
		_, stderr, code := weir(t, env, append([]string{"trending"}, strings.Fields(args)...)...)
		require.Equal(t, 1, code, args)
		require.Contains(t, stderr, want)
	}
}

// TestStreamEndsWithItsProcess shows that an event stream delivers changes, and that its response
// is complete when the process ends.
func TestStreamEndsWithItsProcess(t *testing.T) {
	t.Parallel()
	url := rankedDatabase(t)
	pool := open(t, url)
	web := start(t, []string{"DATABASE_URL=" + url, "WEIR_LISTEN=127.0.0.1:0", "WEIR_OPS_LISTEN="}, "web")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, web.page(t)+"api/v1/trending/stream?window=1h", nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, http.StatusOK, response.StatusCode)
	events := 0
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		name, ok := strings.CutPrefix(lines.Text(), "event: ")
		if !ok {
			continue
		}
		if events++; events == 1 {
			require.Equal(t, "snapshot", name)
		}
		if events == 3 {
			web.signal(syscall.SIGTERM)
		}
		_, err := pool.Exec(t.Context(), `
			INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			VALUES ('did:plc:5', 'c', $1::int::text, 1, 1, 'post', now())`, events)
		require.NoError(t, err)
	}
	require.NoError(t, lines.Err(), "the response is incomplete")
	require.GreaterOrEqual(t, events, 3)
	require.Zero(t, web.wait(t, patience))
}
