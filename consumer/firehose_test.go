package consumer_test

import (
	"flag"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// TestRelayHidesAnchorsAccount checks that a resume does not need an event of an account that the
// relay has taken down since.
func TestRelayHidesAnchorsAccount(t *testing.T) {
	t.Parallel()
	for _, w := range wires() {
		if w.decodes.Name != "firehose" {
			continue
		}
		s := newStreamOf(t, w, history{events: 200})
		n := s.net.(relayNet)
		hub := n.Hub().DID
		_, err := n.PostNow(hub, "the last before the relay takes the account down")
		require.NoError(t, err)
		stop := s.run(nil)
		s.stores()
		stop()
		require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM streams WHERE anchor ->> 'did' = $1`, hub))
		n.HideFromRelay(hub, true)
		n.Play(50)
		stop = s.run(nil)
		s.stores()
		stop()
		require.False(t, s.log.has("resume_mismatch"), w.name)
		require.Zero(t, count(t, s.pool, allGaps))
	}
}

// TestSyncOfRelayMovesPosition checks that a #sync event, which has no record, can be an anchor
// like other events.
func TestSyncOfRelayMovesPosition(t *testing.T) {
	t.Parallel()
	n := startJetstream(t, simnet.Config{History: 50})
	s := newStreamOf(t, relayWire(t, n), history{})
	for range 2 {
		require.NoError(t, n.SyncRepo(n.Hub().DID))
		stop := s.run(nil)
		s.stores()
		stop()
		require.Equal(t, 1, count(t, s.pool, `
			SELECT count(*) FROM streams WHERE anchor ->> 'kind' = 'sync' AND (anchor ->> 'seq')::bigint = cursor`))
		require.False(t, s.log.has("resume_mismatch"))
	}
}

// relayWire returns the wire of a relay on a network that is already running.
func relayWire(t *testing.T, n jetstreamNet) wire {
	t.Helper()
	for _, w := range wires() {
		if w.decodes.Name == "firehose" {
			w.network = func(*testing.T, history) network { return relayNet{n} }
			return w
		}
	}
	require.Fail(t, "there is no such wire")
	return wire{}
}

var wireCommits = flag.Int("wire-commits", 5000, "the commits that TestWiresStoreTheSameRecords reads")

// TestWiresStoreTheSameRecords reads a history through Jetstream and through the
// relay: all columns but indexed_at are equal.
func TestWiresStoreTheSameRecords(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n, many := startJetstream(t, simnet.Config{}), *wireCommits
	commits := map[[2]string]bool{}
	for read := 0; len(commits) < many; {
		n.Play(1000)
		all := n.Log().Entries()
		for _, e := range all[read:] {
			if e.Kind == "commit" {
				commits[[2]string{e.DID, e.Rev}] = true
			}
		}
		read = len(all)
	}
	everything := func(c *consumer.Config) { c.Wanted = func(string) bool { return true } }
	type row struct{ Collection, DID, Rkey, Rev, CID, Created, Record string }
	stored := func(w wire) []row {
		s := newStreamOf(t, w, history{})
		stop := s.run(everything)
		s.reads()
		stop()
		require.Zero(t, count(t, s.pool, `SELECT count(*) FROM dead_letters`))
		rows, err := s.pool.Query(t.Context(), `
			SELECT collection, did, rkey, rev, cid, created_at::text, record::text FROM records AS r
			WHERE NOT EXISTS (SELECT FROM accounts AS a WHERE a.did = r.did AND a.status = 'deleted') -- they are purged later
			ORDER BY collection, did, rkey`)
		require.NoError(t, err)
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
		require.NoError(t, err)
		return all
	}
	throughJetstream := wireOf(t, "jetstream v2")
	throughJetstream.network = func(*testing.T, history) network { return n }
	want, got := stored(throughJetstream), stored(relayWire(t, n))
	require.Greater(t, len(want), many*2/3)
	require.Equal(t, len(want), len(got))
	for i := range want {
		require.Equal(t, want[i], got[i])
	}
	t.Logf("equal: %d commits, %d records", len(commits), len(want))
}

// TestSourceCanBeChanged reads a stream through Jetstream, then through the relay, and back. The
// anchors change, and no gap is recorded.
func TestSourceCanBeChanged(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := startJetstream(t, simnet.Config{History: 500})
	relay, throughJetstream := relayWire(t, n), wireOf(t, "jetstream v2")
	throughJetstream.network = func(*testing.T, history) network { return n }
	s := newStreamOf(t, throughJetstream, history{})
	for _, w := range []wire{throughJetstream, relay, throughJetstream} {
		s.wire, s.net = w, w.network(t, history{})
		n.Play(100)
		stop := s.run(nil)
		s.stores()
		require.Equal(t, 1, count(t, s.pool, `SELECT count(*) FROM streams WHERE wire = $1`, w.decodes.Name))
		stop()
		require.Zero(t, count(t, s.pool, allGaps))
	}
	require.False(t, s.log.has("resume_mismatch"))
}
