package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// hostileCauses are parts of the causes of the dead letters.
func hostileCauses() map[simnet.Forgery]string {
	return map[simnet.Forgery]string{
		simnet.NestedArrays: "nested too deeply", simnet.NestedMaps: "nested too deeply",
		simnet.EndlessArray: "ends within", simnet.EndlessText: "ends within",
		simnet.HugeInteger: "not an integer of 64 bits", simnet.NegativeHuge: "not an integer of 64 bits",
		simnet.SameName: "occurs twice", simnet.LargeRecord: "larger than the network allows", simnet.NotARecord: "wrong type",
		simnet.ManyOperations: "too many operations", simnet.NullOperation: "wrong type", simnet.EndlessOps: "ends within",
		simnet.CyclicTree: "the top of the tree has no keys", simnet.DeepTree: "the top of the tree has no keys",
		simnet.WideNode: "not in the repository's tree", simnet.EmptyBlocks: "the deleted record is in the repository's tree",
		simnet.EndlessBlock: "ends within a block", simnet.CutCAR: "ends within a block", simnet.LongBlocks: "the blocks are too long",
		simnet.CutFrame: "ends within",
	}
}

// hostileFrames are frames with no account's signature, and what their dead letters say.
func hostileFrames() map[string]string {
	commit := "\xa2\x61t\x67#commit\x62op\x01"
	nested := strings.Repeat("\x81", 1<<20)
	return map[string]string{
		"": "ends within", "text, and no CBOR": "wrong type", "\xa0": "the kind of the frame is missing",
		nested: "wrong type", "\xa1" + nested: "wrong type", "\xa1\x61x" + nested: "ends within",
		"\xbf": "not DAG-CBOR", "\xbb\x7f\xff\xff\xff\xff\xff\xff\xff": "ends within",
		commit:                        "ends within",
		commit + "\xa1\x61x" + nested: "ends within",
		commit + "\xa1\x63seq\x1b\xff\xff\xff\xff\xff\xff\xff\xff": "not an integer of 64 bits",
		commit + "\xa1\x63seq\x1b\x7f\xff\xff\xff\xff\xff\xff\xff": "the time is missing",
		commit + "\xa1\x63seq\xfb\x43\x40\x00\x00\x00\x00\x00\x00": "wrong type",
	}
}

// TestHostileCommitsStopNothing has accounts sign commits that are made to exhaust their readers,
// and a relay send broken frames. Each becomes one dead letter, the valid commits between them are
// stored, and the process uses little memory. Then a starting process receives all of them at once.
func TestHostileCommitsStopNothing(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := calmNetwork(t)
	k, url := readingRelay(t, n, "GOMEMLIMIT=100MiB") // without it, a busy machine's collector leaves more
	pool := open(t, url)
	defer pool.Close()
	want := map[string]string{} // CID by record
	accounts := n.Accounts()
	writes := func(did string) {
		e, err := n.PostNow(did, "between hostile commits")
		require.NoError(t, err)
		want[e.DID+"/"+e.Rkey] = e.CID
	}
	for _, a := range accounts[:7] { // the process then knows their keys
		writes(a.DID)
	}
	k.reaches(n.Log().Last().RelaySeq)
	k.verified(pool)
	calm := peakMemory(t, k.process.cmd.Process.Pid)

	seen := int64(0)
	refused := func(what, cause string) {
		var text string
		began := time.Now()
		eventually.True(t, func() bool {
			const sql = `SELECT id, concat_ws(' ', stage, cause, expected, received) FROM dead_letters WHERE id > $1`
			return pool.QueryRow(t.Context(), sql, seen).Scan(&seen, &text) == nil
		}, 10*time.Millisecond, "%.30q leaves no dead letter", what)
		require.Contains(t, text, "decode ", "%.30q", what)
		require.Contains(t, text, cause, "%.30q", what)
		t.Logf("%.30q was refused after %s: %.100q", what, time.Since(began).Round(time.Millisecond), text)
	}
	causes := hostileCauses()
	for i, f := range simnet.HostileCommits() {
		did := accounts[i%7].DID
		writes(did)
		require.NoError(t, n.Forge(f, did))
		writes(did)
		require.Contains(t, causes, f)
		refused(string(f), causes[f])
		k.reaches(n.Log().Last().RelaySeq)
	}
	for frame, cause := range hostileFrames() {
		n.Inject([]byte(frame))
		refused(frame, cause)
	}
	require.NoError(t, n.Do(simnet.Oversized))
	refused("a frame of 17 MiB", "too long")
	const refusals = `SELECT count(*) FROM dead_letters WHERE state = 'open'`
	require.Equal(t, len(causes)+len(hostileFrames())+1, count(t, pool, refusals))
	require.Less(t, peakMemory(t, k.process.cmd.Process.Pid), calm+hostileMemory, "MB")

	k.process.kill()
	for _, a := range accounts[:7] {
		for _, f := range simnet.HostileCommits() {
			require.NoError(t, n.Forge(f, a.DID))
			writes(a.DID)
		}
	}
	k.process = start(t, k.env, "serve")
	k.reaches(n.Log().Last().RelaySeq)
	k.verified(pool)
	require.Equal(t, want, cids(t, pool))
	require.Equal(t, (1+7)*len(causes)+len(hostileFrames())+1, count(t, pool, refusals))
	t.Logf("peak memory: %.0f MB before the first, now %.0f MB", calm, peakMemory(t, k.process.cmd.Process.Pid))
	require.Less(t, peakMemory(t, k.process.cmd.Process.Pid), calm+hostileMemory, "MB")
}

// hostileMemory is how many MB above its calm usage the process may use: some frames of the largest
// kind, and what the garbage collector leaves.
const hostileMemory = 150.0
