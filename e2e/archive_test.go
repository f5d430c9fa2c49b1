package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// archivedIn reads the segments in a directory, without the code that wrote them, and counts their
// events of posts and accounts.
func archivedIn(t *testing.T, root string) map[string]int {
	t.Helper()
	events := map[string]int{}
	eachArchived(t, root, func(frame []byte) { countEvent(t, frame, func(event string) { events[event]++ }) })
	return events
}

// eachArchived calls do for each record of the segments in a directory.
func eachArchived(t *testing.T, root string, do func(record []byte)) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".seg.zst") {
			return err
		}
		file, err := os.ReadFile(path)
		require.NoError(t, err)
		recordsOf(t, file, do)
		return nil
	}))
}

// recordsOf calls do for each record of a segment.
func recordsOf(t *testing.T, segment []byte, do func(record []byte)) {
	t.Helper()
	d, err := zstd.NewReader(bytes.NewReader(segment))
	require.NoError(t, err)
	defer d.Close()
	raw, err := io.ReadAll(d)
	require.NoError(t, err)
	for len(raw) > 0 {
		n := uint32(raw[0]) | uint32(raw[1])<<8 | uint32(raw[2])<<16 | uint32(raw[3])<<24
		do(raw[4 : 4+n])
		raw = raw[4+n:]
	}
}

// countEvent calls count with the identity of a frame's event.
func countEvent(t *testing.T, frame []byte, count func(string)) {
	t.Helper()
	var ev struct {
		DID, Kind string
		Commit    struct{ Rev, Operation, Collection, Rkey string }
		Identity  struct{ Time time.Time }
		Account   struct{ Time time.Time }
	}
	require.NoError(t, json.Unmarshal(frame, &ev), string(frame))
	switch ev.Kind {
	case "commit":
		count(fmt.Sprint(ev.DID, " ", ev.Commit.Collection, " ", ev.Commit.Rkey, " ", ev.Commit.Rev, " ", ev.Commit.Operation))
	case "identity":
		count(fmt.Sprint(ev.DID, " identity ", ev.Identity.Time.UnixMilli()))
	case "account":
		count(fmt.Sprint(ev.DID, " account ", ev.Account.Time.UnixMilli()))
	}
}

// onceEach returns the events of the network that are stored, each once.
func onceEach(n *simnet.Net) map[string]int {
	events := map[string]int{}
	for _, e := range n.Log().Entries() {
		switch {
		case e.Kind != "commit":
			events[fmt.Sprint(e.DID, " ", e.Kind, " ", e.TimeUS/1000)]++
		case e.Collection == "app.bsky.feed.post" || e.Collection == "app.bsky.feed.repost":
			events[fmt.Sprint(e.DID, " ", e.Collection, " ", e.Rkey, " ", e.Rev, " ", e.Operation)]++
		}
	}
	return events
}

// notOnce lists up to ten events that are not archived as often as they happened.
func notOnce(want, got map[string]int) (wrong []string) {
	for event, n := range want {
		if got[event] != n {
			wrong = append(wrong, fmt.Sprintf("%s: %d times", event, got[event]))
		}
	}
	for event := range got {
		if want[event] == 0 {
			wrong = append(wrong, event+": it never happened")
		}
	}
	return wrong[:min(len(wrong), 10)]
}

// restorable returns how often each row occurs, limited to the columns that an archive restores. It
// omits shares through other posts, which are projected again later, when those posts change. It
// omits the rows of deleted accounts, which are purged later, and active accounts: whether one has
// a row depends on when its posts were processed.
func restorable(t *testing.T, pool *pgxpool.Pool) map[string]int {
	t.Helper()
	const kept = ` WHERE did NOT IN (SELECT did FROM accounts WHERE status = 'deleted') `
	rows := map[string]int{}
	for _, sql := range []string{
		`SELECT collection || ' ' || did || ' ' || rkey || ' ' || rev || ' ' || cid || ' ' || created_at || ' ' || record FROM records` + kept,
		`SELECT collection || ' ' || did || ' ' || rkey || ' ' || rev FROM tombstones` + kept,
		`SELECT did || ' ' || rkey || ' ' || identity || ' ' || shared_at FROM shares JOIN links ON links.id = link_id` + kept +
			`AND how = 'post'`,
		`SELECT did || ' ' || status FROM accounts WHERE status <> 'active'`,
	} {
		for _, row := range texts(t, pool, sql) {
			rows[row]++
		}
	}
	return rows
}

// exportLacks names the events that are not exactly once in an export. Records and handles of
// deleted accounts need not be exported.
func exportLacks(t *testing.T, n *simnet.Net, env []string) []string {
	t.Helper()
	exported, events := map[string]int{}, onceEach(n)
	for line := range strings.Lines(succeed(t, env, "archive", "export")) {
		countEvent(t, []byte(line), func(event string) { exported[event]++ })
	}
	for _, e := range n.Log().Entries() {
		if e.Status == "deleted" {
			maps.DeleteFunc(events, func(event string, _ int) bool {
				return exported[event] == 0 && (strings.HasPrefix(event, e.DID+" app.") || strings.HasPrefix(event, e.DID+" identity "))
			})
		}
	}
	return notOnce(events, exported)
}

// TestArchive kills a process where it commits, seals and syncs, takes its disk away, and has the
// server repeat events. Every event is in the segments once. A database that is rebuilt from them
// has the same records, and the stream resumes where they end. If the database loses the ids of the
// archived events, it reads them from the segments too.
func TestArchive(t *testing.T) {
	t.Parallel()
	n := busyNetwork(t)
	root := filepath.Join(t.TempDir(), "archive")
	require.NoError(t, os.Mkdir(root, 0o750))
	url := schematest.NewURL(t)
	pool := open(t, url)
	settings := []string{"WEIR_ARCHIVE=dir:" + root, "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_BATCH_EVENTS=50", "WEIR_RESOLVE_LINKS=false"}
	env := append(reads(n, url), settings...)
	k := &killing{t: t, net: n, env: env}
	archived := func() {
		t.Helper()
		k.drain(pool)
		eventually.True(t, func() bool {
			left, err := tryCount(pool, `SELECT count(*) FROM archive_open`)
			return err == nil && left == 0
		}, 20*time.Millisecond, "not everything is in the store")
	}
	for i, point := range []string{"commit: after its end", "seal: before the end", "sync: manifest stored", "sync: rows deleted"} {
		k.killedAt(1, point)
		rescued(t, pool, k.process)
		n.Play(100)
		if i == 1 {
			require.NoError(t, n.Do(simnet.Renumber))
		}
		if i == 2 {
			require.NoError(t, n.Do(simnet.Duplicate))
		}
	}
	require.NoError(t, os.Rename(root, root+".away"))
	k.process = start(t, env, "serve")
	n.Play(300)
	k.drain(pool)
	require.NotZero(t, count(t, pool, `SELECT count(*) FROM archive_open`), "events must wait in the database while the folder is missing")
	require.NoError(t, os.Rename(root+".away", root))
	archived()
	stopServe(t, k.process)
	require.Empty(t, notOnce(onceEach(n), archivedIn(t, root)))
	require.Contains(t, succeed(t, env, "archive", "verify"), fmt.Sprint(count(t, pool, `SELECT sum(records) FROM segments`), " records"))
	require.Empty(t, exportLacks(t, n, env))

	second := schematest.NewURL(t)
	rebuilt := open(t, second)
	env = append(reads(n, second), settings...)
	succeed(t, env, "archive", "rebuild", "--database")
	require.Empty(t, notOnce(restorable(t, pool), restorable(t, rebuilt)))
	_, stderr, code := weir(t, env, "archive", "rebuild", "--database")
	require.NotZero(t, code)
	require.Contains(t, stderr, "the database is not empty")
	n.Play(200)
	pool = rebuilt
	k.process = start(t, env, "serve")
	archived()
	stopServe(t, k.process)
	require.NotContains(t, k.process.stderr.String(), "gap_opened")
	require.Empty(t, notOnce(onceEach(n), archivedIn(t, root)), "the rebuilt database archived events again")
	execute(t, second, `DELETE FROM archived_ids; DELETE FROM streams`) // the server sends everything again
	require.Contains(t, succeed(t, env, "archive", "rebuild", "--seen", "--rate", "1000000"), " records")
	k.process = start(t, env, "serve")
	archived()
	stopServe(t, k.process)
	require.Empty(t, notOnce(onceEach(n), archivedIn(t, root)), "events were archived again after rebuild --seen")
	damage(t, root)
	stdout, _, code := weir(t, env, "archive", "verify")
	require.NotZero(t, code)
	require.Contains(t, stdout, "SHA-256")
}

func stopServe(t *testing.T, p *process) {
	t.Helper()
	p.signal(syscall.SIGTERM)
	require.Zero(t, p.wait(t, patience), p.stderr.String())
}

// damage flips a byte of one segment.
func damage(t *testing.T, root string) {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(root, "*", "*", "*.seg.zst"))
	require.NoError(t, err)
	file, err := os.ReadFile(found[0])
	require.NoError(t, err)
	file[len(file)/3] ^= 4
	require.NoError(t, os.WriteFile(found[0], file, 0o600))
}

// TestRebuiltEqualsRunning lets a process follow accounts, read their past, repair a gap, restore
// rows that were deleted by hand, lose a follow, and merge and split links. No stream's event and no
// fetched change is archived twice; a record may be both, even under one revision. A database that is
// rebuilt from the archive alone, by a rebuild that is killed once, then equals the running one.
func TestRebuiltEqualsRunning(t *testing.T) {
	t.Parallel()
	n := followNetwork(t, 40)
	database, second := schematest.NewURL(t), schematest.NewURL(t)
	pool, hub := open(t, database), n.Hub()
	root := t.TempDir()
	settings := []string{
		"WEIR_ARCHIVE=dir:" + root, "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_RESOLVE_LINKS=false", "WEIR_FETCH_CARDS=false", "WEIR_GAP_THRESHOLD=1ms",
	}
	env := slices.Concat(follower(n, database), settings, []string{"WEIR_WATCH=" + hub.DID})
	serve := start(t, env, "serve")
	finishes(t, 50*time.Millisecond, func() (int, error) {
		return tryCount(pool, `
			SELECT 1 - least(1, (SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL)) + (SELECT count(*) FROM river_job
			    WHERE kind = 'backfill_account' AND finalized_at IS NULL)`)
	}, "the past is not read")
	stop := live(t, n, 100)
	eventually.True(t, func() bool { return count(t, pool, `SELECT cursor FROM streams`) > 0 }, 20*time.Millisecond)
	stopServe(t, serve)
	stop()
	n.Play(300)
	require.NoError(t, n.Do(simnet.TooOld))
	n.Play(200)
	_, err := pool.Exec(t.Context(), `DELETE FROM posts WHERE rkey = (SELECT max(rkey) FROM posts)`)
	require.NoError(t, err)
	serve = start(t, env, "serve")
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL`) == 1 },
		20*time.Millisecond)
	require.NoError(t, n.Unfollow(hub.DID, n.Follows(hub.DID)[0]))
	succeed(t, env, "watch", "sync")
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM purge_queue`) == 1 }, 20*time.Millisecond)
	links := texts(t, pool, `
		SELECT url FROM (SELECT DISTINCT l.url FROM links AS l JOIN shares AS s ON s.named_id = l.id WHERE s.did IN (SELECT did
		    FROM watch_members)) AS l ORDER BY 1 LIMIT 4`)
	succeed(t, env, "link", "merge", links[0], links[1])
	succeed(t, env, "link", "merge", links[2], links[3])
	succeed(t, env, "link", "split", links[2])
	since := count(t, pool, `SELECT max(id) FROM river_job`)
	finishes(t, 50*time.Millisecond, func() (int, error) {
		return tryCount(pool, fmt.Sprintf(`
SELECT (SELECT count(*) FROM archive_open) + (SELECT count(*) FROM river_job
    WHERE state IN ('available', 'running') AND NOT 'periodic' = ANY (tags))
     + (SELECT 1 - least(1, count(*)) FROM river_job WHERE kind = 'snapshot_archive' AND state = 'completed' AND id > %d)`, since))
	}, "not everything is in the store")
	stopServe(t, serve)
	require.Positive(t, count(t, pool, `SELECT sum(records) FROM segments WHERE stream = 'fetched'`))
	events := archivedIn(t, root)
	for change, times := range archivedIn(t, filepath.Join(root, "fetched")) {
		require.Equal(t, 1, times, "fetched: "+change)
		events[change]--
	}
	for event, times := range events {
		require.LessOrEqual(t, times, 1, event)
	}

	rebuilt := open(t, second)
	env = slices.Concat(follower(n, second), settings)
	n.Stop() // the rebuild must not request anything
	killed := start(t, env, "archive", "rebuild", "--database", "--rate", "200")
	eventually.True(t, func() bool {
		begun, err := tryCount(rebuilt, `SELECT count(*) FROM records`)
		return err == nil && begun > 50
	}, time.Millisecond)
	killed.kill()
	require.Zero(t, count(t, rebuilt, `SELECT count(*) FROM streams WHERE wire <> 'recording'`),
		"the rebuild left streams other than recordings")
	succeed(t, env, "archive", "rebuild", "--database")
	stdout, stderr, code := weir(t, env, "compare", "--with", database)
	require.Zero(t, code, stdout+stderr)
	require.Positive(t, count(t, rebuilt, `SELECT count(*) FROM records`))
	require.Equal(t, 1, count(t, rebuilt, `SELECT count(*) FROM link_merges WHERE split_at IS NULL`))
	_, err = rebuilt.Exec(t.Context(), `DELETE FROM posts WHERE rkey = (SELECT max(rkey) FROM posts)`)
	require.NoError(t, err)
	_, _, code = weir(t, env, "compare", "--with", database)
	require.NotZero(t, code)
}
