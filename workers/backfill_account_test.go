package workers

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/internal/testing/workertest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// busiest returns the account with the most posts among those the hub follows.
func (r *rig) busiest() (did string, posts int) { return workertest.Busiest(r.net) }

func TestAccountWatchByHandle(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, r.net.Hub().Handle)
	eventually.True(t, func() bool {
		return r.count(`SELECT count(*) FROM watch_members`) == 1 || r.count(`SELECT count(*) FROM watches WHERE problem <> ''`) == 1
	}, 5*time.Millisecond)
	var problem string
	require.NoError(t, r.pool.QueryRow(t.Context(), `SELECT problem FROM watches`).Scan(&problem))
	require.Empty(t, problem)
}

// TestManualBackfillIsNoWatermark shows that after a manual backfill of one
// hour a follow still reads the whole window.
func TestManualBackfillIsNoWatermark(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, posts := r.busiest()
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: did, Since: time.Now().Add(-time.Minute)},
		&river.InsertOpts{Priority: jobs.PriorityManual})
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	t.Log("all", posts, "stored after the manual one", r.count(`SELECT count(*) FROM posts WHERE did = $1`, did))
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(2, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	got := r.count(`SELECT count(*) FROM posts WHERE did = $1`, did)
	require.Greater(t, got, posts*8/10, "the whole window of 24 h")
}

// TestPartlyReadBackfillReadsTheGapToo shows that a backfill whose first pages
// were read before a gap began does not close the gap unread.
func TestPartlyReadBackfillReadsTheGapToo(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	// A second backfill reads its first page; then the server rate limits it.
	const feed = "app.bsky.feed.getAuthorFeed"
	awaited, release := r.holdingRecords(feed)
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: did, Since: time.Now().Add(-24 * time.Hour)},
		&river.InsertOpts{Priority: jobs.PriorityManual})
	require.NoError(t, err)
	awaited()
	require.NoError(t, r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: feed, Count: 1000, Wait: 3 * time.Second}))
	release()
	r.becomes(1, `
		SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state IN ('scheduled', 'available')
		    AND metadata::text LIKE '%pages%'`)
	// The stream is down while the account writes.
	began := time.Now()
	for range 5 {
		_, err := r.net.PostNow(did, "during the gap")
		require.NoError(t, err)
	}
	r.net.ClearCallFaults()
	r.execute(`INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', $1, now(), 'a test', now())`, began)
	r.becomes(1, `SELECT count(*) FROM gaps WHERE closed_at IS NOT NULL AND unchecked = 0`)
	require.Equal(t, 5, r.count(`SELECT count(*) FROM posts WHERE did = $1 AND created_at >= $2`, did, began.Add(-time.Second)),
		"posts written during the gap")
}

func TestPDSIsReadOnlyBackToTheWindow(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *Config) { c.FromPDS = true })
	did, posts := r.busiest()
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: did, Since: time.Now().Add(-time.Minute)}, nil)
	require.NoError(t, err)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state = 'completed'`)
	require.LessOrEqual(t, r.count(`SELECT count(*) FROM posts WHERE did = $1`, did), pagePosts, "of %d", posts)
}

func TestGapDoesNotWaitForADroppedBackfill(t *testing.T) {
	t.Parallel()
	schematest.Long(t)
	r := newRig(t, nil)
	two := r.followed()[:2]
	for _, did := range two {
		r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	}
	r.becomes(2, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	require.NoError(t,
		r.net.FailCalls(simnet.CallFault{Kind: simnet.TooMany, Endpoint: "com.atproto.sync.getLatestCommit", Count: 1000, Wait: 2 * time.Second}))
	r.execute(`
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '2 hours', now() - interval '1 hour', 'a test', now())`)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'close_gap' AND state = 'completed'`)
	eventually.True(t, func() bool { // a running job cannot be dropped yet
		_, err := CancelBackfills(t.Context(), r.client.Client)
		require.NoError(t, err)
		return r.count(`SELECT count(*) FROM river_job WHERE kind = 'backfill_account' AND state <> 'completed'`) == 0
	}, 5*time.Millisecond)
	r.net.ClearCallFaults()
	// All accounts are read again; the hourly sync runs.
	require.NoError(t, schema.SyncWatches(t.Context(), r.pool))
	r.idle()
	require.Zero(t, r.count(`SELECT count(*) FROM gaps WHERE closed_at IS NULL`), "the gap is open and no job is left that could close it")
}

// TestTruncatedBackfillSettlesItsGap shows that a job that is widened while its
// last page is read closes the gap.
func TestTruncatedBackfillSettlesItsGap(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	awaited, release := r.holdingFeed(did)
	_, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: did, Since: time.Now().Add(-time.Second)},
		&river.InsertOpts{Priority: jobs.PriorityManual,
			Metadata: []byte(`{"river:resumable_cursor":{"read_feed":{"pages":99}}}`)})
	require.NoError(t, err)
	awaited()
	r.execute(`
		INSERT INTO gaps (stream, from_at, to_at, reason, opened_at)
		VALUES ('s', now() - interval '2 hours', now() - interval '1 hour', 'a test', now())`)
	r.becomes(1, `SELECT count(*) FROM river_job WHERE kind = 'close_gap' AND state = 'completed'`)
	release()
	r.idle()
	require.Zero(t, r.count(`SELECT count(*) FROM gaps WHERE closed_at IS NULL`),
		"the gap must be closed, with one account that could not be checked")
}

// TestAccountThatIsReadIsShownAgain covers an account that became active again
// while no consumer ran.
func TestAccountThatIsReadIsShownAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	did, _ := r.busiest()
	r.execute(`INSERT INTO accounts (did, status, status_at) VALUES ($1, 'deactivated', now() - interval '2 days')`, did)
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, did)
	r.becomes(1, `SELECT count(*) FROM accounts WHERE feed_read_at IS NOT NULL`)
	require.Equal(t, 1, r.count(`SELECT count(*) FROM accounts WHERE did = $1 AND status = 'active'`, did))
}

const lockFeed = true

// TestSyncAndFinishDoNotDeadlock shows that a sync and the end of a backfill
// take their locks in the same order.
func TestSyncAndFinishDoNotDeadlock(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.pauses(jobs.QueueBackfill)
	r.pauses(jobs.QueueNetwork)
	res, err := r.client.Insert(t.Context(), jobs.BackfillAccount{DID: alice, Since: time.Now()}, nil)
	require.NoError(t, err)
	r.execute(`INSERT INTO watches (target, kind) VALUES ($1, 'account')`, alice)
	watch, err := schema.FindWatch(t.Context(), r.pool, int64(r.count(`SELECT id FROM watches`)))
	require.NoError(t, err)
	tx, err := r.pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(t.Context())
	var args jobs.BackfillAccount
	if lockFeed {
		require.NoError(t, schema.LockFeed(t.Context(), tx, alice))
	}
	_, err = schema.LockJob(t.Context(), tx, res.Job.ID, &args) // finish, first step
	require.NoError(t, err)
	synced := make(chan error, 1)
	go func() {
		synced <- pgx.BeginFunc(t.Context(), r.pool, func(tx pgx.Tx) error { // SyncFollows.Work
			if _, err := schema.SetMembers(t.Context(), tx, watch, []schema.Member{{DID: alice, Handle: "alice.example"}}, nil,
				time.Now()); err != nil {
				return err
			}
			_, err := EnqueueBackfills(t.Context(), tx, r.client, []string{alice}, time.Now(), 3, time.Now())
			return err
		})
	}()
	eventually.True(t, func() bool { return schematest.Blocks(t, r.pool, tx) }, 5*time.Millisecond)
	finished := schema.RecordReading(t.Context(), tx, alice, schema.Reading{Since: time.Now(), Now: time.Now()}) // finish, second step
	if finished == nil {
		finished = tx.Commit(t.Context())
	} else {
		tx.Rollback(t.Context())
	}
	require.NoError(t, finished)
	require.NoError(t, <-synced)
}
