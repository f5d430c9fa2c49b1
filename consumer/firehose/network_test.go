package firehose

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/repo/mst"
	"github.com/bluesky-social/indigo/atproto/syntax"
	lexutil "github.com/bluesky-social/indigo/lex/util"
	blockformat "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	blockstore "github.com/ipfs/go-ipfs-blockstore"
	cbornode "github.com/ipfs/go-ipld-cbor"
	"github.com/ipld/go-car"
	carutil "github.com/ipld/go-car/util"
	"github.com/stretchr/testify/require"
	cbg "github.com/whyrusleeping/cbor-gen"

	"github.com/weir-social/weir/consumer"
)

// The frames of the tests are made with indigo, which shares no code with the decoder.

const testDID = "did:plc:wq4aajammjtxdomz3e23667t"

func arrival() time.Time { return time.Date(2026, 8, 1, 12, 0, 1, 0, time.UTC) }

// repository is a repository on a server that sends its commits.
type repository struct {
	t       testing.TB
	key     atcrypto.PrivateKeyExportable
	tree    mst.Tree
	records map[string]cid.Cid
	data    *cid.Cid // the root of the last commit's tree
	clock   *syntax.TIDClock
	rev     string
	seq     int64
}

func newRepository(t testing.TB) *repository {
	t.Helper()
	key, err := atcrypto.GeneratePrivateKeyK256()
	require.NoError(t, err)
	return &repository{
		t: t, key: key, tree: mst.NewEmptyTree(), records: map[string]cid.Cid{}, clock: syntax.NewTIDClock(7), seq: 5_000_000_000,
	}
}

// write is a change of a record. A nil record deletes it.
type write struct {
	path   string
	record []byte
}

// sent collects the blocks of a commit.
type sent struct {
	blockstore.Blockstore
	blocks []blockformat.Block
}

func (s *sent) Put(_ context.Context, b blockformat.Block) error {
	s.blocks = append(s.blocks, b)
	return nil
}

// commit makes a commit and its message.
func (r *repository) commit(writes ...write) *comatproto.SyncSubscribeRepos_Commit {
	r.t.Helper()
	var out sent
	msg := &comatproto.SyncSubscribeRepos_Commit{
		Repo: testDID, Blobs: []lexutil.LexLink{}, Time: "2026-08-01T12:00:00.123Z", Ops: []*comatproto.SyncSubscribeRepos_RepoOp{},
	}
	for _, w := range writes {
		op := &comatproto.SyncSubscribeRepos_RepoOp{Path: w.path}
		if prev, ok := r.records[w.path]; ok {
			op.Prev = (*lexutil.LexLink)(&prev)
		}
		switch {
		case w.record == nil:
			op.Action = "delete"
			_, err := r.tree.Remove([]byte(w.path))
			require.NoError(r.t, err)
			delete(r.records, w.path)
		default:
			op.Action = "create"
			if op.Prev != nil {
				op.Action = "update"
			}
			b := blockOf(r.t, w.record)
			c := b.Cid()
			op.Cid = (*lexutil.LexLink)(&c)
			_, err := r.tree.Insert([]byte(w.path), c)
			require.NoError(r.t, err)
			r.records[w.path] = c
			out.blocks = append(out.blocks, b)
		}
		msg.Ops = append(msg.Ops, op)
	}
	root, err := r.tree.WriteDiffBlocks(context.Background(), &out)
	require.NoError(r.t, err)
	if r.data != nil {
		msg.PrevData = (*lexutil.LexLink)(r.data)
	}
	if r.rev != "" {
		since := r.rev
		msg.Since = &since
	}
	r.data, r.rev, r.seq = root, r.clock.Next().String(), r.seq+1
	msg.Seq, msg.Rev = r.seq, r.rev
	r.sign(msg, &out, &repo.Commit{DID: testDID, Version: 3, Data: *root, Rev: r.rev})
	return msg
}

// sign signs a commit and puts it before the blocks.
func (r *repository) sign(msg *comatproto.SyncSubscribeRepos_Commit, out *sent, c *repo.Commit) {
	r.t.Helper()
	require.NoError(r.t, c.Sign(r.key))
	var raw bytes.Buffer
	require.NoError(r.t, c.MarshalCBOR(&raw))
	signed := blockOf(r.t, raw.Bytes())
	msg.Commit = lexutil.LexLink(signed.Cid())
	msg.Blocks = carOf(r.t, append([]blockformat.Block{signed}, out.blocks...)...)
}

func blockOf(t testing.TB, data []byte) blockformat.Block {
	t.Helper()
	c, err := cid.NewPrefixV1(cid.DagCBOR, 0x12).Sum(data)
	require.NoError(t, err)
	b, err := blockformat.NewBlockWithCid(data, c)
	require.NoError(t, err)
	return b
}

// carOf returns a CAR whose root is the first block.
func carOf(t testing.TB, all ...blockformat.Block) []byte {
	t.Helper()
	return carFrom(t, all[0].Cid(), all...)
}

func carFrom(t testing.TB, root cid.Cid, all ...blockformat.Block) []byte {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, car.WriteHeader(&car.CarHeader{Roots: []cid.Cid{root}, Version: 1}, &out))
	for _, b := range all {
		require.NoError(t, carutil.LdWrite(&out, b.Cid().Bytes(), b.RawData()))
	}
	return out.Bytes()
}

// blocksOf returns the blocks of a message's CAR, so that a test can change them.
func blocksOf(t testing.TB, msg *comatproto.SyncSubscribeRepos_Commit) []blockformat.Block {
	t.Helper()
	reader, err := car.NewCarReader(bytes.NewReader(msg.Blocks))
	require.NoError(t, err)
	var all []blockformat.Block
	for {
		b, err := reader.Next()
		if err != nil {
			return all
		}
		all = append(all, b)
	}
}

// frameOf returns a message as a frame.
func frameOf(t testing.TB, kind string, body cbg.CBORMarshaler) []byte {
	t.Helper()
	out := bytes.NewBuffer(encoded(t, map[string]any{"op": 1, "t": kind}))
	require.NoError(t, body.MarshalCBOR(out))
	return out.Bytes()
}

func commitFrame(t testing.TB, msg *comatproto.SyncSubscribeRepos_Commit) []byte {
	t.Helper()
	return frameOf(t, "#commit", msg)
}

// encoded returns any value as DAG-CBOR.
func encoded(t testing.TB, v any) []byte {
	t.Helper()
	b, err := cbornode.DumpObject(v)
	require.NoError(t, err)
	return b
}

// record returns a record of the network as DAG-CBOR.
func record(t testing.TB, v map[string]any) []byte {
	t.Helper()
	b, err := atdata.MarshalCBOR(v)
	require.NoError(t, err)
	return b
}

func post(t testing.TB, text string) []byte {
	t.Helper()
	return record(t, map[string]any{
		"$type": "app.bsky.feed.post", "text": text, "createdAt": "2026-08-01T12:00:00.000Z", "langs": []any{"en"},
		"facets": []any{map[string]any{"index": map[string]any{"byteStart": int64(0), "byteEnd": int64(4)},
			"features": []any{map[string]any{"$type": "app.bsky.richtext.facet#link", "uri": "https://example.com/a?b=1&c=2"}}}},
		"reply": map[string]any{
			"root": map[string]any{"uri": "at://did:plc:a/app.bsky.feed.post/3mptbypluud2a",
				"cid": "bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i"},
			"parent": map[string]any{"uri": "at://did:plc:a/app.bsky.feed.post/3mptbypluud2a",
				"cid": "bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i"}},
	})
}

// layer returns a large record, with 200 annotations.
func layer(t testing.TB) []byte {
	t.Helper()
	var all []any
	for i := range 200 {
		all = append(all, map[string]any{"$type": "pub.layers.annotation#span", "start": int64(i * 7), "end": int64(i*7 + 5),
			"label":    fmt.Sprintf("NOUN-%d", i),
			"features": []any{"Number=Sing", "Case=Nom"}})
	}
	return record(t, map[string]any{"$type": "pub.layers.annotation", "createdAt": "2026-08-01T12:00:00.000Z", "annotations": all,
		"expression": "at://did:plc:a/pub.layers.expression/3mptbypluud2a"})
}

// filled returns a repository with n posts in its past.
func filled(t testing.TB, n int) *repository {
	t.Helper()
	r := newRepository(t)
	for i := 0; i < n; i += 200 {
		var writes []write
		for j := i; j < min(n, i+200); j++ {
			writes = append(writes, write{fmt.Sprintf("app.bsky.feed.post/%s", r.clock.Next()), post(t, fmt.Sprint("past ", j))})
		}
		r.commit(writes...)
	}
	return r
}

// path returns a path of the repository, or a new one.
func (r *repository) path(random *rand.Rand) string {
	if len(r.records) > 0 && random.IntN(3) > 0 {
		paths := make([]string, 0, len(r.records))
		for path := range r.records {
			paths = append(paths, path)
		}
		slices.Sort(paths)
		return paths[random.IntN(len(paths))]
	}
	return fmt.Sprintf("%s/%d", []string{"app.bsky.feed.post", "app.bsky.feed.like", "pub.layers.annotation"}[random.IntN(3)],
		random.IntN(5000))
}

// writes returns random changes of different records.
func (r *repository) writes(random *rand.Rand, n int) []write {
	r.t.Helper()
	var all []write
	for range n {
		w := write{path: r.path(random)}
		if slices.ContainsFunc(all, func(other write) bool { return other.path == w.path }) {
			continue
		}
		if _, ok := r.records[w.path]; !ok || random.IntN(3) > 0 {
			w.record = post(r.t, fmt.Sprint("text ", random.Uint64()))
		}
		all = append(all, w)
	}
	return all
}

// decoded decodes a frame with every collection wanted.
func decoded(t testing.TB, frame []byte) *consumer.Message {
	t.Helper()
	var m consumer.Message
	Wire(nil, nil).Decode(frame, arrival(), &m)
	return &m
}
