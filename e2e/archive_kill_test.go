package e2e

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// recordsIn reads all segments of the bucket, without the code that wrote them.
func recordsIn(t *testing.T, b *bucket, stream string) (records [][]byte) {
	t.Helper()
	for name, file := range b.objects(".seg.zst") {
		if !strings.HasPrefix(name, stream) {
			continue
		}
		recordsOf(t, file, func(record []byte) { records = append(records, record) })
	}
	return records
}

// archivedBy returns how often each event is in the bucket.
func archivedBy(t *testing.T, b *bucket) map[string]int {
	t.Helper()
	events := map[string]int{}
	for _, record := range recordsIn(t, b, "") {
		countEvent(t, record, func(event string) { events[event]++ })
	}
	return events
}

// rememberedOf returns the events of the network that an archive keeps, each once: the deletion of
// an account or a record is kept, and what was deleted is not.
func rememberedOf(n *simnet.Net) map[string]int {
	events, revs := onceEach(n), map[string]string{}
	for _, e := range n.Log().Entries() {
		if e.Operation == "delete" {
			revs[e.DID+" "+e.Collection+" "+e.Rkey] = e.Rev
		}
		if e.Status == "deleted" {
			revs[e.DID] = "deleted"
		}
	}
	for event := range events {
		part := strings.Fields(event)
		gone := revs[part[0]] != "" && part[1] != "account"
		if len(part) == 5 {
			gone = part[4] != "delete" && (gone || part[3] <= revs[strings.Join(part[:3], " ")])
		}
		if gone {
			delete(events, event)
		}
	}
	return events
}

// archiveKills is a process that is killed while it archives and forgets.
type archiveKills struct {
	*killing
	pool   *pgxpool.Pool
	bucket *bucket
}

// kills kills the process and makes its running jobs available at once, instead of after
// WEIR_RESCUE_AFTER. The attempt does not count: after the fifth, a job that the bucket refuses
// waits for ten minutes.
func (a *archiveKills) kills() {
	a.t.Helper()
	a.process.kill()
	_, err := a.pool.Exec(a.t.Context(), `UPDATE river_job SET state = 'available', attempt = attempt - 1 WHERE state = 'running'`)
	require.NoError(a.t, err)
}

// deletes deletes the next active account that has posted.
func (a *archiveKills) deletes() {
	a.t.Helper()
	for _, one := range a.net.Accounts() {
		if one.Status == "" && slices.ContainsFunc(a.net.Log().Entries(),
			func(e *simnet.Entry) bool { return e.DID == one.DID && e.Collection == "app.bsky.feed.post" }) {
			require.NoError(a.t, a.net.Delete(one.DID))
			return
		}
	}
	require.Fail(a.t, "no active account with a post is left")
}

// killsIn kills the process when the bucket holds the first request of a step.
func (a *archiveKills) killsIn(step string) {
	a.t.Helper()
	reached := a.bucket.holds(step, 1)
	a.process = start(a.t, a.env, "serve")
	a.net.Play(60)
	a.deletes()
	reached(a.process)
	a.kills()
}

// killsInSeal kills the process when a segment's file is complete and its manifest is not yet in
// the database.
func (a *archiveKills) killsInSeal() {
	a.t.Helper()
	a.net.Play(60)
	a.killedAt(1, "seal: file written")
	a.kills()
}

// meetsNoBucket waits until a job has failed because the bucket refuses connections.
func (a *archiveKills) meetsNoBucket() {
	a.t.Helper()
	eventually.True(a.t, func() bool {
		n, err := tryCount(a.pool, `
			SELECT count(*) FROM river_job WHERE queue = 'archive' AND finalized_at IS NULL
			    AND errors[array_upper(errors, 1)] ->> 'error' LIKE '%connection refused%'`)
		return err == nil && n > 0
	}, 20*time.Millisecond, "no job has met it: %s", tail(a.process.stderr.String(), 2000))
}

// settled waits until everything is in the bucket and every segment has been compared with the list
// of what must be forgotten.
func (a *archiveKills) settled() {
	a.t.Helper()
	a.drain(a.pool)
	var since time.Time
	require.NoError(a.t, a.pool.QueryRow(a.t.Context(), `SELECT clock_timestamp()`).Scan(&since))
	finishes(a.t, 50*time.Millisecond, func() (left int, err error) {
		err = a.pool.QueryRow(a.t.Context(), `
SELECT (SELECT count(*) FROM archive_open) + (SELECT count(*) FROM forgotten WHERE listed_at IS NULL) +
       (SELECT count(*) FROM segments WHERE synced_at IS NULL OR forgotten_at IS NULL OR forgotten_at < $1)`, since).Scan(&left)
		return left, err
	}, "something is not forgotten: %s", tail(a.process.stderr.String(), 2000))
}

// TestKilledArchive kills the process in each step of sealing, syncing, forgetting and sweeping. It
// crashes Postgres and the bucket between a manifest and its switch, and kills two rebuilds. Every
// event is in the segments once, and deleted content is not in them. A rebuilt database has the
// same records.
func TestKilledArchive(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, server, b, folder := busyNetwork(t), schematest.Server(t), newBucket(t), t.TempDir()
	settings := slices.Concat(b.env(), []string{"WEIR_ARCHIVE_INTERVAL=1s", "WEIR_ARCHIVE_FORGET=1s", "WEIR_RESOLVE_LINKS=false",
		"TMPDIR=" + folder, "WEIR_JOB_TIMEOUT=5s", "WEIR_RESCUE_AFTER=6s"}) // a job of the archive that is slow three times waits for an hour
	a := &archiveKills{killing: &killing{t: t, net: n, server: server, env: append(reads(n, server.URL("weir")), settings...)}, bucket: b}
	succeed(t, a.env, "migrate")
	a.pool = open(t, server.URL("weir"))
	a.killsInSeal()
	for _, step := range []string{
		"before PUT segment", "after PUT segment", "before GET segment", "before PUT manifest", "after PUT manifest",
		"after PUT jsonl", "after PUT authors", "before PUT later segment", "after PUT later segment", "before PUT later manifest",
		"after PUT later manifest",
	} {
		a.killsIn(step)
	}
	for _, step := range []string{"after PUT manifest", "after PUT later manifest"} {
		reached := b.holds(step, 1)
		a.process = start(t, a.env, "serve")
		n.Play(60)
		a.deletes()
		reached(a.process)
		require.NoError(t, server.Crash(t.Context()))
		b.crashes()
		require.NoError(t, server.Resume(t.Context()))
		a.pool = open(t, server.URL("weir"))
		a.meetsNoBucket()
		b.starts()
		a.settled()
		stopServe(t, a.process)
	}
	b.ages()
	for _, step := range []string{"after DELETE manifest", "before DELETE later segment"} {
		reached := b.holds(step, 1)
		a.process = start(t, a.env, "serve")
		reached(a.process)
		a.kills()
	}
	a.process = start(t, a.env, "serve")
	a.settled()
	eventually.True(t, b.once, 50*time.Millisecond, "replaced versions or orphans are left in the bucket")
	stopServe(t, a.process)
	require.Empty(t, notOnce(rememberedOf(n), archivedBy(t, b)))
	require.Less(t, len(rememberedOf(n)), len(onceEach(n)))
	require.Contains(t, succeed(t, a.env, "archive", "verify"), "records")

	second := schematest.NewURL(t)
	env := append(reads(n, second), settings...)
	for _, segment := range []int{2, 5} {
		reached := b.holds("before GET later segment", segment)
		rebuild := start(t, env, "archive", "rebuild", "--database")
		reached(rebuild)
		rebuild.kill()
	}
	succeed(t, env, "archive", "rebuild", "--database")
	require.Empty(t, notOnce(restorable(t, a.pool), restorable(t, open(t, second))))
	stdout, stderr, code := weir(t, env, "compare", "--with", server.URL("weir"))
	require.Zero(t, code, stdout+stderr)
}
