package schema_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// purge purges all due accounts, one row at a time, and returns them.
func purge(t *testing.T, db schema.DB, now time.Time) []string {
	t.Helper()
	dids, err := schema.Purgeable(t.Context(), db, now, now.Add(-day), "", 10)
	require.NoError(t, err)
	for _, did := range dids {
		for n := 1; n > 0; {
			n, err = schema.PurgeRecords(t.Context(), db, did, nil, 1)
			require.NoError(t, err)
			require.LessOrEqual(t, n, 2)
		}
		for n := 1; n > 0; {
			n, err = schema.PurgeProjected(t.Context(), db, "waiting", did, nil, 1)
			require.NoError(t, err)
		}
		for n := 1; n > 0; {
			n, err = schema.PurgeDeadLetters(t.Context(), db, did, 1)
			require.NoError(t, err)
		}
		done, err := schema.FinishPurge(t.Context(), db, madeProjection(), did, nil, now, 7*day)
		require.NoError(t, err)
		require.True(t, done)
	}
	return dids
}

func TestDeletedAccountIsPurgedAndOnceMoreWhenNoReplayCanReachIt(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := noon()
	other := post("o", "1")
	other.Collection = "app.example.other"
	say := func(status string, at time.Time) {
		_, err := apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: "did:plc:a", Status: status, At: at}}})
		require.NoError(t, err)
	}
	store := func() {
		t.Helper()
		_, err := apply(t.Context(), pool, lease, schema.Batch{
			Writes:  []schema.Write{post("1", "1"), post("2", "1"), other},
			Handles: []schema.Handle{{DID: "did:plc:a", Handle: "a.example", At: now}},
		})
		require.NoError(t, err)
		makes(t, pool, "did:plc:a", "1")
		makes(t, pool, "did:plc:a", "expired")
		makes(t, pool, "did:plc:b", "1")
	}
	left := func() []string {
		return column(t, pool, `
			SELECT 'record ' || rkey FROM records UNION ALL SELECT 'made ' || did || ' ' || rkey FROM waiting
			UNION ALL SELECT 'handle ' || handle FROM accounts WHERE handle IS NOT NULL ORDER BY 1`)
	}
	store()
	all := left()
	require.Len(t, all, 7)
	for _, status := range []string{"deactivated", "suspended", "takendown"} {
		say(status, now)
		require.Empty(t, purge(t, pool, now), "a hidden account may come back and must not be purged")
	}
	say("deleted", now)
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, now))
	require.Equal(t, []string{"made did:plc:b 1"}, left())
	require.Empty(t, purge(t, pool, now))

	store() // as a replay does
	require.Empty(t, purge(t, pool, now.Add(7*day-time.Second)))
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, now.Add(7*day)))
	require.Equal(t, []string{"made did:plc:b 1"}, left())
	require.Empty(t, purge(t, pool, now.Add(1000*day)), "the account must not be checked again")

	say("active", now.Add(1))
	say("deleted", now.Add(time.Second))
	store()
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, now))
	say("active", now.Add(2*time.Second))
	store()
	all = left()
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, now.Add(30*day)))
	require.Equal(t, all, left(), "the account is active again and must keep its rows")
	require.Empty(t, purge(t, pool, now.Add(30*day)))
}

func TestUnwatchedAccountIsPurgedAfterADay(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `INSERT INTO watches (target) VALUES ('one'), ('two')`)
	execute(t, pool, `
		INSERT INTO watch_members (watch_id, did) SELECT id, did FROM watches, unnest(ARRAY['did:1', 'did:2', 'did:3']) AS did
		WHERE target = 'one' OR did = 'did:2'`)
	now := time.Now()
	for i := range 4 {
		makes(t, pool, fmt.Sprintf("did:%d", i+1), "x")
	}
	execute(t, pool, `DELETE FROM watch_members WHERE did <> 'did:3' AND watch_id = (SELECT id FROM watches WHERE target = 'one')`)
	require.Empty(t, purge(t, pool, now))
	require.Equal(t, []string{"did:1", "did:2"}, purge(t, pool, now.Add(25*time.Hour)))
	require.Equal(t, []string{"did:2", "did:3", "did:4"}, column(t, pool, `SELECT did FROM waiting ORDER BY did`),
		"another watch includes did:2; none ever included did:4")
	execute(t, pool, `DELETE FROM watches`)
	purge(t, pool, now.Add(25*time.Hour))
	require.Len(t, column(t, pool, `SELECT did FROM waiting`), 3, "without a watch the whole network is followed")
	require.Empty(t, column(t, pool, `SELECT did FROM purge_queue`))
}

// TestUnwatchedAccountKeepsWhatIsKeptForEver shows that an unwatched account
// keeps such records, and that a deleted one keeps nothing.
func TestUnwatchedAccountKeepsWhatIsKeptForEver(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	var writes []schema.Write
	for _, collection := range []string{
		"app.example.day", "app.example.ever", "app.example.ever.day", "app.example.x", "com.example.removed",
	} {
		w := post("r", "1")
		w.Collection = collection
		writes = append(writes, w)
	}
	_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: writes})
	require.NoError(t, err)
	stay := []schema.KeepRule{{Pattern: "app.example.*"}, {Pattern: "app.example.ever", Keep: true}, {Pattern: "app.example.ever.*"}}
	left := func() []string {
		_, err := schema.PurgeRecords(t.Context(), pool, "did:plc:a", stay, 10)
		require.NoError(t, err)
		return column(t, pool, `SELECT collection FROM records ORDER BY 1`)
	}
	require.Len(t, left(), 5, "the account is followed, like every account")
	execute(t, pool, `INSERT INTO watches (target) VALUES ('one')`)
	execute(t, pool, `INSERT INTO purge_queue VALUES ('did:plc:a', now())`)
	require.Equal(t, []string{"app.example.ever", "com.example.removed"}, left())
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:a', 'deleted')`)
	require.Empty(t, left())
}

// TestPurgeIsNotFinishedWhileSomethingIsLeft covers a worker that has locked
// the record and will write its rows.
func TestPurgeIsNotFinishedWhileSomethingIsLeft(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	for _, b := range []schema.Batch{
		{Writes: []schema.Write{post("1", "1")}},
		{Statuses: []schema.Status{{DID: "did:plc:a", Status: "deleted", At: noon()}}},
	} {
		_, err := apply(t.Context(), pool, lease, b)
		require.NoError(t, err)
	}
	worker, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer worker.Rollback(context.Background()) // committed, or the test has failed
	_, err = schema.LockPosts(t.Context(), worker, []schema.Key{key("1")})
	require.NoError(t, err)
	n, err := schema.PurgeRecords(t.Context(), pool, "did:plc:a", nil, 10)
	require.NoError(t, err)
	require.Zero(t, n)
	done, err := schema.FinishPurge(t.Context(), pool, madeProjection(), "did:plc:a", nil, noon(), day)
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, worker.Commit(t.Context()))
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, noon()))
	require.Empty(t, revs(t, pool))
}

// TestUnwatchedAccountKeepsWhatIsMadeOfWhatStays shows that projected rows of
// records that are kept for ever are kept too: these records are not projected
// again when the account is followed again.
func TestUnwatchedAccountKeepsWhatIsMadeOfWhatStays(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `CREATE TABLE made (did text, collection text, rkey text, PRIMARY KEY (did, collection, rkey))`)
	execute(t, pool,
		`INSERT INTO made SELECT 'did:plc:a', c, '1' FROM unnest(ARRAY['app.bsky.feed.post', 'app.example.day', 'app.example.ever']) AS c`)
	execute(t, pool,
		`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record) SELECT collection, did, rkey, '1', 'c', now(), '{}' FROM made`)
	execute(t, pool, `INSERT INTO watches (target) VALUES ('one')`)
	execute(t, pool, `INSERT INTO purge_queue VALUES ('did:plc:a', now())`)
	projections := schema.Projections{{Name: "made", Collections: []string{"app.*"}, Kind: "make", Queue: "q", Tables: []string{"made"}}}
	stay := []schema.KeepRule{{Pattern: "app.bsky.feed.post"}, {Pattern: "app.example.*"}, {Pattern: "app.example.ever", Keep: true}}
	left := func() []string {
		t.Helper()
		_, err := schema.PurgeRecords(t.Context(), pool, "did:plc:a", stay, 10)
		require.NoError(t, err)
		_, err = schema.PurgeProjected(t.Context(), pool, "made", "did:plc:a", stay, 10)
		require.NoError(t, err)
		done, err := schema.FinishPurge(t.Context(), pool, projections, "did:plc:a", stay, noon(), day)
		require.NoError(t, err)
		require.True(t, done)
		require.Equal(t, column(t, pool, `SELECT collection FROM records ORDER BY 1`), column(t, pool, `SELECT collection FROM made ORDER BY 1`))
		return column(t, pool, `SELECT collection FROM made ORDER BY 1`)
	}
	require.Equal(t, []string{"app.example.ever"}, left())
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:a', 'deleted')`)
	require.Empty(t, left())
}

// TestPurgeIsNotFinishedWhileAnotherRecordIsLeft covers a record of any
// collection.
func TestPurgeIsNotFinishedWhileAnotherRecordIsLeft(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ('app.example.other', 'did:plc:a', '1', '1', 'c', now(), '{}')`)
	execute(t, pool, `INSERT INTO accounts (did, status) VALUES ('did:plc:a', 'deleted')`)
	worker, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer worker.Rollback(context.Background()) // committed, or the test has failed
	_, err = schema.LockRecords(t.Context(), worker, []schema.Key{{Collection: "app.example.other", DID: "did:plc:a", Rkey: "1"}})
	require.NoError(t, err)
	n, err := schema.PurgeRecords(t.Context(), pool, "did:plc:a", nil, 10)
	require.NoError(t, err)
	require.Zero(t, n)
	done, err := schema.FinishPurge(t.Context(), pool, nil, "did:plc:a", nil, noon(), day)
	require.NoError(t, err)
	require.False(t, done)
	require.NoError(t, worker.Commit(t.Context()))
	require.Equal(t, []string{"did:plc:a"}, purge(t, pool, noon()))
	require.Empty(t, column(t, pool, `SELECT rkey FROM records`))
}

// TestPurgeOfAPartitionedTable covers rows of different partitions with the
// same ctid.
func TestPurgeOfAPartitionedTable(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute(t, pool, `CREATE TABLE made (collection text, did text, rkey text, PRIMARY KEY (did, collection, rkey)) PARTITION BY LIST (did)`)
	execute(t, pool, `CREATE TABLE made_gone PARTITION OF made FOR VALUES IN ('did:gone')`)
	execute(t, pool, `CREATE TABLE made_stays PARTITION OF made FOR VALUES IN ('did:stays')`)
	execute(t, pool, `INSERT INTO made VALUES ($1, 'did:gone', '1'), ($1, 'did:stays', '1')`, schema.PostCollection)
	require.Equal(t, []string{"(0,1)", "(0,1)"}, column(t, pool, `SELECT ctid::text FROM made`))
	execute(t, pool, `INSERT INTO accounts (did, status, status_at) VALUES ('did:gone', 'deleted', $1)`, time.Now())
	n, err := schema.PurgeProjected(t.Context(), pool, "made", "did:gone", nil, 9)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Equal(t, []string{"did:stays"}, column(t, pool, `SELECT did FROM made`))
}
