package schema_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// marks marks accounts as desynchronized, and returns those that need a job.
func marks(t *testing.T, pool *pgxpool.Pool, all ...schema.Desynchronized) (dids []string) {
	t.Helper()
	b := schema.Batch{Desynchronized: all}
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		_, err := b.Apply(t.Context(), tx, schema.Lease{})
		return err
	}))
	for _, r := range b.Resyncs {
		dids = append(dids, r.DID)
	}
	return dids
}

func lost(did, rev string) schema.Desynchronized {
	return schema.Desynchronized{DID: did, Cause: "a test", Rev: rev}
}

func endResync(t *testing.T, pool *pgxpool.Pool, did, rev string) (again time.Duration) {
	t.Helper()
	require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) (err error) {
		again, err = schema.EndResync(t.Context(), tx, did, schema.ResyncResult{Rev: rev, Useful: time.Minute, Useless: time.Hour})
		return err
	}))
	return again
}

// TestResyncIsRequestedOnce shows that a resync is requested once until it ends, and again only for
// revisions that it did not include.
func TestResyncIsRequestedOnce(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	state := func() schema.ResyncState {
		t.Helper()
		s, err := schema.BeginResync(t.Context(), pool, "a", 10, time.Minute, true)
		require.NoError(t, err)
		return s
	}
	_, err := schema.BeginResync(t.Context(), pool, "a", 10, time.Minute, true)
	require.ErrorIs(t, err, schema.ErrNoRows)
	require.Equal(t, []string{"a", "b"}, marks(t, pool, lost("b", "3"), lost("a", "2"), lost("a", "5"), lost("a", "4")))
	require.Empty(t, marks(t, pool, lost("a", "6")), "no second job is needed: the first has not begun")
	s := state()
	require.True(t, s.Begun)
	require.True(t, s.Everyone)
	require.False(t, s.Watched)
	require.Equal(t, "active", s.Status)
	s = state()
	require.False(t, s.Begun, "the resync has just begun")
	require.InDelta(t, time.Minute, s.Wait, float64(time.Second))
	require.Equal(t, "6", s.Sought, "an attempt that was killed has not ended the search")

	require.Empty(t, marks(t, pool, lost("a", "8")), "no second job is needed: the first is running")
	require.Zero(t, endResync(t, pool, "a", "8"), "no other resync is needed: the repository includes the revision")
	require.Empty(t, marks(t, pool, lost("a", "8"), lost("a", "7")))
	require.Equal(t, []string{"a"}, marks(t, pool, lost("a", "9")))
	s = state()
	require.False(t, s.Begun, "after a resync that finds nothing the next one must wait")
	require.Equal(t, "9", s.Sought)
	_, err = pool.Exec(t.Context(), `UPDATE resyncs SET due_at = now()`)
	require.NoError(t, err)
	require.True(t, state().Begun)
	require.Empty(t, marks(t, pool, lost("a", "")))
	require.InDelta(t, 2*time.Hour, endResync(t, pool, "a", "a"), float64(time.Second), "an unknown revision was refused meanwhile")

	_, err = pool.Exec(t.Context(), `UPDATE resyncs SET due_at = now() - interval '25 hours'`)
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, marks(t, pool, lost("a", "b")), "somebody has deleted its job")
	require.Empty(t, marks(t, pool, lost("a", "b")))
}

// TestInventedAccountsFillNoTable shows that at the limit no further accounts are marked, and that
// known ones still are.
func TestInventedAccountsFillNoTable(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	var all []schema.Desynchronized
	for i := range 10_050 {
		all = append(all, lost(fmt.Sprintf("did:plc:%05d", i), ""))
	}
	require.Len(t, marks(t, pool, all[:9_000]...), 9_000)
	require.Len(t, marks(t, pool, all[9_000:]...), 1_000)
	require.Empty(t, marks(t, pool, lost("another", "")))
	_, err := schema.BeginResync(t.Context(), pool, "did:plc:00001", 10, time.Minute, true)
	require.NoError(t, err)
	endResync(t, pool, "did:plc:00001", "3")
	require.Equal(t, []string{"did:plc:00001"}, marks(t, pool, lost("did:plc:00001", "4")))
}

// TestResyncsOfAllAccountsAreBounded shows the limit per hour.
func TestResyncsOfAllAccountsAreBounded(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	begins := func(did string) bool {
		t.Helper()
		s, err := schema.BeginResync(t.Context(), pool, did, 2, time.Minute, true)
		require.NoError(t, err)
		return s.Begun
	}
	marks(t, pool, lost("a", ""), lost("b", ""), lost("c", ""))
	require.True(t, begins("a"))
	require.True(t, begins("b"))
	require.False(t, begins("c"))
	_, err := pool.Exec(t.Context(), `UPDATE resyncs SET begun_at = now() - interval '61 minutes' WHERE did = 'a'`)
	require.NoError(t, err)
	require.True(t, begins("c"))

	_, err = pool.Exec(t.Context(), `UPDATE resyncs SET begun_at = NULL, due_at = now()`)
	require.NoError(t, err)
	_, err = pool.Exec(t.Context(), `INSERT INTO accounts (did, status) VALUES ('a', 'takendown')`)
	require.NoError(t, err)
	require.False(t, begins("a"), "its server would refuse")
	require.True(t, begins("b"))
	require.True(t, begins("c"), "inactive accounts must not use the turns of others")
}

// TestResyncSettlesRefusedCommits shows that a resync settles the commits refused before it, and no
// others.
func TestResyncSettlesRefusedCommits(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	store := func(did, stage, rkey string, class string) {
		t.Helper()
		l := schema.DeadLetter{
			Stage: stage, Key: schema.Key{Collection: "c", DID: did, Rkey: rkey}, Raw: []byte(rkey), Class: class,
		}
		require.NoError(t, l.Store(t.Context(), pool, "s"))
	}
	store("a", schema.StageVerify, "refused", "")
	store("a", schema.StageVerify, "waits", schema.ClassRetryable)
	store("a", schema.StageCommit, "another stage", "")
	store("b", schema.StageVerify, "another account", "")
	marks(t, pool, lost("a", "2"))
	_, err := schema.BeginResync(t.Context(), pool, "a", 10, time.Minute, true)
	require.NoError(t, err)
	later := schema.DeadLetter{
		Stage: schema.StageVerify, Key: schema.Key{Collection: "c", DID: "a", Rkey: "later"}, Raw: []byte("l"),
	}
	require.NoError(t, later.Store(t.Context(), pool, "s"))
	endResync(t, pool, "a", "3")
	settled, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `SELECT rkey FROM dead_letters WHERE state = 'dismissed'`)
	require.NoError(t, err)
	require.Equal(t, []string{"refused"}, settled)
}

// TestRefusedCommitsAndPositionAreOne shows that no account is marked without the lease.
func TestRefusedCommitsAndPositionAreOne(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	lease, ok, err := schema.TakeLease(t.Context(), pool, "s", "w", "me", time.Minute)
	require.NoError(t, err)
	require.True(t, ok)
	apply := func(lease schema.Lease) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			b := schema.Batch{Desynchronized: []schema.Desynchronized{lost("a", "2")}, Position: schema.Position{CursorKind: "seq", Cursor: 7}}
			_, err := b.Apply(t.Context(), tx, lease)
			return err
		})
	}
	former := lease
	former.Epoch--
	require.True(t, errors.Is(apply(former), schema.ErrFenced))
	marked := func() int {
		n, err := schema.One(t.Context(), pool, "count", pgx.RowTo[int], `SELECT count(*) FROM resyncs`)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, marked())
	require.NoError(t, apply(lease))
	require.Equal(t, 1, marked())
}

// TestSynchronizedAccountsExpire shows that the others do not.
func TestSynchronizedAccountsExpire(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	marks(t, pool, lost("a", "2"), lost("b", "2"), lost("c", "2"))
	endResync(t, pool, "a", "3")
	endResync(t, pool, "b", "3")
	marks(t, pool, lost("b", "4"))
	n, err := schema.ExpireResyncs(t.Context(), pool, time.Now().Add(-time.Minute), 10)
	require.NoError(t, err)
	require.Zero(t, n)
	n, err = schema.ExpireResyncs(t.Context(), pool, time.Now().Add(time.Minute), 10)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	left, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `SELECT did FROM resyncs ORDER BY did`)
	require.NoError(t, err)
	require.Equal(t, []string{"b", "c"}, left)
}

// TestPersonRequestsResync shows that a manual request is due at once, whenever the last resync
// was.
func TestPersonRequestsResync(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	const did = "did:plc:wq4aajammjtxdomz3e23667t"
	for range 2 {
		_, err := pool.Exec(t.Context(), `SELECT enqueue_resync($1)`, did)
		require.NoError(t, err)
		s, err := schema.BeginResync(t.Context(), pool, did, 10, time.Minute, true)
		require.NoError(t, err)
		require.True(t, s.Begun)
		require.Zero(t, endResync(t, pool, did, "3"))
	}
	jobs, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string],
		`SELECT kind || ' ' || queue || ' ' || args::text || ' ' || tags::text FROM river_job`)
	require.NoError(t, err)
	require.Equal(t, []string{`resync_repo resync {"did": "` + did + `"} {resync}`, `resync_repo resync {"did": "` + did + `"} {resync}`},
		jobs)
	for _, account := range []string{"alice.example", "did:plc", ""} {
		_, err := pool.Exec(t.Context(), `SELECT enqueue_resync($1)`, account)
		require.ErrorContains(t, err, "is not a DID")
	}
}

// TestRefusedCommitsThatWereComparedAreSettled covers commits that arrive after the resync that
// compared them, or while it runs. No other resync would settle them.
func TestRefusedCommitsThatWereComparedAreSettled(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	refuse := func(did, rev string) {
		t.Helper()
		b := schema.Batch{
			DeadLetters: []schema.DeadLetter{
				{Stage: schema.StageVerify, Key: schema.Key{Collection: "c", DID: did, Rkey: rev}, Rev: rev, Raw: []byte(rev)},
			},
			Desynchronized: []schema.Desynchronized{lost(did, rev)},
		}
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := b.Apply(t.Context(), tx, schema.Lease{})
			return err
		}))
	}
	begin := func() {
		t.Helper()
		_, err := pool.Exec(t.Context(), `UPDATE resyncs SET due_at = now()`)
		require.NoError(t, err)
		s, err := schema.BeginResync(t.Context(), pool, "a", 10, time.Minute, true)
		require.NoError(t, err)
		require.True(t, s.Begun)
	}
	open := func(want ...string) {
		t.Helper()
		got, err := schema.All(t.Context(), pool, "read", pgx.RowTo[string], `SELECT rkey FROM dead_letters WHERE state = 'open' ORDER BY rkey`)
		require.NoError(t, err)
		require.Equal(t, want, append([]string(nil), got...))
	}
	refuse("a", "5")
	refuse("b", "2")
	open("2", "5")
	begin()
	refuse("a", "4") // a commit that the repository includes
	refuse("a", "7")
	open("2", "4", "5", "7")
	require.Zero(t, endResync(t, pool, "a", "7"))
	open("2")

	refuse("a", "6") // sent again, from before the resync
	refuse("a", "7")
	open("2")
	refuse("a", "9")
	begin()
	refuse("a", "95")
	require.Positive(t, endResync(t, pool, "a", "9"))
	open("2", "95")
}
