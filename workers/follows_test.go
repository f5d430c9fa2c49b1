package workers

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// rig is a simulated network, a database, and workers between them.
type rig struct {
	t      *testing.T
	net    *simnet.Net
	pool   *pgxpool.Pool
	client *Client
	api    *bluesky.Client
	calm   func() // leaves scheduling to River's leader alone
}

func newRig(t *testing.T, change func(*Config)) *rig {
	t.Helper()
	return newRigOn(t, simnet.Config{Seed: 21, Accounts: 300, Follows: 250, History: 4000, HistorySpan: 3 * time.Hour}, change)
}

// newRigOn is a rig on a given network.
func newRigOn(t *testing.T, network simnet.Config, change func(*Config)) *rig {
	t.Helper()
	n, api := workertest.Network(t, network)
	r := &rig{t: t, net: n, pool: schematest.New(t), api: api}
	t.Cleanup(r.explain)
	cfg := Config{Shared: Shared{Pool: r.pool, Projections: registered(t, r.pool), Bluesky: api, Logger: slog.New(slog.DiscardHandler)},
		ID: t.Name()}
	if change != nil {
		change(&cfg)
	}
	var err error
	r.client, err = New(withPosts(cfg))
	require.NoError(t, err)
	running(t, r.client)
	r.calm = schedules(t, r.pool)
	synced(t, r.pool)
	return r
}

// explain logs the watches and the jobs of a failed test.
func (r *rig) explain() {
	if !r.t.Failed() {
		return
	}
	var text string
	err := r.pool.QueryRow(context.Background(), `
SELECT concat_ws(E'\n',
    (SELECT json_agg(w) FROM watches AS w),
    (SELECT json_agg(y) FROM resyncs AS y),
    (SELECT json_agg(h) FROM histories AS h), (SELECT json_agg(l) FROM history_listings AS l),
        (SELECT json_agg(b) FROM history_accounts AS b WHERE state <> 'done'),
    (SELECT json_agg(j) FROM (SELECT kind, state, args ->> 'watch' AS watch, count(*), max(attempt) AS attempt, max(errors::text) AS errors
                              FROM river_job GROUP BY 1, 2, 3 ORDER BY 1, 2, 3) AS j))`).Scan(&text)
	r.t.Logf("%s %v", text, err)
}

func (r *rig) count(sql string, args ...any) (n int) {
	r.t.Helper()
	return count(r.t, r.pool, sql, args...)
}

func (r *rig) execute(sql string, args ...any) {
	r.t.Helper()
	execute(r.t, r.pool, sql, args...)
}

// becomes waits until a query returns the expected count.
func (r *rig) becomes(want int, sql string, args ...any) {
	r.t.Helper()
	eventually.True(r.t, func() bool { return r.count(sql, args...) == want }, 20*time.Millisecond, "%s", sql)
}

// idle waits until only second reads are left, which are due in a minute.
func (r *rig) idle() {
	r.t.Helper()
	r.becomes(0, workertest.Unfinished)
}

// holding locks rows until release is called. awaited waits for the first session that is blocked
// by the lock.
func (r *rig) holding(lock func(tx pgx.Tx) error) (awaited, release func()) {
	r.t.Helper()
	tx, err := r.pool.Begin(r.t.Context())
	require.NoError(r.t, err)
	require.NoError(r.t, lock(tx))
	r.t.Cleanup(func() { tx.Rollback(context.Background()) }) // released, or the test has failed
	awaited = func() {
		r.t.Helper()
		eventually.True(r.t, func() bool { return schematest.Blocks(r.t, r.pool, tx) }, 20*time.Millisecond)
	}
	return awaited, func() {
		r.t.Helper()
		require.NoError(r.t, tx.Rollback(r.t.Context()))
	}
}

// pauses pauses a queue, and returns when the client works no further jobs of it.
func (r *rig) pauses(queue string) {
	r.t.Helper()
	workertest.Pauses(r.t, r.client, queue)
}

// holdingRecords keeps a job from storing the first page that it reads from an endpoint. Other
// transactions may wait for the lock too, so awaited also waits for the page.
func (r *rig) holdingRecords(endpoint string) (awaited, release func()) {
	r.t.Helper()
	before := len(r.net.Calls(endpoint))
	waited, release := r.holding(func(tx pgx.Tx) error {
		_, err := tx.Exec(r.t.Context(), `LOCK TABLE records IN SHARE MODE`)
		return err
	})
	return func() {
		r.t.Helper()
		eventually.True(r.t, func() bool {
			return slices.ContainsFunc(r.net.Calls(endpoint)[before:], func(c simnet.Call) bool { return c.Status == 200 })
		}, time.Millisecond, "no page of %s is read", endpoint)
		waited()
	}, release
}

// holdingFeed keeps a backfill from ending.
func (r *rig) holdingFeed(did string) (awaited, release func()) {
	r.t.Helper()
	return r.holding(func(tx pgx.Tx) error { return schema.LockFeed(r.t.Context(), tx, did) })
}

// followed returns the accounts that the hub follows and the AppView shows.
func (r *rig) followed() []string { return workertest.Followed(r.net) }

// TestEveryKindOfWatchAddsItsAccounts adds the watches by SQL.
func TestEveryKindOfWatchAddsItsAccounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub := r.net.Hub()
	followed := r.followed()
	list, err := r.net.MakeList(hub.DID, followed[:7]...)
	require.NoError(t, err)
	pack, err := r.net.MakeStarterPack(hub.DID, "a pack", followed[3:12]...)
	require.NoError(t, err)
	members := func(target string) string {
		return `SELECT count(*) FROM watch_members AS w JOIN watches AS s ON s.id = w.watch_id WHERE s.target = '` + target + `'`
	}
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.Handle)
	r.becomes(len(followed), members(hub.Handle))
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'list')`, list)
	r.becomes(7, members(list))
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'starterpack')`, pack)
	r.becomes(9, members(pack))
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, hub.DID)
	r.becomes(1, members(hub.DID))
	require.Equal(t, len(followed)+1, r.count(`SELECT count(*) FROM follows`), "each once")
	require.Equal(t, len(followed)+1, r.count(`SELECT count(*) FROM river_job WHERE kind = 'backfill_account'`),
		"each account must have one backfill, however many watches add it")

	r.execute(`DELETE FROM watches WHERE target = $1`, hub.Handle)
	require.Equal(t, 13, r.count(`SELECT count(*) FROM follows`), "members of another watch must stay")
}

// TestSecondDegreeIsFollowedByMany adds the accounts followed by at least N of the target's
// follows.
func TestSecondDegreeIsFollowedByMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub := r.net.Hub()
	require.NoError(t, r.net.Unfollow(hub.DID, r.net.Follows(hub.DID)[20:]...))
	want, times := 0, map[string]int{}
	for _, did := range r.followed() {
		for _, theirs := range r.net.Follows(did) {
			if a, ok := r.net.Account(theirs); ok && a.Status == "" {
				times[theirs]++
			}
		}
	}
	for _, n := range times {
		if n >= 3 {
			want++
		}
	}
	require.Positive(t, want)
	require.Less(t, want, len(times))
	r.execute(`INSERT INTO watches (target, kind, at_least) VALUES ($1, 'second-degree', 3)`, hub.DID)
	r.becomes(want, `SELECT count(*) FROM watch_members`)
}

// TestBrokenListingRemovesNobody shows that only a complete listing removes accounts.
func TestBrokenListingRemovesNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub := r.net.Hub()
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.DID)
	followed := r.followed()
	r.becomes(len(followed), `SELECT count(*) FROM watch_members`)
	require.NoError(t, r.net.Unfollow(hub.DID, followed[:50]...))
	for _, kind := range []simnet.CallFaultKind{simnet.Unavailable, simnet.Severed, simnet.Empty, simnet.Loop} {
		r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND finalized_at IS NULL`)
		// After ten failures in a row the client would not call the service for a while.
		require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: kind, Endpoint: "app.bsky.graph.getFollows", Count: 4}))
		once, err := r.client.Insert(t.Context(), jobs.SyncFollows{Watch: 1}, &river.InsertOpts{MaxAttempts: 1 + jobs.Deaths})
		require.NoError(t, err)
		r.becomes(1, `SELECT count(*) FROM river_job WHERE id = $1 AND state IN ('cancelled', 'discarded')`, once.Job.ID)
		require.Equal(t, 1, r.count(`SELECT count(*) FROM watches WHERE problem <> ''`))
		require.Equal(t, len(followed), r.count(`SELECT count(*) FROM watch_members`), kind)
		r.net.ClearCallFaults()
		r.execute(`UPDATE watches SET problem = ''`)
	}
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(len(followed)-50, `SELECT count(*) FROM watch_members`)
	r.becomes(0, `SELECT count(*) FROM watches WHERE problem <> ''`)
}

// TestRateLimitSpendsNoAttempt shows that the job waits as long as the server requests.
func TestRateLimitSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, nil)
	someone := r.followed()[0]
	require.NoError(t,
		r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: "app.bsky.feed.getAuthorFeed", Count: 2, Wait: time.Second}))
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: someone, Since: time.Now().Add(-time.Hour)}, nil)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	require.Equal(t, 1, r.count(`SELECT attempt::int FROM river_job WHERE kind = 'backfill_account'`))
	require.Zero(t, r.count(`SELECT coalesce(array_length(errors, 1), 0) FROM river_job WHERE kind = 'backfill_account'`))
}

// TestUnavailableAccountIsSkippedOnce shows that the account is read when it is requested again.
func TestUnavailableAccountIsSkippedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	someone := r.followed()[0]
	require.NoError(t, r.net.Deactivate(someone))
	since := time.Now().Add(-time.Hour)
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: someone, Since: since}, nil)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed' AND attempt = 1`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE did = $1 AND feed_problem <> '' AND feed_read_at IS NULL`, someone))
	require.NoError(t, r.net.Reactivate(someone))
	_, err = r.client.Insert(t.Context(), jobs.BackfillAccount{DID: someone, Since: since}, nil)
	require.NoError(t, err)
	r.becomes(1, fmt.Sprintf(`SELECT count(*) FROM accounts WHERE did = '%s' AND feed_problem = '' AND feed_read_at IS NOT NULL`, someone))
}

// TestRunningBackfillIsWidened shows that the running job also serves a wider request.
func TestRunningBackfillIsWidened(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var someone string // an account with more than a page of posts
	posts := map[string]int{}
	for _, e := range r.net.Log().Entries() {
		if e.Kind == "commit" && e.Collection == schema.PostCollection && e.Operation == "create" {
			if posts[e.DID]++; posts[e.DID] > 2*pagePosts {
				someone = e.DID
			}
		}
	}
	require.NotEmpty(t, someone)
	awaited, release := r.holdingFeed(someone)
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: someone, Since: time.Now()},
		&river.InsertOpts{Priority: jobs.PriorityManual})
	require.NoError(t, err)
	awaited() // its first page is read
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		added, err := EnqueueBackfills(t.Context(), tx, r.client, []string{someone}, time.Now().Add(-24*time.Hour), jobs.PriorityGap, time.Now())
		require.Zero(t, added)
		return err
	}))
	release()
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	require.Greater(t, r.count(`SELECT count(*) FROM posts WHERE did = $1`, someone), pagePosts, "more than the first page")
}

// TestListedPostNeverBeatsADeletion covers an rkey ahead of the deletion: the client chooses it,
// and its clock may be ahead.
func TestListedPostNeverBeatsADeletion(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, _ := r.busiest()
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: did, Since: time.Now().Add(-time.Hour)},
		&river.InsertOpts{Priority: jobs.PriorityManual})
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	var rkey string
	require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT min(rkey) FROM posts WHERE did = $1`, did).Scan(&rkey))
	lease, ok, err := schema.TakeLease(t.Context(), r.pool, "s", "w", "me", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	tid, err := syntax.ParseTID(rkey)
	require.NoError(t, err)
	deleted := schema.Deletion{Key: postKey(did, rkey), Rev: tidAt(tid.Time().Add(-2 * time.Hour)), At: time.Now()}
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := (&schema.Batch{Deletions: []schema.Deletion{deleted}}).Apply(t.Context(), tx, lease)
		return err
	}))
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, did, rkey))
	_, err = r.client.Insert(t.Context(), jobs.BackfillAccount{DID: did, Since: time.Now().Add(-time.Hour)},
		&river.InsertOpts{Priority: jobs.PriorityManual})
	require.NoError(t, err)
	r.becomes(2, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	require.Zero(t, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND rkey = $2`, did, rkey),
		"an outdated page must not restore the deleted post")
}

// TestGapNamesWhatCouldNotBeChecked shows that an account whose feed cannot be read is counted and
// does not keep the gap open.
func TestGapNamesWhatCouldNotBeChecked(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	two := r.followed()[:2]
	for _, did := range two {
		r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	}
	r.becomes(2, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	require.NoError(t, r.net.Deactivate(two[1]))
	r.execute(`
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '2 hours', now() - interval '1 hour', 'a test', now())`)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND accounts = 2 AND checked = 1 AND unchecked = 1
		AND how_closed = 'the records of 1 account were compared with the repositories; 1 account could not be read and is read later'`)

	// No readable account is left.
	r.execute(`UPDATE accounts SET status = 'deactivated'`)
	r.execute(`
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '4 hours', now() - interval '3 hours', 'a test', now())`)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND accounts = 0 AND later = 2
		AND how_closed = 'the records of 0 accounts were compared with the repositories; 2 accounts could not be read and are read later'`)
}
