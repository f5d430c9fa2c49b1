package workers

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// TestOlderListingDoesNotUndoANewerOne shows that a sync that began earlier and ended later does
// not change what the newer one stored.
func TestOlderListingDoesNotUndoANewerOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub := r.net.Hub()
	others := r.followed()
	var older int64
	var awaited, release func()
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `INSERT INTO watches (target) VALUES ($1)`, hub.Handle)
		require.NoError(t, err)
		require.NoError(t,
			tx.QueryRow(t.Context(), `SELECT id FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' <> '0'`).Scan(&older))
		awaited, release = r.holding(func(tx pgx.Tx) error { // blocks the write of its first page
			return schema.AddListingMembers(t.Context(), tx, older, "", []schema.Member{{DID: others[0]}})
		})
		return nil
	}))
	awaited()
	require.NoError(t, r.net.Unfollow(hub.DID, others[:5]...))
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND state = 'completed' AND args ->> 'watch' <> '0'`)
	require.Equal(t, len(others)-5, r.count(`SELECT count(*) FROM watch_members`), "the newer sync must have removed the accounts")
	require.Equal(t, 1, r.count(`SELECT count(*) FROM river_job WHERE id = $1 AND state = 'running'`, older))
	release()
	r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND state IN ('available', 'running', 'scheduled', 'retryable')`)
	require.Equal(t, len(others)-5, r.count(`SELECT count(*) FROM watch_members`), "unfollowed; %d calls",
		len(r.net.Calls("app.bsky.graph.getFollows")))
}

// TestOlderFailureDoesNotReplaceANewerListing fails a sync after a newer listing has been stored.
func TestOlderFailureDoesNotReplaceANewerListing(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, pool: schematest.New(t)}
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, alice)
	watch, err := schema.FindWatch(t.Context(), r.pool, 1)
	require.NoError(t, err)
	began := time.Now()
	problem := func() int { return r.count(`SELECT count(*) FROM watches WHERE problem = 'broken off'`) }
	require.NoError(t, schema.RecordWatchProblem(t.Context(), r.pool, watch, began, "broken off"))
	require.Equal(t, 1, problem(), "the failure of a watch that was never read must be recorded")
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := schema.SetMembers(t.Context(), tx, watch, []schema.Member{{DID: alice}}, nil, began)
		return err
	}))
	require.NoError(t, schema.RecordWatchProblem(t.Context(), r.pool, watch, began.Add(-time.Second), "broken off"))
	require.Zero(t, problem())
	require.NoError(t, schema.RecordWatchProblem(t.Context(), r.pool, watch, began.Add(time.Second), "broken off"))
	require.Equal(t, 1, problem())
}

// TestChangedWatchIsReadAgain shows that a watch is read again after a change by SQL, and that
// accounts of its old target are removed.
func TestChangedWatchIsReadAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub, followed := r.net.Hub(), r.followed()
	list, err := r.net.MakeList(hub.DID, followed[:7]...)
	require.NoError(t, err)
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.Handle)
	r.becomes(len(followed), `SELECT count(*) FROM watch_members`)
	before, err := schema.FindWatch(t.Context(), r.pool, 1)
	require.NoError(t, err)

	r.execute(`UPDATE watches SET target = $1, kind = 'list'`, list)
	require.LessOrEqual(t, r.count(`SELECT count(*) FROM watch_members`), 7, "at once")
	r.becomes(7, `SELECT count(*) FROM watch_members`)
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := schema.SetMembers(t.Context(), tx, before, []schema.Member{{DID: alice}}, nil, time.Now())
		require.ErrorIs(t, err, schema.ErrNoRows, "a listing of the old target must be refused")
		return nil
	}))

	r.execute(`UPDATE watches SET target = 'nobody.example', kind = 'follows'`)
	r.becomes(1, `SELECT count(*) FROM watches WHERE problem <> ''`)
	require.Zero(t, r.count(`SELECT count(*) FROM watch_members`))

	require.NoError(t, r.net.Unfollow(hub.DID, r.net.Follows(hub.DID)[5:]...))
	r.execute(`UPDATE watches SET target = $1, kind = 'second-degree', at_least = 3`, hub.DID)
	r.becomes(1, `SELECT count(*) FROM watches WHERE problem = '' AND synced_at IS NOT NULL`)
	many := r.count(`SELECT count(*) FROM watch_members`)
	r.execute(`UPDATE watches SET at_least = 1`)
	eventually.True(t, func() bool { return r.count(`SELECT count(*) FROM watch_members`) > many }, 5*time.Millisecond)

	syncs := r.count(`SELECT count(*) FROM river_job WHERE kind = 'sync_follows'`)
	r.execute(`UPDATE watches SET target = target, at_least = at_least, problem = ''`)
	require.Equal(t, syncs, r.count(`SELECT count(*) FROM river_job WHERE kind = 'sync_follows'`),
		"an update without a change must add no sync")
}

// TestLongListingIsReadInTurns shows that a second-degree listing that takes longer than a job's
// turn continues where it stopped, also after an error. It requests no page twice, and unfollows no
// account before its end.
func TestLongListingIsReadInTurns(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, func(c *Config) { c.JobTimeout = 200 * time.Millisecond })
	r.pauses(jobs.QueueBackfill)
	hub := r.net.Hub()
	require.NoError(t, r.net.Unfollow(hub.DID, r.net.Follows(hub.DID)[25:]...))
	want, pages := r.secondDegree(3)
	r.net.SetLatency(20 * time.Millisecond)
	// of 25 pages and more
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Severed, Endpoint: "app.bsky.graph.getFollows", After: 8, Count: 1000}))
	require.NoError(t, pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `
			INSERT INTO watches (target, kind, at_least, synced_at) VALUES ($1, 'second-degree', 3, now() - interval '1 hour')`, hub.DID)
		require.NoError(t, err)
		// an account that the listing does not contain
		_, err = tx.Exec(t.Context(), `INSERT INTO watch_members (watch_id, did) VALUES (1, $1)`, hub.DID)
		return err
	}))
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' = '1' AND errors IS NOT NULL`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM watch_members WHERE did = $1`, hub.DID), "still")
	r.net.ClearCallFaults()
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' = '1' AND state = 'completed'`)
	failed := r.net.CallsFired()[simnet.Severed]
	require.Positive(t, failed)
	require.Positive(t, r.count(`SELECT (metadata ->> 'snoozes')::int FROM river_job WHERE kind = 'sync_follows' AND args ->> 'watch' = '1'`))
	require.Equal(t, want, r.members())
	require.Equal(t, pages+failed, len(r.net.Calls("app.bsky.graph.getFollows")))
	require.Zero(t, r.count(`SELECT count(*) FROM listing_members`))
}

// secondDegree returns the accounts followed by at least N of the accounts that
// the hub follows, in order, and the number of pages of their listings.
func (r *rig) secondDegree(atLeast int) (dids []string, pages int) {
	r.t.Helper()
	times := map[string]int{}
	pages = 1
	for _, did := range r.followed() {
		theirs := r.net.Follows(did)
		pages += max(1, (len(theirs)+99)/100)
		for _, did := range theirs {
			if a, ok := r.net.Account(did); ok && a.Status == "" {
				times[did]++
			}
		}
	}
	for did, n := range times {
		if n >= atLeast {
			dids = append(dids, did)
		}
	}
	slices.Sort(dids)
	return dids, pages
}

func (r *rig) members() []string {
	r.t.Helper()
	rows, err := r.pool.Query(r.t.Context(), `SELECT did FROM watch_members ORDER BY did`)
	require.NoError(r.t, err)
	dids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(r.t, err)
	return dids
}

// TestPageIsCountedOnce shows that an account that is listed twice, or on a page that is read
// again, counts once per follower. The follows of an unreadable account do not count.
func TestPageIsCountedOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		bob := []schema.Member{{DID: "did:plc:bob", Handle: "bob.example"}}
		for _, by := range []string{"", "did:plc:a", "did:plc:a", "did:plc:b", "did:plc:b", "did:plc:c"} {
			require.NoError(t, schema.AddListingMembers(t.Context(), tx, 7, by, slices.Concat(bob, bob)))
		}
		require.NoError(t, schema.AddListingMembers(t.Context(), tx, 8, "did:plc:d", bob))
		of := func(degree, atLeast int) []schema.Member {
			members, err := schema.ListingMembers(t.Context(), tx, 7, degree, atLeast)
			require.NoError(t, err)
			return members
		}
		require.Equal(t, bob, of(2, 3))
		require.Empty(t, of(2, 4))
		require.NoError(t, schema.UncountFollows(t.Context(), tx, 7, "did:plc:c"))
		require.Empty(t, of(2, 3))
		require.Equal(t, bob, of(2, 2))
		require.Equal(t, bob, of(1, 1))
		return nil
	}))
}

// TestLongListingIsNotStartedTwice shows that the hourly sync does not start a long listing again,
// and that the rows of an abandoned listing are deleted.
func TestLongListingIsNotStartedTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.pauses(jobs.QueueNetwork)
	r.execute(`INSERT INTO watches (target) VALUES ('alice.example'), ('bob.example')`)
	r.execute(`UPDATE river_job SET created_at = now() - interval '1 hour' WHERE args ->> 'watch' = '2'`)
	due, err := schema.DueWatches(t.Context(), r.pool, time.Now().Add(-longListing))
	require.NoError(t, err)
	require.Equal(t, []schema.DueWatch{{ID: 1, Kind: "follows"}}, due)
	r.execute(`UPDATE river_job SET state = 'retryable', scheduled_at = now() + interval '1 hour' WHERE args ->> 'watch' = '2'`)
	due, err = schema.DueWatches(t.Context(), r.pool, time.Now().Add(-longListing))
	require.NoError(t, err)
	require.Equal(t, []schema.DueWatch{{ID: 1, Kind: "follows"}, {ID: 2, Kind: "follows"}}, due, "a failing watch does not delay others")

	r.execute(`INSERT INTO listing_members (job_id, degree, did, handle, display_name, avatar, last_by)
		SELECT id, 1, 'did:plc:a', '', '', '', '' FROM river_job WHERE args ->> 'watch' IN ('1', '2')
		UNION ALL SELECT 0, 1, 'did:plc:a', '', '', '', ''`)
	n, err := schema.DropOrphanedListings(t.Context(), r.pool, 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, 2, r.count(`SELECT count(*) FROM listing_members WHERE job_id > 0`))
}

// TestSyncDetectsHiddenAccounts shows that a sync detects them without an event of the stream. They
// stay, do not count, and count again when they return. Unfollowed accounts leave, and a failed
// call hides no account.
func TestSyncDetectsHiddenAccounts(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub, followed := r.net.Hub(), r.followed()
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.DID)
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, followed[1])
	r.becomes(len(followed)+1, `SELECT count(*) FROM watch_members`)
	sync := func() {
		t.Helper()
		r.execute(`UPDATE watches SET synced_at = 'epoch'`)
		require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
		r.becomes(2, `SELECT count(*) FROM watches WHERE synced_at > 'epoch'`)
		r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND state IN ('available', 'running', 'retryable')`)
	}
	status := func(did string) (status string) {
		t.Helper()
		require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT status FROM accounts WHERE did = $1`, did).Scan(&status))
		return status
	}
	require.NoError(t, r.net.TakeDown(followed[0]))
	require.NoError(t, r.net.Deactivate(followed[1]))
	require.NoError(t, r.net.Deactivate(followed[2]))
	require.NoError(t, r.net.Unfollow(hub.DID, followed[3]))
	require.NoError(t, r.net.Deactivate(followed[4]))
	r.execute(`UPDATE accounts SET status_at = now() WHERE did = $1`, followed[2]) // the stream has just reported it as active

	// After ten failures in a row the client would not call the service for a while.
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.Unavailable, Endpoint: "app.bsky.actor.getProfiles", Count: 8}))
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(2, `SELECT count(*) FROM watches WHERE problem <> ''`)
	require.Equal(t, len(followed)+1, r.count(`SELECT count(*) FROM watch_members`))
	require.Zero(t, r.count(`SELECT count(*) FROM accounts WHERE status <> 'active'`))
	require.NoError(t, r.net.Reactivate(followed[4])) // after the listing, and before it is looked up
	r.execute(`UPDATE accounts SET status_at = now() WHERE did = $1`, followed[4])
	r.net.ClearCallFaults()
	r.becomes(0, `SELECT count(*) FROM watches WHERE problem <> ''`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM watch_members WHERE did = $1`, followed[4]))

	sync()
	require.Equal(t, "hidden", status(followed[0]))
	require.Equal(t, "active", status(followed[4]))
	require.Equal(t, "hidden", status(followed[1]))
	require.Equal(t, "active", status(followed[2]))
	require.Equal(t, len(followed)-1, r.count(`SELECT count(*) FROM watch_members WHERE watch_id = 1`), "all but the one unfollowed")
	require.Equal(t, 1, r.count(`SELECT count(*) FROM watch_members WHERE watch_id = 2`))

	require.NoError(t, r.net.Reactivate(followed[0]))
	require.NoError(t, r.net.Reactivate(followed[1]))
	sync()
	require.Zero(t, r.count(`SELECT count(*) FROM accounts WHERE status <> 'active'`))
	require.Zero(t, r.count(`SELECT count(*) FROM watches WHERE problem <> ''`))
	require.Zero(t, r.count(`SELECT count(*) FROM listing_members`))
}

// TestDeletionThatNoStreamReportedIsFound deletes accounts in a gap. A comparison finds one of them;
// a listing has hidden another, and the third was deactivated before.
func TestDeletionThatNoStreamReportedIsFound(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	followed := r.followed()[:5]
	for _, did := range followed {
		r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	}
	r.becomes(5, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	r.idle()
	r.execute(`UPDATE accounts SET status = 'deactivated', status_at = now() WHERE did = $1`, followed[2])
	for _, did := range followed[:3] {
		require.NoError(t, r.net.Delete(did))
	}
	require.NoError(t, r.net.Deactivate(followed[3]))
	r.execute(`
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '2 hours', now() - interval '1 hour', 'a test', now())`)
	r.becomes(0, `SELECT count(*) FROM gaps WHERE closed_at IS NULL`)
	deleted := `SELECT count(*) FROM accounts WHERE status = 'deleted' AND did = ANY ($1)`
	require.Equal(t, 2, r.count(deleted, followed[:2]), "the gap's comparisons ask the servers")
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(3, deleted, followed)

	require.NoError(t, r.net.Delete(followed[4]))
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(4, deleted, followed)
	r.becomes(1, `SELECT count(*) FROM accounts WHERE did = $1 AND status = 'hidden' AND reread_at > now()`, followed[3])
}

// TestMissingTargetIsNoDeadLetter shows that, however often the target is read, the watch stores
// the problem and the job succeeds.
func TestMissingTargetIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.execute(`INSERT INTO watches (target, kind) VALUES ('nobody.example', 'follows'), ('did:plc:zzzzzzzzzzzzzzzzzzzzzzzz', 'account'),
		($1, 'list'), ($2, 'starterpack')`, "at://"+r.net.Hub().DID+"/app.bsky.graph.list/3kaaaaaaaaa2a",
		"at://"+r.net.Hub().DID+"/app.bsky.graph.starterpack/3kaaaaaaaaa2a")
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.becomes(4, `SELECT count(*) FROM watches WHERE problem <> ''`)
	r.becomes(0, `SELECT count(*) FROM river_job WHERE kind = 'sync_follows' AND state <> 'completed'`)
	require.Zero(t, r.count(`SELECT count(*) FROM dead_letters`))
	require.Zero(t, r.count(`SELECT count(*) FROM watch_members`))
	report, err := health.Read(t.Context(), r.pool, time.Now(), health.Limits{})
	require.NoError(t, err)
	require.EqualValues(t, 4, report.UnreadWatches, "weir status reports it")
}

// TestAccountIsFollowedWithoutAnAppView shows that an account is followed by its DID, as SQL adds
// it. A later sync that fails keeps it, and records the error.
func TestAccountIsFollowedWithoutAnAppView(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	working(t, pool) // with an unreachable AppView
	execute(t, pool, `INSERT INTO watches (target, kind) VALUES ($1, 'account'), ('alice.example', 'account'), ($1, 'follows')`, alice)
	followed := func() (dids []string) {
		now, err := schema.FollowedAccounts(t.Context(), pool)
		require.NoError(t, err)
		require.False(t, now.Everyone)
		return now.DIDs
	}
	eventually.True(t, func() bool { return slices.Equal([]string{alice}, followed()) }, 5*time.Millisecond)
	var synced int // not those without a problem: the periodic job may have read all again
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM watches WHERE synced_at IS NOT NULL`).Scan(&synced))
	require.Equal(t, 1, synced, "a handle and follows need the AppView")
	require.NoError(t, schema.SyncWatches(t.Context(), pool))
	eventually.True(t, func() bool {
		var failed int
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT count(*) FROM watches WHERE problem <> ''`).Scan(&failed))
		return failed == 3
	}, 5*time.Millisecond)
	require.Equal(t, []string{alice}, followed())
}

// TestListingOfAWrongClockDoesNotKeepLaterOnesOut shows that a listing that was stored with a date
// in the future is replaced by the next one.
func TestListingOfAWrongClockDoesNotKeepLaterOnesOut(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	hub := r.net.Hub()
	r.execute(`INSERT INTO watches (target) VALUES ($1)`, hub.Handle)
	r.becomes(1, `SELECT count(*) FROM watches WHERE synced_at <= now()`)
	r.execute(`UPDATE watches SET synced_at = now() + interval '3 days'`)
	did, _ := r.busiest()
	for _, followed := range r.net.Follows(hub.DID) {
		if followed == did {
			require.NoError(t, r.net.Unfollow(hub.DID, did))
		}
	}
	r.execute(`SELECT enqueue_job('sync_follows', 'network', jsonb_build_object('watch', id)) FROM watches`)
	r.becomes(1, `SELECT count(*) FROM watches WHERE synced_at <= now()`)
}
