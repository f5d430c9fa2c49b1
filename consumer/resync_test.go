package consumer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/testing/simnet"
	"github.com/weir-social/weir/schema"
)

// marked returns the accounts that are desynchronized.
func (s *stream) marked() []string {
	s.t.Helper()
	dids, err := schema.All(s.t.Context(), s.pool, "read", pgx.RowTo[string],
		`SELECT did FROM resyncs WHERE desynchronized_at IS NOT NULL ORDER BY did`)
	require.NoError(s.t, err)
	return dids
}

// TestRefusedCommitsDesynchronizeTheirAccounts checks that accounts are marked in the transaction
// that moves the position past their refused commits: forgeries, commits from before a key rotation
// that are read after it, blocks that do not match, and #sync. Each account gets one job.
func TestRefusedCommitsDesynchronizeTheirAccounts(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	all := n.Accounts()
	rotated, forged, spoilt, synced, replayed, stranger := all[0].DID, all[1].DID, all[2].DID, all[3].DID, all[4].DID, all[5].DID
	for _, a := range all[:6] {
		_, err := n.PostNow(a.DID, "first")
		require.NoError(t, err)
	}
	require.NoError(t, n.RotateKey(rotated))
	require.NoError(t, n.SyncRepo(synced))
	require.NoError(t, n.Forge(simnet.Replay, replayed))
	for range 3 {
		require.NoError(t, n.Forge(simnet.OtherKey, forged))
		require.NoError(t, n.Forge(simnet.WrongBlock, spoilt))
		require.NoError(t, n.Forge(simnet.OtherKey, stranger))
		require.NoError(t, n.Forge(simnet.WrongBlock, stranger))
	}
	_, err := n.PostNow(forged, "the last")
	require.NoError(t, err)

	s := newStreamOf(t, verifiedWire(t, n, false), history{})
	var mu sync.Mutex
	jobs := map[string]int{}
	stop := s.run(func(c *consumer.Config) {
		c.BatchEvents = 1
		c.Follows = func(did string) bool { return did != stranger }
		c.Resync = func(ctx context.Context, tx pgx.Tx, resyncs []schema.Resync) error {
			mu.Lock()
			defer mu.Unlock()
			for _, r := range resyncs {
				jobs[r.DID]++
				var inside, outside int64
				const at = `SELECT coalesce((SELECT max(cursor) FROM streams), 0) FROM resyncs WHERE did = $1`
				assert.NoError(t, tx.QueryRow(ctx, at, r.DID).Scan(&inside))
				assert.ErrorIs(t, s.pool.QueryRow(ctx, at, r.DID).Scan(&outside), schema.ErrNoRows, "the account was marked before the position moved")
				assert.NoError(t, s.pool.QueryRow(ctx, `SELECT max(cursor) FROM streams`).Scan(&outside))
				assert.Greater(t, inside, outside, "the position moves in the same transaction")
			}
			return nil
		}
	})
	s.reads()
	stop()
	require.ElementsMatch(t, []string{rotated, forged, spoilt, synced}, s.marked())
	require.Equal(t, map[string]int{rotated: 1, forged: 1, spoilt: 1, synced: 1}, jobs)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts WHERE record ->> 'text' = $1`, simnet.ForgedText))
	require.Equal(t, 4, count(t, s.pool, `SELECT count(*) FROM resyncs WHERE cause <> '' AND wanted <> '' AND due_at <= now()`))
	require.Equal(t, 4, count(t, s.pool, `SELECT count(*) FROM resyncs WHERE wanted < 'zzz'`),
		"each row has the revision that the comparison must include")
}

// TestTrustedRelayDesynchronizesNobody shows that without verification no account is compared.
func TestTrustedRelayDesynchronizesNobody(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	did := n.Hub().DID
	_, err := n.PostNow(did, "first")
	require.NoError(t, err)
	require.NoError(t, n.SyncRepo(did))
	require.NoError(t, n.Forge(simnet.WrongBlock, did))
	_, err = n.PostNow(did, "the last")
	require.NoError(t, err)
	s := newStreamOf(t, relayWire(t, n), history{})
	stop := s.run(nil)
	s.reads()
	stop()
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters`))
	require.Empty(t, s.marked())
}

// TestMissingCommitsDesynchronizeTheirAccounts checks the chain: whole commits are missing, and
// operations of signed commits. If nothing is missing, no account is desynchronized, even if events
// are not stored or arrive twice.
func TestMissingCommitsDesynchronizeTheirAccounts(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	all := n.Accounts()
	complete, withheld, curtailed, lied, stranger := all[0].DID, all[1].DID, all[2].DID, all[3].DID, all[4].DID
	writes := func() {
		t.Helper()
		for _, a := range all[:5] {
			_, err := n.PostNow(a.DID, "a post")
			require.NoError(t, err)
			_, err = n.PutRecord(a.DID, "app.bsky.feed.like", "", []byte(`{"$type":"app.bsky.feed.like"}`))
			require.NoError(t, err)
		}
	}
	writes()
	require.NoError(t, n.Forge(simnet.Replay, complete))
	s := newStreamOf(t, verifiedWire(t, n, true), history{})
	for _, a := range all[:4] {
		_, err := s.pool.Exec(t.Context(), `
			WITH w AS (INSERT INTO watches (target, kind) VALUES ($1, 'account') RETURNING id) INSERT INTO watch_members (watch_id, did)
			SELECT id, $1 FROM w`, a.DID)
		require.NoError(t, err)
	}
	change := func(c *consumer.Config) { c.Follows = func(did string) bool { return did != stranger } }
	stop := s.run(change)
	writes()
	s.reads()
	require.Equal(t, 4, count(t, s.pool, `SELECT count(*) FROM chains`))
	require.NoError(t, n.Withhold(withheld, true))
	require.NoError(t, n.Withhold(stranger, true))
	require.NoError(t, n.Curtail(curtailed, simnet.CurtailOps))
	require.NoError(t, n.Curtail(lied, simnet.CurtailPrev))
	for _, a := range all[:5] {
		_, err := n.PutRecord(a.DID, "app.bsky.feed.like", "", []byte(`{"$type":"app.bsky.feed.like"}`))
		require.NoError(t, err)
	}
	_, err := n.PostNow(complete, "nothing is missing")
	require.NoError(t, err)
	s.reads()
	require.ElementsMatch(t, []string{curtailed, lied}, s.marked())
	require.NoError(t, n.Withhold(withheld, false))
	require.NoError(t, n.Withhold(stranger, false))
	require.NoError(t, n.Curtail(curtailed, ""))
	require.NoError(t, n.Curtail(lied, ""))
	stop()
	writes()
	stop = s.run(change) // the chain is read from the database
	s.reads()
	stop()
	require.ElementsMatch(t, []string{withheld, curtailed, lied}, s.marked())
	require.Equal(t, 1,
		count(t, s.pool, `SELECT count(*) FROM resyncs WHERE did = $1 AND cause = 'a commit before this one is missing'`, withheld))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters`), "signed operations must be stored")
	require.Equal(t, 4*3+1, count(t, s.pool, `SELECT count(*) FROM posts`))
}

// TestGapMakesChainsUnknown shows that a gap drops the chains: it has the accounts compared anyway.
func TestGapMakesChainsUnknown(t *testing.T) {
	t.Parallel()
	n := quietNetwork(t)
	did := n.Accounts()[0].DID
	_, err := n.PostNow(did, "before the gap")
	require.NoError(t, err)
	s := newStreamOf(t, verifiedWire(t, n, true), history{})
	_, err = s.pool.Exec(t.Context(), `
		WITH w AS (INSERT INTO watches (target, kind) VALUES ($1, 'account') RETURNING id) INSERT INTO watch_members (watch_id, did)
		SELECT id, $1 FROM w`, did)
	require.NoError(t, err)
	stop := s.run(nil)
	s.reads()
	stop()
	require.NoError(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		b := schema.Batch{Gap: &schema.Gap{From: time.Now().Add(-time.Minute), To: time.Now(), Reason: "a test"}}
		_, err := b.Apply(t.Context(), tx, schema.Lease{})
		return err
	}))
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM chains`))
	require.NoError(t, n.Withhold(did, true))
	_, err = n.PostNow(did, "in the gap")
	require.NoError(t, err)
	require.NoError(t, n.Withhold(did, false))
	_, err = n.PostNow(did, "after the gap")
	require.NoError(t, err)
	stop = s.run(nil)
	s.reads()
	stop()
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM chains`))
	require.Empty(t, s.marked())
}
