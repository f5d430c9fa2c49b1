package simnet_test

import (
	"bytes"
	"testing"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// verified reports whether a commit has a valid signature of a key, strictly and leniently.
func verified(t *testing.T, c *comatproto.SyncSubscribeRepos_Commit, key atcrypto.PublicKey) (strict, lenient bool) {
	t.Helper()
	signed, _, err := repo.LoadCommitFromCAR(t.Context(), bytes.NewReader(c.Blocks))
	require.NoError(t, err)
	unsigned, err := signed.UnsignedBytes()
	require.NoError(t, err)
	return key.HashAndVerify(unsigned, signed.Sig) == nil, key.HashAndVerifyLenient(unsigned, signed.Sig) == nil
}

func TestKeysAreOnBothCurves(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 9, Accounts: 40})
	curves := map[bool]int{}
	for _, a := range n.Accounts() {
		_, k256 := keyOf(t, n, a.DID).(*atcrypto.PublicKeyK256)
		curves[k256]++
	}
	require.Greater(t, curves[true], 10)
	require.Greater(t, curves[false], 10)
}

// TestForgeriesAreWrongInOneWay checks each forgery with indigo, and that the valid commits around
// them form a chain.
func TestForgeriesAreWrongInOneWay(t *testing.T) {
	t.Parallel()
	n := network(t, simnet.Config{Seed: 10, Accounts: 40})
	for _, a := range n.Accounts()[:6] { // with keys of both curves
		did := a.DID
		former := keyOf(t, n, did)
		require.ErrorContains(t, n.Forge(simnet.OtherKey, did), "has written nothing")
		client := subscribeRepos(t, n, "")
		first, err := n.PostNow(did, "to be edited")
		require.NoError(t, err)
		require.ErrorContains(t, n.Forge(simnet.FormerKey, did), "never had another key")
		require.NoError(t, n.RotateKey(did))
		_, err = n.EditPost("at://"+did+"/"+first.Collection+"/"+first.Rkey, "edited")
		require.NoError(t, err)
		key := keyOf(t, n, did)
		require.False(t, key.Equal(former))
		one := client.next().commit
		strict, _ := verified(t, one, former)
		require.True(t, strict)
		require.Equal(t, did, client.next().identity.Did)
		before := client.next().commit
		strict, _ = verified(t, before, key)
		require.True(t, strict, "the rotation counts from the next commit on")

		for _, f := range simnet.Forgeries() {
			require.NoError(t, n.Forge(f, did))
			c := client.next().commit
			require.Equal(t, did, c.Repo)
			require.Greater(t, c.Seq, before.Seq)
			strict, lenient := verified(t, c, key)
			_, err := repo.VerifyCommitMessage(t.Context(), c)
			switch f {
			case simnet.OtherKey, simnet.FormerKey:
				require.NoError(t, err)
				require.False(t, lenient)
				was, _ := verified(t, c, former)
				require.Equal(t, f == simnet.FormerKey, was)
			case simnet.HighS:
				require.NoError(t, err)
				require.Equal(t, []bool{false, true}, []bool{strict, lenient})
			case simnet.WrongBlock, simnet.AlteredRecord:
				require.Error(t, err)
				require.True(t, strict)
				require.Equal(t, before.Rev, c.Rev)
			case simnet.Replay:
				require.NoError(t, err)
				require.Equal(t, one.Rev, c.Rev)
				was, _ := verified(t, c, former)
				require.True(t, was)
			}
			require.Positive(t, n.Fired()[simnet.Fault(f)])
		}
		_, err = n.PostNow(did, "goes on")
		require.NoError(t, err)
		next := client.next().commit
		require.Equal(t, before.Rev, *next.Since)
		_, err = repo.VerifyCommitMessage(t.Context(), next)
		require.NoError(t, err)
	}
	var lines bytes.Buffer
	require.NoError(t, n.Log().WriteJSONL(&lines, simnet.V2))
	require.NotContains(t, lines.String(), simnet.ForgedText)
	require.NotContains(t, lines.String(), "forged")
}
