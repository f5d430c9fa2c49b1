package simnet_test

import (
	"bytes"
	"net/http"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// exported returns an account's repository, read by indigo and signed with its key.
func exported(t *testing.T, n *simnet.Net, did string) (*repo.Commit, *repo.Repo) {
	t.Helper()
	response, err := http.Get(n.PDSURL() + "/xrpc/com.atproto.sync.getRepo?did=" + did)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, "application/vnd.ipld.car", response.Header.Get("Content-Type"))
	commit, contents, err := repo.LoadRepoFromCAR(t.Context(), response.Body)
	require.NoError(t, err)
	require.Equal(t, did, commit.DID)
	require.NoError(t, commit.VerifySignature(keyOf(t, n, did)))
	return commit, contents
}

// TestServersExportTheRepositoriesThatTheRelaySends shows that the tree and the revision are those
// of the last commit, also after a key rotation. Events that are withheld from the streams are in
// the #sync after it.
func TestServersExportTheRepositoriesThatTheRelaySends(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 3, Accounts: 20, History: 2000, HistorySpan: time.Hour})
	did := n.Accounts()[0].DID
	require.NoError(t, n.RotateKey(did))
	withheld, err := n.PostNow(did, "sent")
	require.NoError(t, err)
	require.NoError(t, n.Withhold(did, true))
	e, err := n.PostNow(did, "withheld")
	require.NoError(t, err)
	require.NoError(t, n.DeleteRecord("at://"+did+"/"+withheld.Collection+"/"+withheld.Rkey))
	require.NoError(t, n.Withhold(did, false))
	require.NoError(t, n.SyncRepo(did))
	after, err := n.PostNow(did, "sent again")
	require.NoError(t, err)

	c := dial(t, n, "cursor", "0")
	for sent := false; !sent; {
		event := c.next()
		sent = event.Commit != nil && event.Commit.Rkey == after.Rkey
		require.False(t, event.Commit != nil && event.DID == did && event.Commit.Rkey == e.Rkey,
			"Jetstream reads the relay and must not send the withheld event")
	}
	last := map[string]*repo.Commit{}
	for _, m := range subscribeRepos(t, n, "?cursor=0").until(n) {
		blocks := []byte(nil)
		switch {
		case m.commit != nil:
			blocks = m.commit.Blocks
			for _, op := range m.commit.Ops {
				require.NotContains(t, op.Path, e.Rkey, "the relay must not send the withheld event")
			}
		case m.sync != nil:
			blocks = m.sync.Blocks
		default:
			continue
		}
		commit, _, err := repo.LoadCommitFromCAR(t.Context(), bytes.NewReader(blocks))
		require.NoError(t, err)
		last[commit.DID] = commit
	}
	compared := 0
	for _, a := range n.Accounts() {
		if a.Status != "" || last[a.DID] == nil {
			continue
		}
		commit, _ := exported(t, n, a.DID)
		require.Equal(t, last[a.DID].Data, commit.Data, a.DID)
		require.Equal(t, last[a.DID].Rev, commit.Rev)
		compared++
	}
	require.Greater(t, compared, 10)
	_, contents := exported(t, n, did)
	raw, id, err := contents.GetRecordBytes(t.Context(), syntax.NSID(e.Collection), syntax.RecordKey(e.Rkey))
	require.NoError(t, err)
	require.Equal(t, e.CID, id.String())
	require.Contains(t, string(raw), "withheld")
}
