package consumer_test

import (
	"context"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/simnet"
)

// marked returns the accounts that are desynchronized.
func (s *stream) marked() []string {
	s.t.Helper()
	dids, err := schema.All(s.t.Context(), s.pool, "read", pgx.RowTo[string], `SELECT did FROM resyncs WHERE desynchronized_at IS NOT NULL ORDER BY did`)
	require.NoError(s.t, err)
	return dids
}

// TestRefusedCommitsDesynchronizeTheirAccounts in the transaction that moves the
// position past them: forgeries, commits from before a rotation that are read after it,
// blocks that do not fit, and #sync. Each account gets one job.
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
	}
	_, err := n.PostNow(forged, "the last")
	require.NoError(t, err)

	s := newStreamOf(t, verifiedWire(t, n), history{})
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
				require.NoError(t, tx.QueryRow(ctx, at, r.DID).Scan(&inside))
				require.ErrorIs(t, s.pool.QueryRow(ctx, at, r.DID).Scan(&outside), schema.ErrNoRows, "not committed before the position")
				require.NoError(t, s.pool.QueryRow(ctx, `SELECT max(cursor) FROM streams`).Scan(&outside))
				require.Greater(t, inside, outside, "the position moves in the same transaction")
			}
			return nil
		}
	})
	s.reads(n)
	stop()
	require.ElementsMatch(t, []string{rotated, forged, spoilt, synced}, s.marked())
	require.Equal(t, map[string]int{rotated: 1, forged: 1, spoilt: 1, synced: 1}, jobs)
	require.Zero(t, count(t, s.pool, `SELECT count(*) FROM posts WHERE record ->> 'text' = $1`, simnet.ForgedText))
	require.Equal(t, 4, count(t, s.pool, `SELECT count(*) FROM resyncs WHERE cause <> '' AND wanted <> '' AND due_at <= now()`))
	require.Equal(t, 4, count(t, s.pool, `SELECT count(*) FROM resyncs WHERE wanted < 'zzz'`), "the revisions are known: what is compared later includes them")
}

// TestTrustedRelayDesynchronizesNobody: without verification, nothing is compared.
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
	s.reads(n)
	stop()
	require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM dead_letters`))
	require.Empty(t, s.marked())
}
