package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"image/png"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/browsertest"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// network is a simulated network with this many past events.
func network(t *testing.T, history int) *simnet.Net {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 11, Accounts: 400, History: history, HistorySpan: time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	return n
}

func startNetwork(t *testing.T, n *simnet.Net) {
	t.Helper()
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
}

// reads is the environment of a process that reads a simulated network into a database. It keeps
// everything, because the oracle knows no retention. It does not read records written before the
// stream began, because the oracle folds only the stream. It has few workers and batches: many tests
// run at once, each connection has to plan its statements, and each batch costs as much as its events.
func reads(n *simnet.Net, database string) []string {
	return append(alone(n, database), "WEIR_WORKERS=2", "WEIR_BACKFILL_WORKERS=2", "WEIR_BATCH_INTERVAL=200ms")
}

// alone is like reads, with Weir's own workers and batches: for a benchmark, a soak, or make chaos,
// which share the machine with no other test.
func alone(n *simnet.Net, database string) []string {
	return []string{"DATABASE_URL=" + database, "WEIR_JETSTREAM=" + n.URL(), "WEIR_START=oldest", "WEIR_LISTEN=127.0.0.1:0",
		"WEIR_LEASE_TTL=1s", "WEIR_JOB_TIMEOUT=8s", "WEIR_RESCUE_AFTER=9s",
		"WEIR_QUIET_AFTER=1s", "WEIR_LOG_LEVEL=info", "WEIR_RETENTION=0", "WEIR_HISTORY=manual", "WEIR_RELAYS=" + n.RelayURL()}
}

// keeping is the environment of a process that keeps its lease and its jobs, even if it gets no CPU
// time for seconds: for tests that require it and kill no process with it.
func keeping(env []string) []string {
	return slices.Concat(env, []string{"WEIR_LEASE_TTL=1h", "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=5m"})
}

func get(url string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

var address = regexp.MustCompile(`http://127\.0\.0\.1:\d+/`)

// page is the URL of the process's page.
func (p *process) page(t testing.TB) string { return p.printed(t, address) }

// printed waits until the process has written what matches a pattern.
func (p *process) printed(t testing.TB, pattern *regexp.Regexp) (found string) {
	t.Helper()
	eventually.True(t, func() bool {
		select {
		case <-p.exited:
			require.Fail(t, "the process has ended", p.stderr.String())
		default:
		}
		found = pattern.FindString(p.stdout.String() + p.stderr.String())
		return found != ""
	}, 20*time.Millisecond)
	return found
}

// photograph takes a picture of the page as a reader sees it. -update puts the picture into the
// README.
func photograph(t *testing.T, url string) {
	t.Helper()
	b := browsertest.Open(t, url)
	b.Size(900, 1000)
	eventually.True(t, func() bool {
		b.Show("")
		return b.Found(".thumb") > 5
	}, time.Second)
	b.Until(`document.getElementById("updated").innerText.startsWith("updated")`)
	b.Until(`[...document.images].filter((i) => i.getBoundingClientRect().top < innerHeight).every((i) => i.complete && i.naturalWidth > 0)`)
	b.Do(chromedp.Evaluate[chromedp.Void](`document.documentElement.style.scrollbarWidth = "none"`))
	picture := b.Picture()
	_, err := png.Decode(bytes.NewReader(picture))
	require.NoError(t, err)
	if *writeImages {
		require.NoError(t, os.WriteFile("../docs/images/page.png", picture, 0o644))
	}
}

// TestDemoShowsRankedLinks shows ranked links of followed accounts without any configuration: also
// links that are shared under several addresses, each once, with the title that is not a wall's, and a
// gift. The demo leaves nothing behind.
func TestDemoShowsRankedLinks(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	env := []string{"WEIR_HOME=" + home, "WEIR_LISTEN=" + taken.Addr().String()}
	demo := start(t, env, "demo")
	url := demo.page(t)
	_, ui := getOps(t, demo.printed(t, regexp.MustCompile(`http://\S+/riverui/`)), "")
	require.Contains(t, ui, "<title>River</title>")
	require.Contains(t, demo.stdout.String(),
		taken.Addr().String()+" (WEIR_LISTEN) is in use: the page is at "+strings.Trim(strings.TrimPrefix(url, "http:"), "/"))
	_, refused, code := weir(t, env, "dev")
	require.Equal(t, 1, code, "dev must not fall back to another address")
	require.Contains(t, refused, "listen on WEIR_LISTEN="+taken.Addr().String())
	require.Contains(t, refused, "set WEIR_LISTEN to another address")
	eventually.True(t, func() bool {
		page, err := get(url)
		return err == nil && strings.Contains(page, ".example/")
	}, 50*time.Millisecond)
	showsShowcase(t, url)
	described, err := get(url + "api/v1/openapi.json")
	require.NoError(t, err)
	for _, path := range []string{"/api/v1/trending", "/api/v1/search", "/feed.atom"} { // of each part
		require.Contains(t, described, `"`+path+`":`)
	}
	photograph(t, url)
	require.Regexp(t, `1\. +\d+  `, succeed(t, env, "trending"), "the command does not find the demo's Postgres")
	require.Regexp(t, `follows +hub\.example +\d+ .*ago`, succeed(t, env, "watch", "list"))
	require.Contains(t, succeed(t, env, "backfill", "status"), "accounts")
	found := noFailure(t, env) // a temporary server and a simulated network are none
	require.Contains(t, finding(t, found, "configuration").Message, "this is a weir demo")
	for _, f := range found {
		require.NotRegexp(t, `^(jetstream|appview|directory) `, f.Check)
	}
	_, refused, code = weir(t, env, "audit")
	require.Equal(t, 1, code)
	require.Contains(t, refused, "only the demo itself reaches its simulated network")
	require.NotContains(t, succeed(t, env, "status"), "WeirAudit", "a refused audit must not count as an audit")
	demo.signal(syscall.SIGINT)
	require.Zero(t, demo.wait(t, patience))
	require.Contains(t, demo.stdout.String(), "stopping: committing what was read")
	require.NoDirExists(t, home+"/demo")
}

// showsShowcase waits until the demo shows its fixed links.
func showsShowcase(t *testing.T, url string) {
	t.Helper()
	const article = "https://thequay.example/2026/07/the-harbour-that-learned-to-float-31415"
	type row struct {
		ID               int64
		Title, URL, Gift string
		Sharers          int
	}
	hosts := regexp.MustCompile(`^https?://(www\.|m\.|old\.|web\.)?(thequay\.example|archive\.org|youtube\.com|youtu\.be|` +
		`open\.spotify\.com|reddit\.com|redd\.it)/`)
	want := map[string]row{
		"The harbour that learned to float": {URL: article, Gift: article + "?gift_token=9f8e7d6c5b4a", Sharers: 6},
		"A heron, filmed for an hour":       {URL: "https://www.youtube.com/watch?v=hEr0nH0ur01", Sharers: 3},
		"Slow Tide":                         {URL: "https://open.spotify.com/track/5lowT1deHer0nHarb0ur42", Sharers: 2},
		"Which bird is on your roof today?": {URL: "https://www.reddit.com/r/birding/comments/1her0n/which_bird/", Sharers: 3},
	}
	var shown map[string]row
	var id int64
	eventually.True(t, func() bool {
		body, err := get(url + "api/v1/trending?limit=200")
		var page struct{ Links []row }
		if err != nil || json.Unmarshal([]byte(body), &page) != nil {
			return false
		}
		shown = map[string]row{}
		for _, l := range page.Links {
			if hosts.MatchString(l.URL) {
				if l.Gift != "" {
					id = l.ID
				}
				shown[l.Title] = row{URL: l.URL, Gift: l.Gift, Sharers: l.Sharers}
			}
		}
		return maps.Equal(want, shown)
	}, 100*time.Millisecond, &shown)
	page, err := get(fmt.Sprint(url, "links/", id))
	require.NoError(t, err)
	require.Contains(t, page, ">Gift link<")
}

// TestUnreachableJetstreamIsReported shows that an unreachable Jetstream is reported on the page
// and in the log, and retried.
func TestUnreachableJetstreamIsReported(t *testing.T) {
	t.Parallel()
	url := schematest.NewURL(t)
	n := network(t, 200)
	env := reads(n, url)
	n.Stop()
	serve := start(t, env, "serve")
	page := serve.page(t)
	eventually.True(t, func() bool {
		html, err := get(page)
		return err == nil && strings.Contains(strings.ToLower(html), "not connected")
	}, 50*time.Millisecond)
	eventually.True(t, func() bool { return strings.Contains(serve.stderr.String(), "connection refused") }, 50*time.Millisecond)
	eventually.True(t, func() bool { // the first heartbeat may come later
		return strings.HasPrefix(succeed(t, env, "status"), "degraded: never connected\n")
	}, 200*time.Millisecond)
	require.NoError(t, n.Restart())
	pool := open(t, url)
	eventually.True(t, func() bool {
		state, err := tryCount(pool, `SELECT count(*) FROM streams WHERE state IN ('live', 'quiet', 'catching up')`)
		return err == nil && state == 1
	}, 50*time.Millisecond, "no further attempts")
	stopServe(t, serve)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM streams WHERE lease_owner IS NULL`))
}

// TestUsageErrorsAreOneSentence shows that each usage error ends the command at once, and that its
// message only says what to do.
func TestUsageErrorsAreOneSentence(t *testing.T) {
	t.Parallel()
	database := schematest.NewURL(t)
	for want, c := range map[string]struct {
		env  []string
		args string
	}{
		"DATABASE_URL is not set and no `weir dev` or `weir demo` runs here": {nil, "serve"},
		"DATABASE_URL cannot be read: expected postgres://":                  {[]string{"DATABASE_URL=postgres://u:secret@h:port/x"}, "serve"},
		"DATABASE_URL does not lead to a database": {
			[]string{"DATABASE_URL=postgres://u:secret@127.0.0.1:1/x"}, "serve",
		},
		"password authentication failed": {
			[]string{"DATABASE_URL=" + regexp.MustCompile(`:[^:@]+@`).ReplaceAllString(database, ":secret@")}, "serve",
		},
		"did you mean WEIR_BATCH_EVENTS?": {[]string{"DATABASE_URL=" + database, "WEIR_BATCH_EVENT=5"}, "serve"},
		"WEIR_WORKERS must be 1 or more":  {[]string{"DATABASE_URL=" + database, "WEIR_WORKERS=0"}, "work"},
		"WEIR_BATCH_INTERVAL cannot be read": {
			[]string{"DATABASE_URL=" + database, "WEIR_BATCH_INTERVAL=fast"}, "consume",
		},
		"WEIR_QUIET_AFTER must be 1s to 1m": {
			[]string{"DATABASE_URL=" + database, "WEIR_QUIET_AFTER=10ms"}, "consume",
		},
		"something that is no URL": {
			[]string{"DATABASE_URL=host=localhost password=secret port=abc"}, "serve",
		},
		"is not a Jetstream endpoint": {
			[]string{"DATABASE_URL=" + database, "WEIR_JETSTREAM=wss://u:secret@127.0.0.1:1/s"}, "consume",
		},
		"the webhook's address is not a URL": {
			[]string{"DATABASE_URL=" + database, "WEIR_ALERT_WEBHOOK=hooks.example/secret"}, "serve",
		},
		`the webhook's format is "smoke"`: {
			[]string{"DATABASE_URL=" + database, "WEIR_ALERT_WEBHOOK=https://hooks.example/secret", "WEIR_ALERT_FORMAT=smoke"}, "work",
		},
		"WEIR_ALERT_INTERVAL must be 1s to 1m": {[]string{"DATABASE_URL=" + database, "WEIR_ALERT_INTERVAL=1h"}, "work"},
		"WEIR_WORKERS":                         {[]string{"DATABASE_URL=" + database, "WEIR_WORKERS=x"}, "work"},
		"is a directory":                       {[]string{"DATABASE_URL=" + database, "WEIR_LOG_LEVEL=error"}, "ingest ."},
		"--account is for accounts": {
			[]string{"DATABASE_URL=" + database}, "watch add --account https://bsky.app/profile/alice.example/lists/3kabc",
		},
		`"nonsense" is not a Jetstream endpoint`: {
			[]string{"DATABASE_URL=" + database, "WEIR_JETSTREAM=nonsense"}, "consume",
		},
		`WEIR_COLLECTIONS: "app.bsky*" is not a prefix`: {
			[]string{"DATABASE_URL=" + database, "WEIR_COLLECTIONS=app.bsky*"}, "consume",
		},
		"app.bsky.feed.post is kept for 1h0m0s: expected at least 24h0m0s": {[]string{
			"DATABASE_URL=" + database, "WEIR_COLLECTIONS=app.bsky.feed.*=1h,com.example.x=1m",
		}, "consume"},
		"WEIR_RETENTION is -1h0m0s":          {[]string{"DATABASE_URL=" + database, "WEIR_RETENTION=-1h"}, "work"},
		`"post" is not a collection`:         {[]string{"DATABASE_URL=" + database, "WEIR_COLLECTIONS=post"}, "consume"},
		"listen on WEIR_LISTEN=256.0.0.1:80": {[]string{"DATABASE_URL=" + database, "WEIR_LISTEN=256.0.0.1:80"}, "web"},
		`WEIR_HOSTS: "https://weir.example" is not a host`: {
			[]string{"DATABASE_URL=" + database, "WEIR_HOSTS=weir.test,https://weir.example"}, "web",
		},
		"--window is 2h: expected one of 1h, 3h, 6h, 12h, 24h, 7d": {[]string{"DATABASE_URL=" + database}, "trending --window 2h"},
		"no such file": {[]string{"DATABASE_URL=" + database}, "ingest nowhere.jsonl"},
	} {
		t.Run(c.args+": "+want, func(t *testing.T) {
			_, stderr, code := weir(t, c.env, strings.Fields(c.args)...)
			require.Equal(t, 1, code)
			require.Contains(t, stderr, want)
			require.Equal(t, 1, strings.Count(strings.TrimSpace(stderr), "\n")+1, stderr)
			require.NotContains(t, stderr, "secret")
		})
	}
}

func TestUnknownCommandIsAnError(t *testing.T) {
	t.Parallel()
	_, stderr, code := weir(t, nil, "serv")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `unknown command "serv"`)
	require.Contains(t, stderr, "serve")
}

// TestUnmigratedDatabaseNamesTheCommand shows that the error about an unmigrated database names the
// command that migrates it.
func TestUnmigratedDatabaseNamesTheCommand(t *testing.T) {
	t.Parallel()
	database := schematest.NewURL(t)
	executes(t, database, `DROP SCHEMA public CASCADE`, `CREATE SCHEMA public`)
	env := []string{"DATABASE_URL=" + database}
	_, stderr, code := weir(t, env, "serve")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "run `weir migrate`")
	succeed(t, env, "migrate")
	succeed(t, env, "migrate")
	printed := succeed(t, env, "trending")
	require.Contains(t, printed, "no link was shared")
	require.Contains(t, printed, "all shares are stored only since 2") // the database is new
}

// TestSpellingsOfAnAccountAreOneWatch shows that all spellings of an account are one watch, and
// that any of them removes it.
func TestSpellingsOfAnAccountAreOneWatch(t *testing.T) {
	t.Parallel()
	database := schematest.NewURL(t)
	env := []string{"DATABASE_URL=" + database, "WEIR_APPVIEW=http://127.0.0.1:1"}
	for _, name := range []string{
		"alice.example", "ALICE.example", "@alice.example", "https://bsky.app/profile/alice.example", "at://alice.example",
	} {
		succeed(t, env, "watch", "add", name)
	}
	pool := open(t, database)
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM watches`))
	require.Contains(t, succeed(t, env, "watch", "remove", "@Alice.example"), "the whole network is followed now")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM watches`))
}

// TestIngestOfAPipeEndsWithASignal shows that a signal ends the ingest, which reports that it is
// incomplete.
func TestIngestOfAPipeEndsWithASignal(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	database := schematest.NewURL(t)
	held, err := os.OpenFile(pipe, os.O_RDWR, 0)
	require.NoError(t, err)
	defer held.Close()
	ingest := start(t, []string{"DATABASE_URL=" + database}, "ingest", pipe)
	pool := open(t, database)
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM streams WHERE lease_owner IS NOT NULL`) == 1 },
		20*time.Millisecond)
	ingest.signal(syscall.SIGTERM)
	require.Equal(t, 1, ingest.wait(t, patience))
	require.Contains(t, ingest.stderr.String(), "stopped before the end of the recording")
}

// TestDemoShowsBothNetworks shows simulated accounts of both networks in a browser, together and
// each network by itself.
func TestDemoShowsBothNetworks(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	env := []string{"WEIR_HOME=" + t.TempDir(), "WEIR_LISTEN=127.0.0.1:0"}
	demo := start(t, env, "demo", "--nostr")
	url := demo.page(t)
	b := browsertest.Open(t, url)
	b.Size(900, 1000)
	shows := func(address, condition string) {
		t.Helper()
		eventually.True(t, func() bool {
			b.Show(address)
			return browsertest.Evaluate[bool](b, condition)
		}, 250*time.Millisecond, demo.stderr.String())
	}
	shows("", `document.querySelectorAll(".link").length > 20 && document.getElementById("subtitle").innerText.includes("Bluesky and Nostr")
		&& [...document.querySelectorAll(".filters a")].some((a) => a.textContent === "Nostr")`)
	shows("?network=nostr", `document.querySelectorAll(".link").length > 5
		&& [...document.querySelectorAll(".by a[href*='by=']")].every((a) => a.href.includes("did:nostr:")
		&& a.querySelector(".network").innerText === "Nostr")
		&& [...document.querySelectorAll(".by bdi")].some((n) => /^[a-z]+ [a-z]+$/.test(n.innerText))`)
	shows("?network=bluesky", `document.querySelectorAll(".link").length > 20
		&& ![...document.querySelectorAll(".by .network")].some((n) => n.innerText === "Nostr")`)
	// An article that accounts of both networks share, and their posts. Its page begins with the
	// latest fifty shares, so fewer accounts must share it.
	type ranking struct {
		Links []struct {
			ID      int64
			Sharers int
		}
	}
	both, fewest := int64(0), 25
	eventually.True(t, func() bool {
		var nostr, bluesky ranking
		for network, to := range map[string]any{"nostr": &nostr, "bluesky": &bluesky} {
			body, err := get(url + "api/v1/trending?limit=200&network=" + network)
			if err != nil || json.Unmarshal([]byte(body), to) != nil {
				return false
			}
		}
		for _, l := range nostr.Links {
			for _, other := range bluesky.Links {
				if l.ID == other.ID && l.Sharers+other.Sharers < fewest {
					both, fewest = l.ID, l.Sharers+other.Sharers
				}
			}
		}
		return both != 0
	}, 100*time.Millisecond)
	page, err := get(fmt.Sprint(url, "links/", both))
	require.NoError(t, err)
	require.Contains(t, page, "https://njump.me/nevent1")
	require.Contains(t, page, "https://bsky.app/profile/")
	demo.signal(syscall.SIGINT)
	require.Zero(t, demo.wait(t, patience))
}
