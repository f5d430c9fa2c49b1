package history_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// ran returns the run of a history, and the accounts that wait for it.
func ran(t *testing.T, pool *pgxpool.Pool, collection string) string {
	t.Helper()
	sql := `
SELECT format('run %s of %s, began %s, complete %s, cancelled %s', run, reason, began_at IS NOT NULL, completed_at IS NOT NULL,
    cancelled_at IS NOT NULL)
FROM histories
WHERE collection = $1`
	text, err := schema.One(t.Context(), pool, "read", pgx.RowTo[string], sql, collection)
	require.NoError(t, err)
	return text
}

func storeCollections(t *testing.T, pool *pgxpool.Pool, full []string, entries ...string) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool,
		func(tx pgx.Tx) error { return history.StoreCollections(t.Context(), tx, entries, full) }))
}

// TestHistoryBeginsOnce shows that a history begins once for each collection that is kept for ever,
// and again after the stream has not delivered the collection for a while.
func TestHistoryBeginsOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	storeCollections(t, pool, []string{"a.b.*"}, "a.b.*", "c.d.e")
	require.Equal(t, "run 1 of new, began f, complete f, cancelled f", ran(t, pool, "a.b.*"))
	run := history.Run{Collection: "a.b.*", Run: 1}
	require.NoError(t, history.BeginRun(t.Context(), pool, run))
	storeCollections(t, pool, []string{"a.b.*"}, "a.b.*", "c.d.e")
	require.Equal(t, "run 1 of new, began t, complete f, cancelled f", ran(t, pool, "a.b.*"), "a restart must change nothing")
	_, ended, err := history.CompleteRun(t.Context(), pool, run, history.Listed(true))
	require.NoError(t, err)
	require.False(t, ended, "no relay has been asked")
	_, ended, err = history.CompleteRun(t.Context(), pool, run, history.Listed(false))
	require.NoError(t, err)
	require.True(t, ended)
	storeCollections(t, pool, nil, "c.d.e")
	storeCollections(t, pool, []string{"a.b.*"}, "a.b.*", "c.d.e")
	require.Equal(t, "run 2 of requested, began f, complete f, cancelled f", ran(t, pool, "a.b.*"))
	n, err := history.Cancel(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	storeCollections(t, pool, []string{"a.b.*"}, "a.b.*", "c.d.e")
	require.Equal(t, "run 2 of requested, began f, complete f, cancelled t", ran(t, pool, "a.b.*"), "the history must stay cancelled")
	_, err = history.Request(t.Context(), pool, "a.b.*")
	require.NoError(t, err)
	require.Equal(t, "run 2 of requested, began f, complete f, cancelled f", ran(t, pool, "a.b.*"), "an unfinished run must continue")
	for _, wrong := range []string{"", "a.b", "*", "a.b.c*", "a..b", "a.b.c.", "a.b.*.c", "a b.c.d"} {
		_, err := history.Request(t.Context(), pool, wrong)
		require.ErrorContains(t, err, "is not a collection", wrong)
	}
}

// TestAnotherRunReadsEveryAccountAgain also shows that accounts that end in an earlier run do not
// count.
func TestAnotherRunReadsEveryAccountAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := history.Request(t.Context(), pool, "a.b.c")
	require.NoError(t, err)
	list := func(run int) (added int64) {
		t.Helper()
		h := history.Run{Collection: "a.b.c", Run: run}
		require.NoError(t, history.BeginRun(t.Context(), pool, h))
		require.NoError(t, history.AddNames(t.Context(), pool, "a.b.c", run, []string{"a.b.c"}))
		open, err := history.OpenListings(t.Context(), pool, h)
		require.NoError(t, err)
		require.Len(t, open, 1)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			added, err = history.MoveListing(t.Context(), tx, open[0], "h", "c", []string{"did:plc:a", "did:plc:b"})
			return err
		}))
		err = pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := history.MoveListing(t.Context(), tx, open[0], "h", "d", []string{"did:plc:c"})
			return err
		})
		require.ErrorIs(t, err, history.ErrMoved, "another process has moved it")
		open, err = history.OpenListings(t.Context(), pool, h)
		require.NoError(t, err)
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			n, err := history.MoveListing(t.Context(), tx, open[0], "h", "", []string{"did:plc:b", "did:plc:c"})
			added += n
			return err
		}))
		return added
	}
	require.EqualValues(t, 3, list(1))
	waiting := func(did string) history.Account {
		t.Helper()
		all, err := history.WaitingFor(t.Context(), pool, did)
		require.NoError(t, err)
		require.Len(t, all, 1)
		return all[0]
	}
	a, b, c := waiting("did:plc:a"), waiting("did:plc:b"), waiting("did:plc:c")
	a.Records, a.Bytes = 3, 30
	require.NoError(t, history.EndAccount(t.Context(), pool, a, true))
	require.NoError(t, history.EndAccount(t.Context(), pool, a, true), "ending an account twice must change nothing")
	require.NoError(t, history.PostponeAccount(t.Context(), pool, b, "a test", time.Hour, history.Rejected))
	require.NoError(t, history.DropAccount(t.Context(), pool, c))
	figures := func() string {
		t.Helper()
		all, err := history.Histories(t.Context(), pool)
		require.NoError(t, err)
		return fmt.Sprint(all[0])
	}
	require.Equal(t, "{a.b.c reading 2 1 1 1 3 30 }", figures())
	_, ended, err := history.CompleteRun(t.Context(), pool, history.Run{Collection: "a.b.c", Run: 1}, history.Listed(true))
	require.NoError(t, err)
	require.True(t, ended)
	_, err = history.Request(t.Context(), pool, "a.b.c")
	require.NoError(t, err)
	require.Equal(t, "{a.b.c waiting 0 0 0 0 0 0 }", figures())
	require.EqualValues(t, 3, list(2))
	require.NoError(t, history.EndAccount(t.Context(), pool, a, false))
	require.ErrorIs(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return history.MoveAccount(t.Context(), tx, a) }),
		history.ErrMoved)
	require.Equal(t, "{a.b.c reading 3 0 0 0 0 0 }", figures(), "the account was of the first run")
}

// TestPurgedAccountIsReadAgain shows that a purged account is read again if it returns.
func TestPurgedAccountIsReadAgain(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	_, err := pool.Exec(t.Context(), `INSERT INTO histories (collection, reason, accounts, done, unread) VALUES ('a.b.c', 'new', 2, 1, 1)`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `
INSERT INTO history_accounts (collection, did, run, state)
VALUES ('a.b.c', 'did:plc:a', 1, 'done'), ('a.b.c', 'did:plc:b', 1, 'unread')`)
	require.NoError(t, err)
	for _, did := range []string{"did:plc:a", "did:plc:b"} {
		n, err := history.Purge(t.Context(), pool, did, 1)
		require.NoError(t, err)
		require.Zero(t, n, "the account is not deleted")
		_, err = pool.Exec(t.Context(), `INSERT INTO accounts (did, status) VALUES ($1, 'deleted')`, did)
		require.NoError(t, err)
		n, err = history.Purge(t.Context(), pool, did, 1)
		require.NoError(t, err)
		require.Equal(t, 1, n)
	}
	all, err := history.Histories(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, "{a.b.c waiting 1 1 0 0 0 0 }", fmt.Sprint(all[0]))
}
