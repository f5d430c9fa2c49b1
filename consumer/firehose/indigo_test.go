package firehose

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	lexutil "github.com/bluesky-social/indigo/lex/util"
	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// agreesWithIndigo compares the events of a commit with those that indigo decodes.
func agreesWithIndigo(t testing.TB, msg *comatproto.SyncSubscribeRepos_Commit, m *consumer.Message) {
	t.Helper()
	require.Empty(t, m.Malformed)
	require.Equal(t, msg.Seq, m.Seq)
	require.Equal(t, consumer.Identity{Kind: "commit", Author: msg.Repo, Revision: msg.Rev}, m.Identity)
	require.Len(t, m.Events, len(msg.Ops))
	_, loaded, err := repo.LoadRepoFromCAR(context.Background(), bytes.NewReader(msg.Blocks))
	require.NoError(t, err)
	for i, op := range msg.Ops {
		ev := &m.Events[i]
		require.Equal(t, i, ev.Part)
		require.Equal(t, op.Path, ev.Collection+"/"+ev.Key)
		require.Equal(t, op.Action, ev.Operation.String())
		require.Equal(t, []string{msg.Repo, msg.Rev}, []string{ev.Author, ev.Revision})
		if op.Action == "delete" {
			require.Empty(t, ev.CID)
			require.Nil(t, ev.Record)
			continue
		}
		raw, c, err := loaded.GetRecordBytes(context.Background(), syntax.NSID(ev.Collection), syntax.RecordKey(ev.Key))
		require.NoError(t, err)
		require.Equal(t, c.String(), ev.CID)
		require.JSONEq(t, string(indigoJSON(t, raw)), string(ev.Record))
	}
}

// indigoJSON returns a record as JSON, converted by indigo.
func indigoJSON(t testing.TB, raw []byte) []byte {
	t.Helper()
	v, err := atdata.UnmarshalCBOR(raw)
	require.NoError(t, err)
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return out
}

// inverted returns the root of the tree before a commit.
func inverted(t testing.TB, frame []byte) (string, *consumer.Malformed) {
	t.Helper()
	var d decoder
	require.Nil(t, d.read(frame))
	require.Nil(t, d.readSigned())
	before, bad := d.blocks.invert(d.signed.data, d.ops)
	return before.String(), bad
}

func TestCommitsAreReadAsIndigoReadsThem(t *testing.T) {
	t.Parallel()
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 1))
		r := newRepository(t)
		before := "bafyreie5737gdxlw5i64vzichcalba3z2v5n6icifvx5xytvske7mr3hpm" // an empty tree
		for range 40 {
			size := 1 + random.IntN(3)
			if random.IntN(8) == 0 {
				size = 60
			}
			msg := r.commit(r.writes(random, size)...)
			frame := commitFrame(t, msg)
			agreesWithIndigo(t, msg, decoded(t, frame))
			_, err := repo.VerifyCommitMessage(context.Background(), msg)
			require.NoError(t, err)
			got, bad := inverted(t, frame)
			require.Nil(t, bad)
			require.Equal(t, before, got)
			before = r.data.String()
		}
	}
}

// TestRepositoryOfEverySizeIsInverted inverts every commit of a repository, from its first record
// to its last and back.
func TestRepositoryOfEverySizeIsInverted(t *testing.T) {
	t.Parallel()
	r, random := newRepository(t), rand.New(rand.NewPCG(5, 5))
	var paths []string
	step := func(w write) {
		before := r.data
		frame := commitFrame(t, r.commit(w))
		got, bad := inverted(t, frame)
		require.Nil(t, bad)
		if before != nil {
			require.Equal(t, before.String(), got)
		}
		require.Len(t, decoded(t, frame).Events, 1)
	}
	for range 120 {
		w := write{r.path(random), post(t, "a")}
		if _, ok := r.records[w.path]; !ok {
			paths = append(paths, w.path)
			step(w)
		}
	}
	random.Shuffle(len(paths), func(i, j int) { paths[i], paths[j] = paths[j], paths[i] })
	for _, path := range paths {
		step(write{path, nil})
	}
	require.Equal(t, "bafyreie5737gdxlw5i64vzichcalba3z2v5n6icifvx5xytvske7mr3hpm", r.data.String())
}

// indigoInverted returns the root of the tree before a commit, computed by indigo.
func indigoInverted(t testing.TB, msg *comatproto.SyncSubscribeRepos_Commit) (string, error) {
	t.Helper()
	_, loaded, err := repo.LoadRepoFromCAR(context.Background(), bytes.NewReader(msg.Blocks))
	require.NoError(t, err)
	var ops []repo.Operation
	for _, op := range msg.Ops {
		ops = append(ops, repo.Operation{Path: op.Path, Value: (*cid.Cid)(op.Cid), Prev: (*cid.Cid)(op.Prev)})
	}
	ops, err = repo.NormalizeOps(ops)
	require.NoError(t, err)
	for i := range ops {
		if err := repo.InvertOp(&loaded.MST, &ops[i]); err != nil {
			return "", err
		}
	}
	root, err := loaded.MST.RootCID()
	require.NoError(t, err)
	return root.String(), nil
}

// TestInversionShowsWhatACommitHides shows that inverting a commit that omits an operation, or
// names another CID, results in another tree or an error.
func TestInversionShowsWhatACommitHides(t *testing.T) {
	t.Parallel()
	random, hidden := rand.New(rand.NewPCG(2, 3)), 0
	r := filled(t, 300)
	for range 60 {
		before := r.data.String()
		msg := r.commit(r.writes(random, 4)...)
		if len(msg.Ops) < 2 {
			continue
		}
		other := cid.Cid(msg.Commit)
		at := random.IntN(len(msg.Ops))
		op := *msg.Ops[at]
		switch random.IntN(3) {
		case 0:
			msg.Ops = append(msg.Ops[:at:at], msg.Ops[at+1:]...)
		case 1:
			if op.Prev == nil {
				continue
			}
			*op.Prev = lexutil.LexLink(other)
			msg.Ops[at] = &op
		case 2:
			if op.Cid == nil {
				continue
			}
			*op.Cid = lexutil.LexLink(other)
			msg.Ops[at] = &op
		}
		hidden++
		got, bad := inverted(t, commitFrame(t, msg))
		require.True(t, bad != nil || got != before, "%+v", op)
	}
	require.Greater(t, hidden, 30)
}

// TestRecordedCommitsAreRead reads commits from real servers: those in indigo's own tests, and
// those in WEIR_TESTDATA, one frame per file.
func TestRecordedCommitsAreRead(t *testing.T) {
	t.Parallel()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/bluesky-social/indigo").Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(dir)), "atproto/repo/testdata/firehose_commit_*.json"))
	require.NoError(t, err)
	compared := 0
	for _, file := range files {
		var msg comatproto.SyncSubscribeRepos_Commit
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(data, &msg))
		frame := commitFrame(t, &msg)
		agreesWithIndigo(t, &msg, decoded(t, frame))
		want, err := indigoInverted(t, &msg)
		got, bad := inverted(t, frame)
		if err != nil { // the server omits nodes
			require.Equal(t, "a block is missing", bad.Cause)
			continue
		}
		require.Nil(t, bad)
		require.Equal(t, want, got, file)
		compared++
	}
	require.Positive(t, compared)
	if dir := os.Getenv("WEIR_TESTDATA"); dir != "" {
		frames, err := filepath.Glob(filepath.Join(dir, "firehose-*.cbor"))
		require.NoError(t, err)
		for _, file := range frames {
			frame, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Empty(t, decoded(t, frame).Malformed, file)
		}
	}
}
