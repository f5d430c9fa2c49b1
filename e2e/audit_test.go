package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// audited runs `weir audit` and returns its summary.
func audited(t *testing.T, env []string, args ...string) (sum schema.Audit, faults []string) {
	t.Helper()
	var answer struct {
		Audit  schema.Audit
		Faults []schema.Fault
	}
	out := succeed(t, env, append([]string{"audit", "--json", "--settle", "0s"}, args...)...)
	require.NoError(t, json.Unmarshal([]byte(out), &answer), out)
	for _, f := range answer.Faults {
		faults = append(faults, strings.TrimSpace(f.Fault+" "+f.Rkey))
	}
	slices.Sort(faults)
	return answer.Audit, faults
}

// followedForLong returns a database with the past of every account that the hub
// follows, and a process that keeps it up to date.
func followedForLong(t *testing.T) (n *simnet.Net, pool *pgxpool.Pool, env []string, serve *process) {
	t.Helper()
	n = followNetwork(t, 30)
	database := schematest.NewURL(t)
	pool = open(t, database)
	env = append(keeping(follower(n, database)), "WEIR_WATCH="+n.Hub().DID)
	serve = start(t, env, "serve")
	followed := len(active(n, n.Follows(n.Hub().DID)))
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account'`) >= followed
	}, 20*time.Millisecond)
	settled(t, pool)
	// The second reads of the feeds would repair what a test breaks.
	executes(t, database, `DELETE FROM river_job WHERE kind = 'request_backfill' AND state = 'scheduled'`)
	return n, pool, env, serve
}

// someoneBusy returns a followed account with at least this many stored posts
// of the past hours, newest first. It adds a post written now.
func someoneBusy(t *testing.T, n *simnet.Net, pool *pgxpool.Pool, posts int) (did string, rkeys []string) {
	t.Helper()
	did = texts(t, pool, `SELECT did FROM posts JOIN watch_members USING (did) GROUP BY did ORDER BY count(*) DESC, did LIMIT 1`)[0]
	rkeys = texts(t, pool,
		fmt.Sprintf(`SELECT rkey FROM posts WHERE did = '%s' AND rkey ~ '^3' AND created_at < now() - interval '5 minutes'`, did))
	require.GreaterOrEqual(t, len(rkeys), posts)
	e, err := n.PostNow(did, "now")
	require.NoError(t, err)
	eventually.True(t, func() bool {
		return count(t, pool, fmt.Sprintf(`SELECT count(*) FROM posts WHERE did = '%s' AND rkey = '%s'`, did, e.Rkey)) == 1
	}, 20*time.Millisecond)
	return did, rkeys
}

// TestAuditFindsAndRepairs makes changes by hand: it removes a post, adds one,
// alters one, changes the version of one, and hides one with a tombstone. The
// audit finds and repairs each.
func TestAuditFindsAndRepairs(t *testing.T) {
	t.Parallel()
	n, pool, env, serve := followedForLong(t)
	sum, faults := audited(t, env, "--all")
	require.Empty(t, faults)
	require.InDelta(t, 1, *sum.Score, 0)
	require.Greater(t, sum.Records, 50)
	require.Equal(t, count(t, pool, `
		SELECT count(DISTINCT did) FROM watch_members AS w
		WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = w.did AND a.status <> 'active')`), sum.Accounts)

	did, rkeys := someoneBusy(t, n, pool, 4)
	before := stored(t, pool)
	where := func(rkey string) string { return fmt.Sprintf(` WHERE did = '%s' AND rkey = '%s'`, did, rkey) }
	forged := syntax.NewTID(time.Now().Add(-time.Hour).UnixMicro(), 7).String()
	executes(t, env[0][len("DATABASE_URL="):],
		`DELETE FROM posts`+where(rkeys[0]),
		`UPDATE posts SET record = jsonb_set(record, '{text}', '"altered"')`+where(rkeys[1]),
		`UPDATE posts SET cid = 'another', record = '{"text": "another"}'`+where(rkeys[2]),
		`INSERT INTO tombstones (collection, did, rkey, rev, deleted_at) SELECT collection, did, rkey, rev, now() FROM posts`+where(rkeys[3]),
		`DELETE FROM posts`+where(rkeys[3]),
		fmt.Sprintf(`
			INSERT INTO posts (collection, did, rkey, rev, cid, created_at, record)
			VALUES ('app.bsky.feed.post', '%s', '%s', '%[2]s', 'c', now(), '{}')`, did, forged),
		fmt.Sprintf(`INSERT INTO links (identity, url, site, first_seen)
			VALUES ('https://forged.example/', 'https://forged.example/', 'forged.example', now());
			INSERT INTO shares (did, collection, rkey, link_id, named_id, how, shared_at)
			SELECT '%s', 'app.bsky.feed.post', '%s', id, id, 'post', now() FROM links WHERE url = 'https://forged.example/'`, did, forged))
	want := []string{"extra " + forged, "missing " + rkeys[0], "missing " + rkeys[3], "stale " + rkeys[1], "stale " + rkeys[2]}
	slices.Sort(want)
	sum, faults = audited(t, env, "--all")
	require.Equal(t, want, faults)
	require.Less(t, *sum.Score, 1.0)
	require.Equal(t, []int{2, 1, 2}, []int{sum.Missing, sum.Extra, sum.Stale})
	require.NotEqual(t, before, stored(t, pool), "an audit without --repair restored the posts")

	metrics := measured(t, serve.opsURL(t), "")
	for _, line := range []string{
		`weir_audit_faults{fault="missing"} 2`, `weir_audit_faults{fault="extra"} 1`, `weir_audit_faults{fault="stale"} 2`,
		`weir_audit_failures 0`, `weir_audit_score 0.9`,
	} {
		require.Contains(t, metrics, "\n"+line)
	}
	require.Contains(t, succeed(t, env, "status"), "WeirAuditScore")

	_, faults = audited(t, env, "--all", "--repair")
	require.Equal(t, want, faults)
	settled(t, pool)
	sum, faults = audited(t, env, "--all")
	require.Empty(t, faults)
	require.InDelta(t, 1, *sum.Score, 0)
	require.Equal(t, before, stored(t, pool))
	require.Zero(t, count(t, pool, `SELECT count(*) FROM shares WHERE rkey = '`+forged+`'`), "the forged post still counts")
	require.Equal(t, 1, count(t, pool, `SELECT count(*) FROM tombstones WHERE rkey = '`+forged+`'`))
	require.NotContains(t, succeed(t, env, "status"), "WeirAuditScore")
	oracle := fold(n.Log().Entries())
	for _, rkey := range rkeys[:4] { // compare the contents, not only the keys
		require.Equal(t, 1, count(t, pool, fmt.Sprintf(`SELECT count(*) FROM posts WHERE rkey = '%s' AND record = $$%s$$::jsonb`, rkey,
			oracle.records[recordKey{"app.bsky.feed.post", did, rkey}].record)))
	}
}

// TestAuditOfFailingServers shows that an audit of failing servers reports the
// failures and no faults in posts, and that an alert fires when no audit has
// run for too long.
func TestAuditOfFailingServers(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, pool, env, _ := followedForLong(t)
	someoneBusy(t, n, pool, 1)
	require.NoError(t, n.FailCalls(simnet.CallFault{Kind: simnet.Forbidden, Endpoint: "com.atproto.repo.listRecords", Count: 1_000_000}))
	sum, faults := audited(t, env, "--accounts", "5", "--repair")
	require.Equal(t, []string{"unread", "unread", "unread", "unread", "unread"}, faults)
	require.Nil(t, sum.Score)
	require.Equal(t, 5, sum.Failures)
	require.Contains(t, succeed(t, env, "status"), "WeirAuditFails")
	n.ClearCallFaults()
	sum, _ = audited(t, env, "--accounts", "5")
	require.NotNil(t, sum.Score)
	require.NotContains(t, succeed(t, env, "status"), "WeirAudit")

	executes(t, env[0][len("DATABASE_URL="):], `UPDATE audits SET ended_at = now() - interval '3 days'`)
	require.Contains(t, succeed(t, env, "status"), "WeirAuditOld")
	require.NotContains(t, succeed(t, append(env, "WEIR_AUDIT_INTERVAL=0"), "status"), "WeirAuditOld")
	executes(t, env[0][len("DATABASE_URL="):], `DELETE FROM audits`)
	require.NotContains(t, succeed(t, env, "status"), "WeirAudit", "a new database needs no audit yet")
	executes(t, env[0][len("DATABASE_URL="):], `UPDATE weir_migration SET applied_at = now() - interval '3 days'`)
	require.Contains(t, succeed(t, env, "status"), "WeirAuditOld")
}

// TestAuditRefusesWrongArguments shows that wrong arguments are refused in one
// sentence.
func TestAuditRefusesWrongArguments(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"audit --accounts 0", "audit --all --accounts 3", "audit --window 0s", "audit --settle -1s"} {
		_, stderr, code := weir(t, nil, strings.Fields(args)...)
		require.Equal(t, 1, code)
		require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
		require.NotContains(t, stderr, "DATABASE_URL")
	}
}
