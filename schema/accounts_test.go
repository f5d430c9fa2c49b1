package schema_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// TestNothingIsStoredOfADeletedAccount shows that nothing is stored until the
// account is active again: a replay may begin before the purge.
func TestNothingIsStoredOfADeletedAccount(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	at := time.Unix(100, 0)
	say := func(status string, b schema.Batch) []schema.Key {
		t.Helper()
		at = at.Add(time.Second)
		b.Statuses = []schema.Status{{DID: "did:plc:a", Status: status, At: at}}
		written, err := apply(t.Context(), pool, lease, b)
		require.NoError(t, err)
		return written
	}
	neighbour := post("n", "1")
	neighbour.DID = "did:plc:b"
	brought := func() (written []schema.Key) {
		t.Helper()
		for _, b := range []schema.Batch{{Writes: []schema.Write{post("1", "1")}}, {Writes: many("1")}} {
			for _, lease := range []schema.Lease{lease, {}} {
				keys, err := apply(t.Context(), pool, lease, b)
				require.NoError(t, err)
				written = append(written, keys...)
				require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(t.Context(), `DELETE FROM records WHERE did = 'did:plc:a'`)
					return err
				}))
			}
		}
		written = append(written, store(t, pool, post("2", schema.ListedRev))...)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			keys, err := schema.RepairRecords(t.Context(), tx, []schema.Write{post("3", "1")})
			written = append(written, keys...)
			return err
		}))
		return written
	}
	require.Equal(t, []schema.Key{neighbour.Key}, say("deleted", schema.Batch{Writes: []schema.Write{post("0", "1"), neighbour}}),
		"the account's last status in the batch must count")
	require.Equal(t, 100, len(say("deleted", schema.Batch{Writes: append(many("1"), neighbourly(100)...)})), "copied")
	require.Empty(t, brought())
	require.Len(t, say("active", schema.Batch{Writes: []schema.Write{post("0", "1")}}), 1)
	require.Len(t, brought(), 204)
	for _, status := range []string{"deactivated", "suspended", "takendown"} {
		require.Len(t, say(status, schema.Batch{Writes: []schema.Write{post(status, "1")}}), 1,
			"a hidden account may come back, so its records are stored")
	}
}

// neighbourly returns n posts of another account.
func neighbourly(n int) []schema.Write {
	writes := make([]schema.Write, n)
	for i := range writes {
		writes[i] = post(fmt.Sprint(i+100), "1")
		writes[i].DID = "did:plc:neighbour"
	}
	return writes
}

// TestPageIsNotStoredDuringTheDeletionOfItsAccount covers a page that was read
// before the deletion.
func TestPageIsNotStoredDuringTheDeletionOfItsAccount(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	defer tx.Rollback(context.Background()) // committed, or the test has failed
	_, err = (&schema.Batch{Statuses: []schema.Status{{DID: "did:plc:a", Status: "deleted", At: noon()}}}).Apply(t.Context(), tx, lease)
	require.NoError(t, err)
	page := beside(t, pool, tx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := schema.StoreRecords(ctx, tx, []schema.Write{post("1", schema.ListedRev)})
		return err
	})
	require.NoError(t, tx.Commit(t.Context()))
	require.NoError(t, <-page)
	require.Empty(t, revs(t, pool))
}

// expireAccounts checks all rows that are due, three at a time.
func expireAccounts(t *testing.T, pool *pgxpool.Pool, now time.Time) (gone int) {
	t.Helper()
	for {
		done, err := schema.ExpireAccounts(t.Context(), pool, madeProjection(), now, now.Add(-7*day), 3)
		require.NoError(t, err)
		require.LessOrEqual(t, done.Checked, 3)
		if done.Checked == 0 {
			return gone
		}
		gone += done.Deleted
	}
}

// TestHiddenAccountStaysWhileAnyOfItsRecordsDo shows that the account's row is
// kept: without it the account would count as active.
func TestHiddenAccountStaysWhileAnyOfItsRecordsDo(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	now := noon()
	execute(t, pool, `
		INSERT INTO accounts (did, status, status_at, check_at) SELECT 'did:plc:' || n, 'deactivated', '2020-01-01', '2020-01-01'
		FROM generate_series(1, 2) AS n`)
	execute(t, pool, `
		INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
		VALUES ('app.example.other', 'did:plc:1', '1', '1', 'c', now(), '{}')`)
	require.Equal(t, 1, expireAccounts(t, pool, now))
	require.Equal(t, []string{"did:plc:1"}, column(t, pool, `SELECT did FROM accounts`))
}

// TestUnneededAccountsGetNoRows covers the stream of the whole network, which
// reports every account.
func TestUnneededAccountsGetNoRows(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	for i := range 10 {
		var b schema.Batch
		for j := range 1000 {
			did := fmt.Sprintf("did:plc:%02d%03d", i, j)
			b.Handles = append(b.Handles, schema.Handle{DID: did, Handle: "h.example", At: noon()})
			b.Statuses = append(b.Statuses, schema.Status{DID: did, Status: "active", At: noon()})
		}
		_, err := apply(t.Context(), pool, lease, b)
		require.NoError(t, err)
	}
	require.Empty(t, column(t, pool, `SELECT did FROM accounts`))
}

// TestNeededAccountsHaveRows shows that accounts lose their rows when they are
// no longer needed.
func TestNeededAccountsHaveRows(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease := take(t, pool, "me")
	now := noon()
	rows := func() []string {
		t.Helper()
		return column(t, pool, `SELECT concat_ws(' ', did, handle, status) FROM accounts ORDER BY did`)
	}
	execute(t, pool, `INSERT INTO watches (target) VALUES ('w')`)
	execute(t, pool, `INSERT INTO watch_members (watch_id, did) SELECT id, 'did:followed' FROM watches`)
	makes(t, pool, "did:shares", "1")
	before, with := post("1", "1"), post("1", "1")
	before.DID, with.DID = "did:wrote", "did:writes"
	_, err := apply(t.Context(), pool, lease, schema.Batch{Writes: []schema.Write{before}})
	require.NoError(t, err)
	b := schema.Batch{
		Writes:   []schema.Write{with},
		Statuses: []schema.Status{{DID: "did:gone", Status: "deleted", At: now}, {DID: "did:hidden", Status: "takendown", At: now}},
	}
	for _, did := range []string{"did:followed", "did:gone", "did:hidden", "did:shares", "did:stranger", "did:writes", "did:wrote"} {
		b.Handles = append(b.Handles, schema.Handle{DID: did, Handle: "h.example", At: now})
	}
	_, err = apply(t.Context(), pool, lease, b)
	require.NoError(t, err)
	all := []string{"did:followed h.example active", "did:gone h.example deleted", "did:hidden h.example takendown",
		"did:shares h.example active", "did:writes h.example active", "did:wrote h.example active"}
	require.Equal(t, all, rows())

	execute(t, pool, `UPDATE accounts SET check_at = $1`, now)
	require.Zero(t, expireAccounts(t, pool, now), "each row is needed")
	require.Zero(t, expireAccounts(t, pool, now.Add(23*time.Hour)), "rows are checked once a day")
	require.Zero(t, expireAccounts(t, pool, now.Add(6*day)), "a replay may bring back what is hidden")
	require.Equal(t, all, rows())
	require.Equal(t, 1, expireAccounts(t, pool, now.Add(8*day)), "only did:hidden: deleted accounts are purged first")
	require.Equal(t, []string{"did:gone"}, purge(t, pool, now.Add(8*day)))
	require.Zero(t, expireAccounts(t, pool, now.Add(14*day)), "another check later must remove nothing")
	require.Equal(t, []string{"did:gone"}, purge(t, pool, now.Add(15*day)))
	require.Equal(t, 1, expireAccounts(t, pool, now.Add(16*day)))
	execute(t, pool, `DELETE FROM watches`)
	execute(t, pool, `DELETE FROM waiting`)
	execute(t, pool, `DELETE FROM records WHERE did = 'did:writes'`)
	require.Equal(t, 3, expireAccounts(t, pool, now.Add(18*day)))
	require.Equal(t, []string{"did:wrote h.example active"}, rows())
	_, err = apply(t.Context(), pool, lease, schema.Batch{Handles: []schema.Handle{{DID: "did:wrote", Handle: "new.example", At: now.Add(1)}}})
	require.NoError(t, err)
	require.Equal(t, []string{"did:wrote new.example active"}, rows())
}
