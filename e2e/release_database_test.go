package e2e

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// releases has a folder for each release: its database, what was in it, and the checksums of its migrations.
const releases = "../schema/testdata/releases"

// releaseSeed is that of the network that the databases of releases have read.
const releaseSeed = 12

// releaseState is what every later version must find in the database of a release.
type releaseState struct {
	At        string // the ranking is of this time
	Rows      map[string]int
	Ranking   []string
	Watches   []string
	Positions []string
}

// releaseNetwork is the network that the databases of releases have read, as it is now.
func releaseNetwork(t *testing.T) *simnet.Net {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: releaseSeed, Accounts: 120, Follows: 40, History: 1500, HistorySpan: 3 * time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	return n
}

// releaseSettings are those of the databases of releases, without their archive and the relays of Nostr.
func releaseSettings(t *testing.T, n *simnet.Net, url string) []string {
	t.Helper()
	return append(follower(n, url), "WEIR_START=oldest", "WEIR_GAP_THRESHOLD=1ms", "WEIR_LEXICONS="+layersFolder(t),
		"WEIR_COLLECTIONS=app.bsky.feed.post,app.bsky.feed.repost,nostr.0=0,nostr.1=0,nostr.6=0,"+layersName+"*=0")
}

// readState reads a database in which no process works.
func readState(t *testing.T, url, at string) releaseState {
	t.Helper()
	pool := open(t, url)
	s := releaseState{At: at, Rows: map[string]int{}}
	for _, table := range texts(t, pool, `
		SELECT relname::text FROM pg_class
		WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
			AND relname NOT IN ('weir_migration', 'river_migration', 'river_leader')`) {
		s.Rows[table] = count(t, pool, `SELECT count(*) FROM `+pgx.Identifier{table}.Sanitize())
	}
	for _, l := range rankedLinks(t, []string{"DATABASE_URL=" + url}, "24h", at) {
		s.Ranking = append(s.Ranking, fmt.Sprint(l.ID, " ", l.Sharers, " ", l.URL, " ", l.Title))
	}
	s.Watches = texts(t, pool, `
		SELECT concat_ws(' ', w.kind, w.target, w.at_least, w.added_at AT TIME ZONE 'UTC', count(m.did))
		FROM watches AS w LEFT JOIN watch_members AS m ON m.watch_id = w.id GROUP BY w.id`)
	s.Positions = texts(t, pool, `
		SELECT concat_ws(' ', name, wire, host, cursor_kind, cursor, last_event_at AT TIME ZONE 'UTC', epoch) FROM streams`)
	return s
}

// TestRelease runs everything that Weir has on simulated networks, and dumps the database. Every version migrates the
// dumps of the releases, and goes on with them. With -release, the dump is written for the next versions; without, this
// one goes on with it.
func TestRelease(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, url := releaseNetwork(t), schematest.NewURL(t)
	fillDatabase(t, n, url)
	n.Stop()
	state := readState(t, url, time.Now().UTC().Truncate(time.Second).Add(time.Second).Format(time.RFC3339))
	var empty []string
	for _, table := range strings.Fields(`
		accounts api_slots archived_ids audits blocks claims copies count_state dead_letters deleted_records feeds feed_entries forgotten
		gaps histories instance_key lexicons link_counts link_merges links network_backfills nostr_authors parked profiles record_refs
		records resyncs river_job seen segments sharers shares streams subjects tombstones verdicts watch_members watches`) {
		if state.Rows[table] == 0 {
			empty = append(empty, table)
		}
	}
	require.Empty(t, empty, "of these tables a later version would migrate no row")
	require.Len(t, state.Watches, 3)
	require.NotEmpty(t, state.Ranking)

	folder := t.TempDir()
	if *releaseName != "" {
		folder = filepath.Join(releases, *releaseName)
		require.NoError(t, os.MkdirAll(folder, 0o755))
	}
	writeRelease(t, folder, url, state)
	goesOn(t, folder)
}

// writeRelease dumps a database for later versions.
func writeRelease(t *testing.T, folder, url string, state releaseState) {
	t.Helper()
	_, version, err := devpg.Find()
	require.NoError(t, err)
	require.Equal(t, 15, version, "a dump of the oldest server that Weir supports can be restored on all: make fixture POSTGRES=15")
	dump, err := exec.CommandContext(t.Context(), clientTool(t, "pg_dump"),
		"--inserts", "--rows-per-insert=1000", "--no-owner", "--no-privileges", url).Output()
	require.NoError(t, err)
	dump = regexp.MustCompile(`(?m)^\\(un)?restrict .*\n`).ReplaceAll(dump, nil) // of psql, with a new key each time
	host, err := os.Hostname()
	require.NoError(t, err)
	dump = bytes.ReplaceAll(dump, []byte(filepath.Dir(t.TempDir())), []byte("/var/lib/weir"))    // where the archive is
	dump = regexp.MustCompile(`\b`+regexp.QuoteMeta(host)+`\b`).ReplaceAll(dump, []byte("weir")) // the names of processes
	require.NotContains(t, string(dump), os.TempDir()+"/")
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	require.NoError(t, err)
	_, err = w.Write(dump)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.Less(t, packed.Len(), 1<<20)
	text, err := json.MarshalIndent(state, "", "  ")
	require.NoError(t, err)
	sums := texts(t, open(t, url), `SELECT sha256 || '  ' || part || '/' || name FROM weir_migration`)
	for name, content := range map[string]string{
		"database.sql.gz": packed.String(), "state.json": string(text) + "\n", "migrations.sha256": strings.Join(sums, "\n") + "\n",
	} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600))
	}
}

// restoreRelease restores the database of a release and returns its URL.
func restoreRelease(t *testing.T, folder string) string {
	t.Helper()
	packed, err := os.ReadFile(filepath.Join(folder, "database.sql.gz"))
	require.NoError(t, err)
	r, err := gzip.NewReader(bytes.NewReader(packed))
	require.NoError(t, err)
	dump, err := io.ReadAll(r)
	require.NoError(t, err)
	url := schematest.NewURL(t)
	execute(t, url, `DROP SCHEMA public CASCADE; CREATE SCHEMA public`)
	conn, err := pgx.Connect(t.Context(), url) // the dump changes settings
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), string(dump))
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	return url
}

// TestReleasesAreUpgraded migrates the database of each release, finds everything in it, and goes on from there.
func TestReleasesAreUpgraded(t *testing.T) {
	t.Parallel()
	all, err := os.ReadDir(releases)
	require.NoError(t, err)
	require.NotEmpty(t, all)
	for _, release := range all {
		t.Run(release.Name(), func(t *testing.T) {
			t.Parallel()
			goesOn(t, filepath.Join(releases, release.Name()))
		})
	}
}

// goesOn restores the database of a release, migrates it, compares it with what was in it, and reads the streams from
// the stored positions.
func goesOn(t *testing.T, folder string) {
	t.Helper()
	var want releaseState
	text, err := os.ReadFile(filepath.Join(folder, "state.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &want))
	url := restoreRelease(t, folder)
	succeed(t, []string{"DATABASE_URL=" + url}, "migrate")
	require.Contains(t, succeed(t, []string{"DATABASE_URL=" + url}, "migrate", "--dry-run"), "would apply 0 of ")
	got := readState(t, url, want.At)
	for table, rows := range want.Rows {
		require.Equal(t, rows, got.Rows[table], table)
	}
	got.Rows = want.Rows // there may be new tables
	require.Equal(t, want, got)

	n, pool := releaseNetwork(t), open(t, url)
	epoch := count(t, pool, `SELECT epoch FROM streams WHERE name = 'jetstream'`)
	unread := `SELECT count(*) FROM gaps WHERE stream = 'jetstream' AND from_at < '` + want.At + `' AND opened_at > '` + want.At + `'`
	hidden := texts(t, pool, `SELECT did FROM accounts WHERE status <> 'active'`)
	followed := slices.DeleteFunc(active(n, n.Follows(n.Hub().DID)), func(did string) bool { return slices.Contains(hidden, did) })
	require.NoError(t, n.Do(simnet.TooOld)) // no server has what happened since
	before := current(n, followed)
	serve := start(t, releaseSettings(t, n, url), "serve")
	serve.page(t) // it runs
	stop := live(t, n, 50)
	eventually.True(t, func() bool {
		opened, err := tryCount(pool, unread)
		return err == nil && opened == 1
	}, 20*time.Millisecond, "the stream does not go on from its position")
	stop()
	last, err := n.PostNow(followed[0], "the last one")
	require.NoError(t, err)
	eventually.True(t, func() bool {
		read, err := tryCount(pool, `SELECT count(*) FROM posts WHERE did = '`+last.DID+`' AND rkey = '`+last.Rkey+`'`)
		return err == nil && read == 1
	}, 20*time.Millisecond)
	settled(t, pool)
	have := stored(t, pool)
	for _, post := range current(n, followed) {
		require.True(t, slices.Contains(before, post) || slices.Contains(have, post), post)
	}
	require.Equal(t, epoch+1, count(t, pool, `SELECT epoch FROM streams WHERE name = 'jetstream'`))
	stopServe(t, serve)
	succeed(t, []string{"DATABASE_URL=" + url}, "recount", "--check")
}

// fillDatabase runs Weir with all features until it has read everything, and stops it.
func fillDatabase(t *testing.T, n *simnet.Net, url string) {
	t.Helper()
	nostr, err := simnet.NewNostr(simnet.NostrConfig{
		Seed: releaseSeed, Authors: 5, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 20}, {Page: 500}},
	})
	require.NoError(t, err)
	t.Cleanup(nostr.Stop)
	nostr.WriteAs(0, nil, time.Now().Unix()-10_000, 3, [][]string{{"p", nostr.Key(1)}, {"p", nostr.Key(2)}}, "")
	nostr.Populate(100, 3*time.Hour, n.Articles())
	hub, pool := n.Hub(), open(t, url)
	list, err := n.MakeList(hub.DID, n.Follows(hub.DID)[:3]...)
	require.NoError(t, err)
	env := append(releaseSettings(t, n, url), "WEIR_NOSTR="+strings.Join(nostr.URLs(), ","), "WEIR_ARCHIVE=dir:"+t.TempDir(),
		"WEIR_ARCHIVE_INTERVAL=1s")
	for _, target := range []string{hub.Handle, list, npubOf(t, nostr.Key(0))} {
		succeed(t, env, "watch", "add", target)
	}
	serve := start(t, env, "serve")
	followed := active(n, n.Follows(hub.DID))
	eventually.True(t, func() bool {
		read, err := tryCount(pool, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL AND did LIKE 'did:plc:%'`)
		return err == nil && read >= len(followed)
	}, 20*time.Millisecond)
	settled(t, pool)
	stop := live(t, n, 100) // a quiet stream has no gap
	before := count(t, pool, `SELECT cursor FROM streams WHERE name = 'jetstream'`)
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT cursor FROM streams WHERE name = 'jetstream'`) > before+20
	}, 20*time.Millisecond)
	stopServe(t, serve)
	stop()

	n.Play(1000)
	require.NoError(t, n.Do(simnet.TooOld)) // a gap
	n.Play(300)
	followed = active(n, followed)
	n.Inject([]byte(`{"did":"nobody","time_us":1}`)) // a dead letter
	text := "at://" + followed[0] + "/" + layersName + "expression.expression/3mptbyqhi7s2a"
	for i, fields := range []string{
		`"id":"x","kind":"document","text":"a text"`,
		`"id":"y","kind":"document","text":"a part","parentRef":"` + text + `"`,
		`"kind":7`,
	} {
		_, err := n.PutRecord(followed[i], layersName+"expression.expression", "3mptbyqhi7s2"+string(rune('a'+i)),
			json.RawMessage(`{"$type":"`+layersName+`expression.expression","createdAt":"2026-01-02T03:04:05Z",`+fields+`}`))
		require.NoError(t, err)
	}
	_, err = n.PutRecord(followed[3], layersName+"segmentation.segmentation", "3mptbyqhi7s2d", json.RawMessage(
		`{"$type":"`+layersName+`segmentation.segmentation","createdAt":"2026-01-02T03:04:05Z","tokenizations":[],"expression":"`+text+`0"}`))
	require.NoError(t, err) // it is parked: nobody has its text
	leaveAlone(t, n, followed[4])
	require.NoError(t, n.Delete(followed[5]))
	last, err := n.PostNow(followed[0], "the last one")
	require.NoError(t, err)
	nostr.WriteAs(1, nil, time.Now().Unix(), 1, [][]string{{"proxy", "at://" + last.DID + "/" + last.Collection + "/" + last.Rkey, "atproto"}},
		n.Articles()[0].URL) // a copy
	serve = start(t, env, "serve")
	eventually.True(t, func() bool {
		left, err := tryCount(pool, `SELECT 3 - (SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL LIMIT 1) -
			(SELECT count(*) FROM posts WHERE did = '`+last.DID+`' AND rkey = '`+last.Rkey+`') - (SELECT count(*) FROM copies)`)
		return err == nil && left == 0
	}, 20*time.Millisecond, "the gap is not closed")
	succeed(t, env, "audit")
	succeed(t, env, "backfill", "network")
	succeed(t, env, "backfill", "cancel") // no server has an archive
	succeed(t, env, "backfill", "add", "--collection", layersName+"*")
	execute(t, url, `SELECT enqueue_resync('`+followed[0]+`')`)
	ids := texts(t, pool, `SELECT link_id::text FROM shares GROUP BY link_id ORDER BY count(*) DESC, link_id LIMIT 4`)
	succeed(t, env, "link", "merge", ids[0], ids[1])
	succeed(t, env, "block", "add", followed[1])
	_, err = get(serve.page(t) + "feed.atom")
	require.NoError(t, err)
	eventually.True(t, func() bool {
		left, err := tryCount(pool, `SELECT (SELECT count(*) FROM archive_open) + (SELECT count(*) FROM pending_counts)`)
		return err == nil && left == 0
	}, 20*time.Millisecond)
	settled(t, pool)
	stopServe(t, serve)
}
