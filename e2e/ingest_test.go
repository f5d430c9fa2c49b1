package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// state returns the content of the database without the columns that a second ingest may change:
// when a row was last seen, what the counter writes, and the queue's history.
func state(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	all := map[string]string{}
	for table, columns := range map[string]string{
		"records": "collection, did, rkey, rev, cid, created_at, indexed_at, record", "tombstones": "collection, did, rkey, rev, deleted_at",
		"accounts": "did, handle, handle_at, status, status_at", "shares": "collection, did, rkey, link_id, how, shared_at",
		"links": "id, identity, first_seen", "claims": "id, link_id, url, title, description, image", "dead_letters": "key, cause",
		"gaps": "stream, from_at, to_at",
	} {
		var sum string
		require.NoError(t, pool.QueryRow(context.Background(),
			`SELECT count(*) || ' ' || coalesce(md5(string_agg(r::text, E'\n' ORDER BY r::text)), '') FROM (SELECT `+columns+` FROM `+table+
				`) AS r`).Scan(&sum))
		all[table] = sum
	}
	return all
}

func rankedLinks(t *testing.T, env []string, window, at string) []ranking.TrendingLink {
	t.Helper()
	var page struct{ Links []ranking.TrendingLink }
	limit := strconv.Itoa(mostLinks)
	require.NoError(t, json.Unmarshal([]byte(succeed(t, env, "trending", "--json", "--limit", limit, "--window", window, "--at", at)), &page))
	return page.Links
}

// mostLinks is the largest --limit of `weir trending`.
const mostLinks = 1000

// TestIngestStoresTheRecording ingests a recording written by hand, with bad input
// of every kind. The counts were made by hand.
func TestIngestStoresTheRecording(t *testing.T) {
	t.Parallel()
	url := schematest.NewURL(t)
	pool, env := open(t, url), []string{"DATABASE_URL=" + url}

	recording, err := os.ReadFile(filepath.Join("testdata", "recording.jsonl"))
	require.NoError(t, err)
	recording = append(recording, "{\"did\":\"did:plc:\xff\xfe\"}\n"...)
	large := `{"did":"did:plc:aaaaaaaaaaaaaaaaaaaaaaaa","time_us":1783177260000000,"kind":"commit","commit":{"rev":"3mptbzzzzzz2a",` +
		`"operation":"create",` +
		`"collection":"app.bsky.feed.post","rkey":"3mptbzzzzzz2a","cid":"bafyreib2rxk3rh6kzwq4zqgb3grhqmbe7fnu4j5a2v5rkzyjvn4g2kqxaa",` +
		`"record":{"text":"` +
		strings.Repeat("x", 10<<20) + `"}}}` + "\n"
	file := filepath.Join(t.TempDir(), "recording.jsonl")
	require.NoError(t, os.WriteFile(file, append(recording, large...), 0o600))

	said := succeed(t, env, "ingest", file)
	require.Contains(t, said, "writes 14, deletes 2, accounts 1, identities 1, ignored 3, dead-lettered 8, characters replaced 1\n")
	require.Contains(t, said, "jobs left 0\n")
	require.Equal(t, 11, count(t, pool, `SELECT count(*) FROM posts`))
	require.Equal(t, 11, count(t, pool, `SELECT count(*) FROM records`), "a like and a record of an unknown collection must not be kept")
	require.Equal(t, 2, count(t, pool, `SELECT count(*) FROM tombstones`), "one tombstone is of a post that was never seen")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM accounts WHERE handle = 'b.example' AND status = 'active'`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM accounts WHERE status = 'deactivated'`))
	require.Equal(t, 8, count(t, pool, `SELECT count(*) FROM dead_letters`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM dead_letters WHERE stage = 'commit'`), "ten megabytes")
	require.Equal(t, 5, count(t, pool, `SELECT count(*) FROM shares`))
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM posts WHERE record ->> 'text' = E'NUL:\uFFFD here'`))
	require.Equal(t, 0, count(t, pool, `SELECT count(*) FROM posts WHERE created_at > '2026-07-04T15:05:00Z'`),
		"nothing comes from the future")

	links := rankedLinks(t, env, "6h", "2026-07-04T15:30:00Z")
	require.Len(t, links, 2, "a hidden account's share does not count")
	require.Equal(t, "https://paper.example/one", links[0].URL)
	require.Equal(t, 2, links[0].Sharers, "one account shared it twice")
	require.Equal(t, "One", links[0].Title)
	require.Equal(t, "https://paper.example/three", links[1].URL)
	require.Empty(t, rankedLinks(t, env, "1h", "2026-07-04T14:58:00Z"))

	before := state(t, pool)
	succeed(t, env, "ingest", file)
	require.Equal(t, before, state(t, pool), "a second ingest changes nothing")

	_, err = pool.Exec(t.Context(), `
		UPDATE river_job SET state = 'running', finalized_at = NULL, attempted_by = '{killed}', attempted_at = now() - interval '66 seconds'
		WHERE kind = 'process_posts'`)
	require.NoError(t, err)
	require.Contains(t, succeed(t, env, "ingest", file), "jobs left 0\n",
		"jobs of a killed process must finish although no process is the leader")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM river_leader`))
}

// TestIngestReadsRecordings reads recordings of the simulated network and, if WEIR_TESTDATA has
// them, of real servers. The counts of the production recording were made by hand.
func TestIngestReadsRecordings(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	url := schematest.NewURL(t)
	pool, env := open(t, url), []string{"DATABASE_URL=" + url}
	n := network(t, 3000)
	var lines bytes.Buffer
	require.NoError(t, n.Log().WriteJSONL(&lines, 0))
	file := filepath.Join(t.TempDir(), "simnet.jsonl")
	require.NoError(t, os.WriteFile(file, lines.Bytes(), 0o600))
	require.Contains(t, succeed(t, env, "ingest", file), "dead-lettered 0")
	oracle, end := fold(n.Log().Entries()), time.Now().Truncate(time.Second).Add(time.Second).UTC()
	problems, err := oracle.problems(t.Context(), pool, end)
	require.NoError(t, err)
	require.Empty(t, problems)
	got := rankedLinks(t, env, "24h", end.Format(time.RFC3339))
	require.Greater(t, len(got), 30)
	require.Empty(t, oracle.compareTrending(got, end, 24*time.Hour))

	if file, ok := testdata("jetstream-production-152.jsonl"); ok {
		url := schematest.NewURL(t)
		pool, env := open(t, url), []string{"DATABASE_URL=" + url}
		require.Contains(t, succeed(t, env, "ingest", file),
			"writes 32, deletes 1, accounts 1, identities 1, ignored 117, dead-lettered 0, characters replaced 0\n")
		require.Equal(t, 17, count(t, pool, `SELECT count(*) FROM posts`))
		require.Equal(t, 15, count(t, pool, `SELECT count(*) FROM records WHERE collection = 'app.bsky.feed.repost'`))
		require.Equal(t, 1, count(t, pool, `
			SELECT count(*) FROM tombstones WHERE did = 'did:plc:4smmjsqf6l5jkzczvw6vsrqc' AND rkey = '3mpt73z3ejc2p'`))
		require.Zero(t, count(t, pool, `SELECT count(*) FROM accounts WHERE did = 'did:plc:hqvhxrowqbemo5e4wjnj6zao'`),
			"an active stranger must have no row")
		require.Equal(t, 4, count(t, pool, `SELECT count(*) FROM shares`))
		urls := map[string]bool{}
		for _, l := range rankedLinks(t, env, "6h", "2026-07-04T15:00:00Z") {
			urls[l.URL] = true
		}
		require.Equal(t, map[string]bool{
			"https://www.youtube.com/watch?v=V5lDo-jw8mA":                                true,
			"https://www.ufofeed.com/266486/has-anyone-properly-debunked-tic-tac-video/": true,
			"https://denikn.cz/2113523":                                                  true,
			"https://www.tumblr.com/tempo-tales/765681292369166336/behind-them-timmi-and-wankyu-follow-silently-but?source=share": true,
		}, urls)
		before := state(t, pool)
		succeed(t, env, "ingest", file)
		require.Equal(t, before, state(t, pool), "a second ingest changes nothing")
	}
	if file, ok := testdata("jetstream-simulated-4000.jsonl"); ok {
		url := schematest.NewURL(t)
		require.Contains(t, succeed(t, []string{"DATABASE_URL=" + url}, "ingest", file), "dead-lettered 0")
	}
}

// TestIngestBesideServeRaisesNoAlarm ingests a recording of old events into a live database.
// Meanwhile, after a signal, after a kill and at its end, health, readiness and the page describe
// the live stream alone. The recording's stream is removed, unless the ingest was killed.
func TestIngestBesideServeRaisesNoAlarm(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	database := schematest.NewURL(t)
	pool, env := open(t, database), reads(network(t, 300), database)
	serve := start(t, keeping(env), "serve") // an ingest does not keep the lease of a killed one
	page, at := serve.page(t), serve.opsURL(t)
	becomes(t, at, "quiet")
	calm := func(when string) {
		t.Helper()
		r, code := reported(t, at)
		require.Equal(t, http.StatusOK, code, when)
		require.Equal(t, []string{"jetstream", health.Healthy, schema.StateQuiet}, []string{r.Streams[0].Name, r.Status, r.State}, "%s: %+v",
			when, r)
		require.Len(t, r.Streams, 1, when)
		responds(t, at+"/readyz", http.StatusOK)
		html, err := get(page)
		require.NoError(t, err)
		require.NotContains(t, html, "-ingest", when)
		require.Regexp(t, `^healthy: quiet\n`, succeed(t, env, "status"), when)
	}
	const old = `SELECT count(*) FROM streams WHERE wire = 'recording' AND last_event_at < now() - interval '1 day'`
	lines, err := os.ReadFile(filepath.Join("testdata", "recording.jsonl"))
	require.NoError(t, err)
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, end := range []syscall.Signal{syscall.SIGINT, syscall.SIGKILL} {
		held, err := os.OpenFile(pipe, os.O_RDWR, 0)
		require.NoError(t, err)
		replay := start(t, env, "ingest", pipe)
		_, err = held.Write(lines)
		require.NoError(t, err)
		eventually.True(t, func() bool { return count(t, pool, old) == 1 }, 20*time.Millisecond)
		calm("while it runs")
		replay.signal(end)
		replay.wait(t, patience)
		require.NoError(t, held.Close())
		require.Equal(t, end == syscall.SIGKILL, count(t, pool, old) == 1, "only a killed ingest leaves its row")
		calm("after " + end.String())
	}
	succeed(t, env, "ingest", filepath.Join("testdata", "recording.jsonl"))
	require.Equal(t, []string{"jetstream"}, texts(t, pool, `SELECT name FROM streams`), "the next ingest removes the row of a killed one")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM gaps`))
	calm("at its end")
}
