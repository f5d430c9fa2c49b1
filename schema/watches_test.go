package schema_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestSyncReactivatesListedAccounts shows that a sync does so whatever the stream reported more
// than an hour ago. Accounts that may have missed posts are reread, whether a sync, the stream or
// an operator reactivates them.
func TestSyncReactivatesListedAccounts(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	execute := func(sql string, args ...any) {
		t.Helper()
		_, err := pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}
	texts := func(sql string) []string {
		t.Helper()
		rows, err := pool.Query(t.Context(), sql)
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		return all
	}
	execute(`INSERT INTO watches (target, kind) VALUES ('x.example', 'follows')`)
	watches, err := schema.Watches(t.Context(), pool)
	require.NoError(t, err)
	var members []schema.Member
	for _, status := range []string{"deactivated", "deleted", "desynchronized", "hidden", "inactive", "suspended", "takendown", "throttled"} {
		execute(`
			INSERT INTO accounts (did, status, status_at)
			VALUES ('did:old:' || $1, $1, now() - interval '3 days'), ('did:new:' || $1, $1, now() - interval '1 minute')`, status)
		members = append(members, schema.Member{DID: "did:new:" + status}, schema.Member{DID: "did:old:" + status})
	}
	execute(`
		INSERT INTO accounts (did, status, status_at)
		VALUES ('did:streamed', 'deactivated', now() - interval '3 days'), ('did:sql', 'deactivated', now() - interval '3 days')`)
	execute(`INSERT INTO watch_members (watch_id, did) SELECT 1, did FROM accounts`)
	execute(`UPDATE accounts SET reread_since = now() - interval '5 hours' WHERE did IN ('did:old:takendown', 'did:streamed', 'did:sql')`)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := schema.SetMembers(t.Context(), tx, watches[0], members, []string{"did:streamed", "did:sql"}, time.Now())
		return err
	}))
	require.Empty(t, texts(`SELECT did || ' ' || status FROM accounts WHERE did LIKE 'did:old:%' AND status <> 'active'`))
	require.Len(t, texts(`SELECT did FROM accounts WHERE did LIKE 'did:new:%' AND status <> 'active'`), len(members)/2-1,
		"all but the hidden one")

	lease := take(t, pool, "me")
	_, err = apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: "did:streamed", Status: "active", At: time.Now()}}})
	require.NoError(t, err)
	execute(`UPDATE accounts SET status = 'active' WHERE did = 'did:sql'`)
	require.Equal(t, []string{"did:old:deleted", "did:old:takendown", "did:sql", "did:streamed"},
		texts(`SELECT args ->> 'account' FROM river_job WHERE kind = 'request_backfill' AND args ->> 'priority' = '1' ORDER BY 1`))
}

// TestListingHidesNoDeletion shows that an account that a listing hid gets any other status whatever
// its time, but becomes active only by an event from after the listing began. However the events are
// cut into batches, the result is the same.
func TestListingHidesNoDeletion(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	do(t, pool, `INSERT INTO watches (target, kind) VALUES ('x.example', 'follows')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) SELECT 1, 'did:' || n FROM generate_series(1, 5) AS n`)
	hide := func() {
		t.Helper()
		watch, err := schema.FindWatch(t.Context(), pool, 1)
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := schema.SetMembers(t.Context(), tx, watch, nil, []string{"did:1", "did:2", "did:3", "did:4", "did:5"}, now)
			return err
		}))
	}
	hide()
	lease := take(t, pool, "me")
	event := func(did, status string, at time.Duration) {
		t.Helper()
		_, err := apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: did, Status: status, At: now.Add(at)}}})
		require.NoError(t, err)
	}
	event("did:1", "deleted", -time.Hour)
	event("did:2", "deactivated", -2*time.Hour) // one batch a status
	event("did:2", "active", -time.Hour)
	event("did:3", "active", -time.Hour) // both in one batch
	event("did:4", "active", time.Minute)
	event("did:4", "deleted", -time.Hour) // from a replay
	status := `SELECT string_agg(status, ' ' ORDER BY did) FROM accounts`
	require.Equal(t, "deleted hidden hidden active hidden", ask[string](t, pool, status))
	hide() // the listing of a service that lags
	require.Equal(t, "deleted hidden hidden active hidden", ask[string](t, pool, status))
}

// TestListingByAClockAheadIsOlderThanEvents shows that what a listing says while our clock is ahead does not outlast what
// the stream says a minute later, and does not come before what it has just said.
func TestListingByAClockAheadIsOlderThanEvents(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	do(t, pool, `INSERT INTO watches (target, kind) VALUES ('x.example', 'follows')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:hidden'), (1, 'did:gone')`)
	lease := take(t, pool, "me")
	event := func(did, status string, at time.Time) {
		t.Helper()
		_, err := apply(t.Context(), pool, lease, schema.Batch{Statuses: []schema.Status{{DID: did, Status: status, At: at}}})
		require.NoError(t, err)
	}
	event("did:gone", "deactivated", now)
	do(t, pool, `UPDATE streams SET last_event_at = $1`, now)
	watch, err := schema.FindWatch(t.Context(), pool, 1)
	require.NoError(t, err)
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		listed, hidden := []schema.Member{{DID: "did:gone"}}, []string{"did:hidden"}
		_, err := schema.SetMembers(t.Context(), tx, watch, listed, hidden, now.Add(3*time.Hour))
		return err
	}))
	status := `SELECT string_agg(did || ' ' || status, ' ' ORDER BY did) FROM accounts`
	require.Equal(t, "did:gone deactivated did:hidden hidden", ask[string](t, pool, status), "the listing lags")
	event("did:hidden", "active", now.Add(time.Minute))
	require.Equal(t, "did:gone deactivated did:hidden active", ask[string](t, pool, status))
}

// TestOnlyAComparisonSettlesAGap shows that a gap is settled by a comparison, or by one that was
// postponed. A read that an operator requested does not settle it.
func TestOnlyAComparisonSettlesAGap(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	do(t, pool, `INSERT INTO watches (target, kind) VALUES ('did:a', 'account')`)
	do(t, pool, `INSERT INTO watch_members (watch_id, did) VALUES (1, 'did:a')`)
	open := func(r schema.Reading) int {
		t.Helper()
		r.Since, r.Now = time.Now().Add(-2*time.Hour), time.Now()
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return schema.RecordReading(t.Context(), tx, "did:a", r) }))
		return ask[int](t, pool, `SELECT count(*)::int FROM gaps WHERE closed_at IS NULL`)
	}
	gap := func() {
		t.Helper()
		do(t, pool, `
			INSERT INTO gaps (stream, from_at, to_at, reason, opened_at) VALUES ('s', now() - interval '1 hour', now(), 'a test', now())`)
		do(t, pool, `INSERT INTO gap_backfills (gap_id, did) SELECT max(id), 'did:a' FROM gaps`)
	}
	gap()
	require.Equal(t, 1, open(schema.Reading{}))
	require.Equal(t, 1, open(schema.Reading{Problem: "more than 5000 posts"}))
	require.Zero(t, open(schema.Reading{Compared: true}))
	gap()
	require.Zero(t, open(schema.Reading{Problem: "refused", RetryLater: true}))
}
