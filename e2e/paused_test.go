package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// move is one advance of the cursor, as a trigger records it.
type move struct {
	Who    string `json:"who"`
	Epoch  int64  `json:"epoch"`
	Cursor int64  `json:"cursor"`
}

// TestPausedConsumerCommitsNothing stops a consumer before a commit. When another one has taken over
// and read everything, the first one is continued, and its commit is refused: the stream is as the
// other one left it.
func TestPausedConsumerCommitsNothing(t *testing.T) {
	t.Parallel()
	n := network(t, 1000)
	database := schematest.NewURL(t)
	pool := open(t, database)
	_, err := pool.Exec(t.Context(), `
CREATE TABLE moves (n bigint GENERATED ALWAYS AS IDENTITY, who text, epoch bigint, cursor bigint);
CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO moves (who, epoch, cursor) VALUES (current_setting('application_name'), NEW.epoch, NEW.cursor);
    RETURN NEW;
END $$;
CREATE TRIGGER moved AFTER UPDATE ON streams FOR EACH ROW WHEN (OLD.cursor IS DISTINCT FROM NEW.cursor) EXECUTE FUNCTION moved()`)
	require.NoError(t, err)
	env := func(name, lease string) []string {
		return append(reads(n, database+"&application_name="+name), "WEIR_BATCH_EVENTS=20", "WEIR_BATCH_INTERVAL=10ms", "WEIR_LEASE_TTL="+lease)
	}
	moves := func(who string) int { return count(t, pool, `SELECT count(*) FROM moves WHERE who = '`+who+`'`) }
	first := start(t, append(env("first", "1s"), stopAt(5, "commit: before it begins")), "consume")
	first.stops(t)
	paused := moves("first")
	second := start(t, env("second", "1h"), "consume") // it must not lose its lease
	readsAll(t, pool, n)
	first.signal(syscall.SIGCONT)
	eventually.True(t, func() bool {
		return strings.Contains(first.stderr.String(), "lease_lost") || moves("first") > paused
	}, 20*time.Millisecond)
	n.Play(100)
	readsAll(t, pool, n)

	var raw []byte
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT json_agg(json_build_object('who', who, 'epoch', epoch, 'cursor', cursor) ORDER BY n) FROM moves`).Scan(&raw))
	var all []move
	require.NoError(t, json.Unmarshal(raw, &all))
	taken := false
	for i, m := range all {
		taken = taken || m.Who == "second"
		if taken {
			require.Equal(t, "second", m.Who, "commit %d of %d", i+1, len(all))
		}
	}

	// The second consumer is killed, and the first takes over again.
	second.kill()
	execute(t, database, `UPDATE streams SET lease_expires_at = now()`)
	n.Play(100)
	readsAll(t, pool, n)
	require.Equal(t, 3, count(t, pool, `SELECT max(epoch) FROM streams`))
	stopServe(t, first)
	succeed(t, append(reads(n, database), "WEIR_COLLECTIONS=app.bsky.feed.post"), "trending")
	oracle := fold(n.Log().Entries())
	maps.DeleteFunc(oracle.records, func(k recordKey, _ recordRow) bool { return oracle.gone(k.did) })
	require.Equal(t, len(oracle.records),
		count(t, pool, `SELECT count(*) FROM records WHERE did NOT IN (SELECT did FROM accounts WHERE status = 'deleted')`))
}

// TestPausedWorkerDelaysNothing stops a worker inside its transaction, with a lock
// on a post that is then deleted: the stream does not wait for the worker.
func TestPausedWorkerDelaysNothing(t *testing.T) {
	t.Parallel()
	n := calmNetwork(t)
	database := schematest.NewURL(t)
	pool := open(t, database)
	e, err := n.PostNow(someone(t, n), "a post", "https://a.example/a")
	require.NoError(t, err)
	consume := start(t, reads(n, database), "consume")
	work := start(t, append(keeping(reads(n, database)), stopAt(1, "projection: before its end")), "work")
	work.stops(t)
	waits := func(sql string, because string) {
		t.Helper()
		eventually.True(t, func() bool { return count(t, pool, sql) >= 1 }, 20*time.Millisecond, because)
	}
	require.NoError(t, n.DeleteRecord("at://"+e.DID+"/"+e.Collection+"/"+e.Rkey))
	waits(fmt.Sprintf(`SELECT count(*) FROM tombstones WHERE did = '%s' AND rkey = '%s'`, e.DID, e.Rkey),
		"the stream waits for the stopped worker")
	work.signal(syscall.SIGCONT)
	finishes(t, 20*time.Millisecond, func() (int, error) { return unprocessed(pool) }, "the job is not finished")
	oracle := fold(n.Log().Entries())
	problems, err := oracle.problems(t.Context(), pool, time.Now())
	require.NoError(t, err)
	require.Empty(t, problems, strings.Join(problems, "\n"))
	for _, p := range []*process{consume, work} {
		stopServe(t, p)
	}
}

// someone is an active account.
func someone(t *testing.T, n *simnet.Net) string {
	t.Helper()
	for _, a := range n.Accounts() {
		if a.Status == "" {
			return a.DID
		}
	}
	require.Fail(t, "no account is active")
	return ""
}
