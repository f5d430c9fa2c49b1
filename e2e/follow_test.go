package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// followNetwork is a simulated network whose hub follows this many accounts.
func followNetwork(t *testing.T, follows int) *simnet.Net {
	t.Helper()
	n, err := simnet.New(simnet.Config{Seed: 12, Accounts: 600, Follows: follows, History: 4000, HistorySpan: 3 * time.Hour})
	require.NoError(t, err)
	startNetwork(t, n)
	return n
}

// follower is the environment of a process that also calls the network's services.
func follower(n *simnet.Net, database string) []string {
	return append(reads(n, database), "WEIR_START=tip", "WEIR_APPVIEW="+n.AppViewURL(), "WEIR_DIRECTORY="+n.DirectoryURL(),
		"WEIR_API_INTERVAL=0s")
}

// current returns the posts of these accounts that exist at the end of the log.
func current(n *simnet.Net, dids []string) []string {
	posts := map[string]bool{}
	for _, e := range n.Log().Entries() {
		if e.Kind == "commit" && e.Collection == "app.bsky.feed.post" && slices.Contains(dids, e.DID) {
			posts[e.DID+"/"+e.Rkey] = e.Operation != "delete"
		}
	}
	var all []string
	for post, there := range posts {
		if there {
			all = append(all, post)
		}
	}
	slices.Sort(all)
	return all
}

func stored(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, pool, `SELECT did || '/' || rkey FROM posts`)
}

// watched returns the followed accounts.
func watched(t *testing.T, pool *pgxpool.Pool) []string {
	t.Helper()
	return texts(t, pool, `SELECT DISTINCT did FROM watch_members`)
}

// texts returns the rows of a query, sorted.
func texts(t *testing.T, pool *pgxpool.Pool, sql string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	slices.Sort(all)
	return all
}

func active(n *simnet.Net, dids []string) []string {
	return slices.DeleteFunc(slices.Clone(dids), func(did string) bool {
		a, ok := n.Account(did)
		return !ok || a.Status != ""
	})
}

// settled waits until only periodic jobs are left, and the second reads of new follows, which are
// due in a minute.
func settled(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	eventually.True(t, func() bool {
		left, err := tryCount(pool, `SELECT count(*) FROM river_job WHERE state NOT IN ('completed', 'cancelled', 'discarded')
			AND NOT (kind = 'request_backfill' AND state = 'scheduled')`)
		return err == nil && left == 0
	}, 20*time.Millisecond)
}

// TestWatchFillsThePage shows that a watch at the first start adds the accounts, their past and
// their new posts. Unfollowed accounts stop counting at once.
func TestWatchFillsThePage(t *testing.T) {
	t.Parallel()
	watchFillsThePage(t, func(string) []string { return nil })
}

// watchFillsThePage runs Weir with additional variables, which may depend on the database.
func watchFillsThePage(t *testing.T, more func(database string) []string) {
	t.Helper()
	n := followNetwork(t, 60)
	database := schematest.NewURL(t)
	pool := open(t, database)
	hub := n.Hub()
	env := slices.Concat(follower(n, database), more(database), []string{"WEIR_WATCH=" + hub.Handle})
	serve := start(t, env, "serve")
	followed := active(n, n.Follows(hub.DID))
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM follows`) == len(followed)
	}, 20*time.Millisecond)
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account'`) >= len(followed)
	}, 20*time.Millisecond)
	settled(t, pool)
	require.Equal(t, current(n, followed), stored(t, pool), "the past of the readable accounts")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM accounts WHERE feed_problem <> ''`))
	require.NotEmpty(t, rankedLinks(t, env, "6h", time.Now().Add(time.Minute).UTC().Format(time.RFC3339)))

	someone := stranger(t, n, followed)

	// New posts: only those of followed accounts are stored.
	stop := live(t, n, 100)
	before := count(t, pool, `SELECT count(*) FROM posts`)
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM posts`) > before+20 }, 20*time.Millisecond)
	require.Zero(t, count(t, pool, `SELECT count(*) FROM posts AS p WHERE NOT EXISTS (SELECT FROM watch_members AS w WHERE w.did = p.did)`))

	// A new follow adds its past and its new posts, without a hole between them.
	require.NoError(t, n.Follow(hub.DID, someone))
	succeed(t, env, "watch", "sync")
	eventually.True(t, func() bool {
		return count(t, pool, fmt.Sprintf(`SELECT count(*) FROM accounts WHERE did = '%s' AND feed_read_at IS NOT NULL`, someone)) == 1
	}, 20*time.Millisecond)
	stop()
	last := n.Log().Last().Seq
	eventually.True(t, func() bool {
		// A followed account writes last, so the cursor passes all other events.
		_, err := n.PostNow(someone, "the last one")
		require.NoError(t, err)
		return count(t, pool, `SELECT cursor FROM streams`) > int(last)
	}, 50*time.Millisecond)
	settled(t, pool)
	require.Subset(t, stored(t, pool), current(n, []string{someone})[:5])
	mine := func(all []string) []string {
		return slices.DeleteFunc(all, func(post string) bool { return post[:len(someone)] != someone })
	}
	eventually.True(t, func() bool {
		return slices.Equal(mine(current(n, []string{someone})), mine(stored(t, pool)))
	}, 50*time.Millisecond, "posts are missing or doubled")

	// Unfollowed accounts no longer count.
	require.Positive(t, count(t, pool, fmt.Sprintf(`SELECT count(*) FROM posts WHERE did = '%s'`, someone)))
	require.NoError(t, n.Unfollow(hub.DID, someone))
	succeed(t, env, "watch", "sync")
	eventually.True(t, func() bool {
		return count(t, pool, fmt.Sprintf(`SELECT count(*) FROM watch_members WHERE did = '%s'`, someone)) == 0
	}, 20*time.Millisecond)
	require.Contains(t, succeed(t, env, "watch", "list"), hub.Handle)
	require.Contains(t, succeed(t, env, "backfill", "status"), "accounts")
	stopServe(t, serve)
}

// leaveAlone keeps the simulation from hiding an active account: random events do not change
// a status that was set by hand.
func leaveAlone(t *testing.T, n *simnet.Net, did string) {
	t.Helper()
	require.NoError(t, n.Deactivate(did))
	require.NoError(t, n.Reactivate(did))
}

// stranger returns an account with posts that is not followed. The simulation no longer hides it.
func stranger(t *testing.T, n *simnet.Net, followed []string) string {
	t.Helper()
	for _, a := range n.Accounts() {
		if !slices.Contains(followed, a.DID) && a.DID != n.Hub().DID && a.Status == "" && len(current(n, []string{a.DID})) > 5 {
			leaveAlone(t, n, a.DID)
			return a.DID
		}
	}
	require.Fail(t, "every active account with posts is followed")
	return ""
}

// TestGapIsClosedFromTheFeeds closes a gap after the server has forgotten the events of the
// consumer's downtime.
func TestGapIsClosedFromTheFeeds(t *testing.T) {
	t.Parallel()
	n := followNetwork(t, 40)
	database := schematest.NewURL(t)
	pool := open(t, database)
	hub := n.Hub()
	env := append(follower(n, database), "WEIR_WATCH="+hub.DID, "WEIR_GAP_THRESHOLD=1ms")
	serve := start(t, env, "serve")
	followed := active(n, n.Follows(hub.DID))
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account'`) >= len(followed)
	}, 20*time.Millisecond)
	settled(t, pool)
	stop := live(t, n, 100)
	eventually.True(t, func() bool { return count(t, pool, `SELECT cursor FROM streams`) > 0 }, 20*time.Millisecond)
	stopServe(t, serve)
	stop()
	n.Play(2000)
	require.NoError(t, n.Do(simnet.TooOld))
	n.Play(300)
	serve = start(t, env, "serve")
	eventually.True(t, func() bool { return count(t, pool, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL`) == 1 },
		20*time.Millisecond)
	settled(t, pool)
	want := current(n, active(n, followed))
	require.Equal(t, want, slices.DeleteFunc(stored(t, pool), func(post string) bool { return !slices.Contains(want, post) }))
	require.Equal(t, 1,
		count(t, pool, `SELECT count(*) FROM gaps WHERE how_closed LIKE 'the records of % accounts were compared%' AND accounts > 0`))
	stopServe(t, serve)
}

// TestThreeProcessesShareTheLimit shows that, whatever the number of workers, the services receive
// at most ten concurrent calls, each at least 100 ms after the one before. A process that is killed
// while it reads a feed loses and duplicates nothing.
//
// The test checks the start times that the database assigned, because the time at which a call
// reaches the service depends on the machine.
func TestThreeProcessesShareTheLimit(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := followNetwork(t, 30)
	n.SetLatency(5 * time.Second) // long enough to use all ten slots
	database := schematest.NewURL(t)
	pool := open(t, database)
	_, err := pool.Exec(t.Context(), `
CREATE TABLE starts (n bigint GENERATED ALWAYS AS IDENTITY, next_at timestamptz);
CREATE FUNCTION record_start() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO starts (next_at)
VALUES (NEW.next_at); RETURN NULL; END $$;
CREATE TRIGGER record_start AFTER UPDATE ON api_schedule FOR EACH ROW EXECUTE FUNCTION record_start()`)
	require.NoError(t, err)
	hub := n.Hub()
	env := append(keeping(follower(n, database)), "WEIR_API_INTERVAL=100ms", "WEIR_BACKFILL_WORKERS=6", "WEIR_COLLECTIONS=app.bsky.feed.post")
	var processes []*process
	for range 3 {
		processes = append(processes, start(t, env, "work"))
	}
	succeed(t, env, "watch", "add", hub.Handle)
	followed := active(n, n.Follows(hub.DID))
	eventually.True(t, func() bool { return n.MaxConcurrent() > 4 }, 5*time.Millisecond, "the calls follow each other")
	n.SetLatency(time.Second)
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`) > 3
	}, 5*time.Millisecond)
	processes[0].kill()
	rescued(t, pool, processes[0])
	eventually.True(t, func() bool {
		return count(t, pool, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL OR feed_problem <> ''`) >= len(followed)
	}, 50*time.Millisecond)
	settled(t, pool)
	require.Equal(t, current(n, active(n, followed)), stored(t, pool))
	calls := n.Calls()
	t.Logf("the services saw %d calls, at most %d at once and at least %s apart", len(calls), n.MaxConcurrent(), n.MinGap())
	require.LessOrEqual(t, n.MaxConcurrent(), 10)
	require.Greater(t, len(calls), 60)
	require.GreaterOrEqual(t, count(t, pool, `SELECT count(*) FROM starts`), len(calls), "calls without a start")
	require.Zero(t, count(t, pool, `
SELECT count(*) FILTER (WHERE next_at < before + interval '100 milliseconds')
FROM (SELECT next_at, lag(next_at) OVER (ORDER BY n) AS before FROM starts) AS s`), "starts that are too close")
}

// TestKillWhileFollowing kills the process in a follow sync and in a backfill while the accounts
// post. Afterwards the tables hold exactly the posts of the followed accounts.
func TestKillWhileFollowing(t *testing.T) {
	t.Parallel()
	n := followNetwork(t, 60)
	database := schematest.NewURL(t)
	pool := open(t, database)
	hub := n.Hub()
	env := append(follower(n, database), "WEIR_WATCH="+hub.Handle, "WEIR_RETENTION=24h")
	stop := live(t, n, 100)
	for _, point := range []string{"follows: before a page's end", "follows: before the end", "backfill: before a page's end"} {
		killed := start(t, append(slices.Clone(env), killAt(1, point)), "serve")
		killed.dies(t)
		rescued(t, pool, killed)
	}
	serve := start(t, env, "serve")
	eventually.True(t, func() bool {
		left, err := tryCount(pool, `SELECT count(*) FROM watch_members AS w WHERE NOT EXISTS (SELECT FROM accounts AS a
			WHERE a.did = w.did AND (a.feed_read_at IS NOT NULL OR a.feed_problem <> ''))`)
		return err == nil && left == 0 && count(t, pool, `SELECT count(*) FROM watch_members`) > 0
	}, 50*time.Millisecond)
	stop()
	// The next listing again names accounts that were hidden for a while.
	followed := slices.Sorted(slices.Values(active(n, n.Follows(hub.DID))))
	asked := time.Now()
	succeed(t, env, "watch", "sync")
	eventually.True(t, func() bool {
		return count(t, pool,
			fmt.Sprintf(`SELECT count(*) FROM watches WHERE synced_at >= to_timestamp(%d / 1000000.0)`, asked.UnixMicro())) == 1 &&
			count(t, pool, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state <> 'completed'`) == 0
	}, 50*time.Millisecond)
	// The cursor passes the played events once a followed account writes after them.
	require.Subset(t, watched(t, pool), followed)
	last, err := n.PostNow(followed[0], "the last one")
	require.NoError(t, err)
	eventually.True(t, func() bool {
		return count(t, pool, fmt.Sprintf(`SELECT count(*) FROM posts WHERE did = '%s' AND rkey = '%s'`, last.DID, last.Rkey)) == 1
	}, 20*time.Millisecond)
	settled(t, pool)                 // the stream may have told late that an account is active again, and its posts are read again
	eventually.True(t, func() bool { // a read that is refused while the stream tells it is repeated soon
		return count(t, pool, `SELECT count(*) FROM accounts
			WHERE feed_problem <> '' AND did = ANY ('{`+strings.Join(followed, ",")+`}')`) == 0
	}, 50*time.Millisecond)
	want := current(n, followed)
	ours := slices.DeleteFunc(stored(t, pool), func(post string) bool {
		did, _, _ := strings.Cut(post, "/")
		return !slices.Contains(followed, did)
	})
	without := func(a, b []string) []string {
		return slices.DeleteFunc(slices.Clone(a), func(post string) bool { return slices.Contains(b, post) })
	}
	missing := without(want, ours)
	if len(missing) > 0 {
		did, _, _ := strings.Cut(missing[0], "/")
		t.Log(historyOf(t, pool, n, did))
	}
	require.Empty(t, missing, "missing")
	require.Empty(t, without(ours, want), "not deleted")
	require.Zero(t, count(t, pool, `SELECT count(*) FROM dead_letters`))
	stopServe(t, serve)
}

// historyOf tells what Weir knows of an account and did for it, and what the network said of it.
func historyOf(t *testing.T, pool *pgxpool.Pool, n *simnet.Net, did string) string {
	t.Helper()
	var rows []string
	require.NoError(t, pool.QueryRow(t.Context(), `
		SELECT array(SELECT to_jsonb(a)::text FROM accounts AS a WHERE did = $1)
		    || array(SELECT to_jsonb(w)::text FROM watch_members AS w WHERE did = $1)
		    || array(SELECT to_jsonb(j)::text FROM river_job AS j WHERE args ->> 'did' = $1 OR args ->> 'account' = $1
		                OR kind IN ('sync_follows', 'request_backfill') ORDER BY id)
		    || array(SELECT to_jsonb(s)::text FROM streams AS s)`, did).Scan(&rows))
	for _, e := range n.Log().Entries() {
		if e.DID == did {
			rows = append(rows, fmt.Sprintf("%s %s %s %s %s active=%t %s", time.UnixMicro(e.TimeUS).UTC().Format(time.RFC3339Nano), e.Kind,
				e.Collection, e.Rkey, e.Operation, e.Active, e.Status))
		}
	}
	return strings.Join(rows, "\n")
}
