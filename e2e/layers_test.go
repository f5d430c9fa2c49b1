package e2e

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestLayersEndAsAFoldSays has 30 accounts write records of the 26 collections of pub.layers, over
// a relay and over Jetstream, while the process is killed. Records arrive up to a minute before the
// records that they require, or without them; some are edited, deleted, or broken. In the end each
// is valid, dangling, parked or a dead letter, as an independent fold computes. This is checked
// twice: after every missing record was requested, and after late changes while the servers do not
// respond. During the late changes the data derived from the records is destroyed and rebuilt.
//
// WEIR_LAYERS_RECORDS is the number of records for each wire. If it is set, the last check waits
// its full 16 seconds; otherwise it is made due early.
func TestLayersEndAsAFoldSays(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for _, wire := range []string{"firehose", "jetstream"} {
		t.Run(wire, func(t *testing.T) {
			t.Parallel()
			l := newLayered(t, wire)
			l.writes(l.plan.early)
			l.asked()
			l.compare()
			l.ladder()

			require.NoError(t, l.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: "com.atproto.repo.getRecord", Count: 1 << 30}))
			l.rebuilds(l.plan.late)
			l.compare()
			l.views()
			counts := map[string]int{}
			for _, line := range l.states() {
				counts[strings.Join(strings.Fields(strings.Split(line, " refs:")[0])[2:], " ")]++
			}
			for _, state := range []string{
				"valid projected", "valid projected dangling", "valid parked", "valid missing letter:reference", "invalid refused letter:lexicon",
				"valid refused letter:rules",
			} {
				require.Positive(t, counts[state], "%s: %v", state, counts)
			}
			t.Logf("%d changes, %v", len(l.net.Log().Entries()), counts)
		})
	}
}

// layered is a network whose accounts write records of pub.layers, and the process that judges
// them.
type layered struct {
	t       *testing.T
	net     *simnet.Net
	plan    *layersPlan
	env     []string
	pool    *pgxpool.Pool
	process *process
	real    bool // checks wait their full time
}

func newLayered(t *testing.T, wire string) *layered {
	t.Helper()
	records, real := cmp.Or(*layerRecords, 360), *layerRecords > 0
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	n, err := simnet.New(simnet.Config{Seed: seed, Accounts: 30})
	require.NoError(t, err)
	startNetwork(t, n)
	var dids []string
	for _, a := range n.Accounts() {
		dids = append(dids, a.DID)
	}
	require.NoError(t, n.Withhold(dids[len(dids)-1], true))
	url := schematest.NewURL(t)
	l := &layered{t: t, net: n, plan: newLayersPlan(seed, dids, records), pool: open(t, url+"&application_name=oracle"), real: real}
	l.env = slices.Concat(follower(n, url), []string{"WEIR_START=oldest", "WEIR_COLLECTIONS=app.bsky.feed.post," + layersName + "*",
		"WEIR_LEXICONS=" + layersFolder(t), "WEIR_BATCH_EVENTS=50", "WEIR_BATCH_INTERVAL=20ms", "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=2m"})
	if wire == "firehose" {
		l.env = append(l.env, readsRelay(n)...)
	}
	for _, sql := range []string{
		`CREATE TABLE ladder (step text, target text, since timestamptz)`,
		`CREATE FUNCTION climb() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO ladder VALUES (NEW.state || ' ' || NEW.attempts || coalesce(' ' || extract(epoch FROM NEW.retry_at - now())::int, ''),
                               'at://' || NEW.to_did || '/' || NEW.to_collection || '/' || NEW.to_rkey, NEW.since);
    RETURN NULL;
END $$`,
		`CREATE TRIGGER climbs AFTER INSERT OR UPDATE OF attempts ON parked FOR EACH ROW EXECUTE FUNCTION climb()`,
	} {
		_, err := l.pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return l
}

// layersFolder returns a folder of the lexicons of pub.layers: the real ones, or our own under the
// same names.
func layersFolder(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("WEIR_TESTDATA"); dir != "" {
		return filepath.Join(dir, "lexicons")
	}
	from, to := os.DirFS("../internal/lexicon/testdata/lexicons"), t.TempDir()
	require.NoError(t, os.CopyFS(to, from))
	require.NoError(t, filepath.WalkDir(to, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path) // a folder of the test
		if err != nil {
			return err
		}
		return os.WriteFile(path, []byte(strings.ReplaceAll(string(text), "example.weir.", layersName)), 0o600)
	}))
	return to
}

// writes makes the changes, and kills the process in a commit, in a judgment and in a release.
func (l *layered) writes(changes []layersChange) {
	l.t.Helper()
	points := []string{"commit: before its end", "judgment: after its transaction", "release: no target is due"}
	for _, point := range points {
		part := changes[:len(changes)/len(points)]
		changes = changes[len(part):]
		l.restart(killAt(1, point))
		happen(l.t, l.net, part)
		l.process.dies(l.t)
	}
	l.restart()
	happen(l.t, l.net, changes)
}

// restart starts a process in place of one that was killed.
func (l *layered) restart(env ...string) {
	l.t.Helper()
	finishes(l.t, 3*time.Millisecond, func() (int, error) { // statements of the killed process may still be committed
		return tryCount(l.pool, `
			SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'
			    AND application_name <> 'oracle'`)
	}, "the dead process has connections")
	// The killed process's leadership and jobs are held for minutes: end that now.
	_, err := l.pool.Exec(l.t.Context(),
		`WITH dead AS (DELETE FROM river_leader) UPDATE river_job SET attempted_at = attempted_at - interval '1 hour' WHERE state = 'running'`)
	require.NoError(l.t, err)
	l.process = start(l.t, slices.Concat(l.env, env), "serve")
}

// unjudged counts the jobs left to do, without the checks that are due later.
const unjudged = `(SELECT count(*) FROM river_job WHERE kind IN ('judge_records', 'judge_dependents',` +
	` 'judge_account') AND finalized_at IS NULL)`

// asked waits until every missing record was looked up and requested from its server.
func (l *layered) asked() {
	l.t.Helper()
	l.read()
	finishes(l.t, 50*time.Millisecond, func() (int, error) {
		if !l.real {
			_, err := l.pool.Exec(l.t.Context(), `
WITH due AS (UPDATE parked SET retry_at = now() WHERE ctid = ANY (ARRAY(SELECT ctid FROM parked
    WHERE state = 'waiting' AND attempts = 2 AND retry_at > now() FOR UPDATE SKIP LOCKED)) RETURNING 1)
UPDATE river_job SET scheduled_at = now(), state = 'available'
WHERE kind = 'check_parked' AND state IN ('scheduled', 'available') AND scheduled_at > now() AND EXISTS (SELECT FROM due)`)
			if err != nil {
				return 0, err
			}
		}
		return tryCount(l.pool, `SELECT `+unjudged+` + (SELECT count(*) FROM parked WHERE state <> 'missing')`)
	}, "records wait: %s", tail(l.process.stderr.String(), 2000))
}

// read waits until the last change has been read and every record is judged.
func (l *layered) read() {
	l.t.Helper()
	var last *simnet.Entry
	for _, e := range l.net.Log().Entries() {
		if !e.Withheld {
			last = e
		}
	}
	finishes(l.t, 20*time.Millisecond, func() (int, error) {
		return tryCount(l.pool, fmt.Sprintf(`
			SELECT count(*) FROM streams WHERE last_event_at IS NULL OR last_event_at < to_timestamp(%d / 1000000.0)`, last.TimeUS))
	}, "the last change is not read: %s", tail(l.process.stderr.String(), 2000))
	finishes(l.t, 20*time.Millisecond, func() (int, error) { return tryCount(l.pool, `SELECT `+unjudged) }, "not judged: %s",
		tail(l.process.stderr.String(), 2000))
}

// states returns the database's verdict on each record, in the form of layersFold.states.
func (l *layered) states() []string {
	l.t.Helper()
	lines := texts(l.t, l.pool, `
SELECT 'at://' || r.did || '/' || r.collection || '/' || r.rkey || ' ' || coalesce(v.cid || ' ' || v.verdict || ' ' || v.state ||
    CASE WHEN v.dangling THEN ' dangling' ELSE '' END, 'not judged')
       || coalesce(' refs:' || (SELECT string_agg(f.path || CASE WHEN f.dangling THEN '!' ELSE '' END, ','
           ORDER BY (f.path || CASE WHEN f.dangling THEN '!' ELSE '' END) COLLATE "C")
                                FROM record_refs AS f WHERE (f.did, f.collection, f.rkey) = (r.did, r.collection, r.rkey)), '')
       || coalesce(' letter:' || (SELECT string_agg(d.stage, ',') FROM dead_letters AS d
           WHERE (d.did, d.collection, d.rkey) = (r.did, r.collection, r.rkey) AND d.state IN ('open', 'retrying')), '')
FROM records_other AS r FULL JOIN verdicts AS v ON (v.did, v.collection, v.rkey) = (r.did, r.collection, r.rkey)
WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = coalesce(r.did, v.did) AND a.status = 'deleted')`)
	slices.Sort(lines)
	return lines
}

// compare waits until every record is judged, and compares all of them with the fold.
func (l *layered) compare() {
	l.t.Helper()
	l.read()
	want, got := foldLayers(l.net.Log().Entries(), l.net.Calls("com.atproto.repo.getRecord")).states(), l.states()
	require.NotEmpty(l.t, want)
	var differ []string
	for _, line := range want {
		if _, found := slices.BinarySearch(got, line); !found {
			differ = append(differ, "- "+line)
		}
	}
	for _, line := range got {
		if _, found := slices.BinarySearch(want, line); !found {
			differ = append(differ, "+ "+line)
		}
	}
	slices.SortFunc(differ, func(a, b string) int { return strings.Compare(a[2:], b[2:]) })
	require.Empty(l.t, differ, strings.Join(differ[:min(len(differ), 40)], "\n"))
}

// ladder checks that each target was looked up after 1, 4 and 16 seconds, and that the ones then
// missing were requested from their servers.
func (l *layered) ladder() {
	l.t.Helper()
	require.Equal(l.t, []string{"asking 3", "waiting 0 1", "waiting 1 4", "waiting 2 16"},
		texts(l.t, l.pool, `SELECT DISTINCT step FROM ladder ORDER BY 1`))
	asked := map[string]time.Time{}
	for _, call := range l.net.Calls("com.atproto.repo.getRecord") {
		if at, again := asked[call.URIs[0]]; !again || call.At.Before(at) {
			asked[call.URIs[0]] = call.At
		}
	}
	waited := texts(l.t, l.pool, `SELECT target || ' ' || extract(epoch FROM min(since)) FROM ladder
		WHERE target IN (SELECT 'at://' || to_did || '/' || to_collection || '/' || to_rkey FROM parked WHERE state = 'missing') GROUP BY target`)
	require.NotEmpty(l.t, waited)
	least := 5.0
	if l.real {
		least = 21
	}
	for _, line := range waited {
		uri, text, _ := strings.Cut(line, " ")
		since, err := strconv.ParseFloat(text, 64)
		require.NoError(l.t, err)
		require.Contains(l.t, asked, uri, "its server was not asked for the missing record")
		require.GreaterOrEqual(l.t, float64(asked[uri].UnixMicro())/1e6, since+least, uri)
	}
	l.process.signal(syscall.SIGTERM) // a process that stops gracefully leaves the rest to the next
	require.Zero(l.t, l.process.wait(l.t, time.Minute))
}
