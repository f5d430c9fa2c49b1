package firehose

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/repo"
	blockformat "github.com/ipfs/go-block-format"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// allocated returns how many bytes the process allocates while f runs. The
// number is only valid if nothing else runs, so parallel tests must not use it.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// treeOf replaces a commit's tree by the given blocks, the root first.
func treeOf(r *repository, msg *comatproto.SyncSubscribeRepos_Commit, nodes ...blockformat.Block) {
	var records []blockformat.Block
	for _, b := range blocksOf(r.t, msg)[1:] {
		if bytes.Contains(b.RawData(), []byte("$type")) {
			records = append(records, b)
		}
	}
	r.sign(msg, &sent{blocks: append(nodes, records...)}, &repo.Commit{DID: testDID, Version: 3, Data: nodes[0].Cid(), Rev: msg.Rev})
}

// wide returns a node with n keys of a kilobyte, each of them written in few bytes.
func wide(t testing.TB, n int) blockformat.Block {
	t.Helper()
	out := appendHead([]byte("\xa2\x61e"), majorArray, uint64(n))
	value := digest{1}
	for i := range n {
		suffix := binary.BigEndian.AppendUint32(nil, uint32(i))
		shared := 1000
		if i == 0 {
			suffix, shared = append([]byte(strings.Repeat("a", 1000)), suffix...), 0
		}
		out = append(appendHead(append(out, "\xa4\x61k"...), majorBytes, uint64(len(suffix))), suffix...)
		out = append(appendHead(append(out, "\x61p"...), majorUnsigned, uint64(shared)), "\x61t\xf6\x61v"...)
		out = appendLink(out, &value)
	}
	return blockOf(t, append(out, "\x61l\xf6"...))
}

// chain returns n nodes that contain only a link to the next one. The top node
// has a key in the highest possible layer.
func chain(t testing.TB, n int) []blockformat.Block {
	t.Helper()
	all := []blockformat.Block{blockOf(t, []byte("\xa2\x61e\x80\x61l\xf6"))}
	for range n {
		below := digest([]byte(all[len(all)-1].Cid().Hash())[2:])
		all = append(all, blockOf(t, appendLink([]byte("\xa2\x61e\x80\x61l"), &below)))
	}
	slices.Reverse(all)
	return all
}

type hostile struct {
	frame []byte
	cause string
}

// hostileFrames are the worst frames within the limits, and frames beyond them.
func hostileFrames(t testing.TB) map[string]hostile {
	t.Helper()
	frames := map[string]hostile{}
	for name, value := range map[string][]byte{
		"arrays nested a million times":  append(bytes.Repeat([]byte{0x81}, 1<<20-9), 0x80),
		"maps nested a hundred thousand": append(bytes.Repeat([]byte{0xa1, 0x61, 0x61}, 100_000), 0xf6),
		"array of 2^63 items":            {0x9b, 0x7f, 255, 255, 255, 255, 255, 255, 255},
		"map of 2^32 fields":             {0xba, 255, 255, 255, 255, 0x61},
		"text of 2^64 bytes":             {0x7b, 255, 255, 255, 255, 255, 255, 255, 255, 0x61},
		"huge integer":                   {0x1b, 255, 255, 255, 255, 255, 255, 255, 255},
		"record above a megabyte":        append([]byte{0x7a, 0, 0x10, 0, 0}, make([]byte, 1<<20)...),
	} {
		cause := map[byte]string{
			0x81: "nested too deeply", 0xa1: "nested too deeply", 0x1b: "not an integer", 0x7a: "larger than the network allows",
		}[value[0]]
		if cause == "" {
			cause = "ends within"
		}
		r := newRepository(t)
		msg := r.commit(write{"app.bsky.feed.post/a", append([]byte("\xa1\x61a"), value...)})
		frames[name] = hostile{commitFrame(t, msg), cause}
	}
	r := newRepository(t)
	msg := r.commit(write{"app.bsky.feed.post/a", post(t, "a")})
	many := *msg
	many.Ops = slices.Repeat(msg.Ops, 8192)
	frames["8,192 operations"] = hostile{commitFrame(t, &many), "too many operations"}
	null := *msg
	null.Ops = []*comatproto.SyncSubscribeRepos_RepoOp{nil}
	frames["null operation"] = hostile{commitFrame(t, &null), "wrong type"}

	cyclic := *msg
	self := digest{7}
	node := blockOf(t, appendLink([]byte("\xa2\x61e\x80\x61l"), &self))
	treeOf(r, &cyclic, node)
	claims := append([]byte(cidPrefix), self[:]...)
	cyclic.Blocks = append(cyclic.Blocks, append(varint(uint64(len(claims)+len(node.RawData()))), append(claims, node.RawData()...)...)...)
	frames["cyclic tree"] = hostile{commitFrame(t, &cyclic), "the top of the tree has no keys"}

	deep := *msg
	treeOf(r, &deep, chain(t, 20_000)...)
	frames["20,000 nodes of one child"] = hostile{commitFrame(t, &deep), "the top of the tree has no keys"}

	flat := *msg
	treeOf(r, &flat, wide(t, 30_000))
	for i := range 200 {
		op := *msg.Ops[0]
		op.Path = fmt.Sprintf("app.bsky.feed.post/%d", i)
		flat.Ops = append(flat.Ops, &op)
	}
	flat.Ops = flat.Ops[1:]
	frames["200 operations on a wide node"] = hostile{commitFrame(t, &flat), "not in the repository's tree"}

	crowded := *msg
	for i := range 45_000 {
		sum := sha256.Sum256([]byte(fmt.Sprint(i)))
		crowded.Blocks = append(append(append(crowded.Blocks, 36), cidPrefix...), sum[:]...)
	}
	crowded.Ops = []*comatproto.SyncSubscribeRepos_RepoOp{{Action: "delete", Path: "app.bsky.feed.post/a"}}
	frames["45,000 empty blocks"] = hostile{commitFrame(t, &crowded), "the deleted record is in the repository's tree"}
	return frames
}

// TestHostileFramesAreRefusedWithinBounds shows that every hostile frame
// becomes a dead letter and no event, within bounded memory. It is not
// parallel, because it measures what the process allocates.
func TestHostileFramesAreRefusedWithinBounds(t *testing.T) { // see above
	for name, c := range hostileFrames(t) {
		var m consumer.Message
		wire := Wire(nil, nil)
		used := allocated(func() { wire.Decode(c.frame, arrival(), &m) })
		require.Empty(t, m.Events, name)
		require.NotEmpty(t, m.Malformed, name)
		require.Contains(t, m.Malformed[0].Error(), c.cause, name)
		require.NotZero(t, m.TimeUS, "the frame must move the position: %s", name)
		require.Less(t, used, uint64(4*maxFrame), name)
		require.Less(t, len(m.Malformed[0].Error()), 1000, name)

		var d decoder
		if d.read(c.frame) == nil && d.readSigned() == nil {
			used := allocated(func() { d.blocks.invert(d.signed.data, d.ops) })
			require.Less(t, used, uint64(64<<20), "inversion: %s", name)
		}
	}
}

// TestDecodingAllocatesLittle shows that an unwanted frame allocates nothing,
// and a record only its share of a chunk.
func TestDecodingAllocatesLittle(t *testing.T) { // it measures what the process allocates
	r := filled(t, 200)
	frame := commitFrame(t, r.commit(write{"app.bsky.feed.post/a", post(t, "a")}))
	var m consumer.Message
	none, all := Wire(func(string) bool { return false }, nil), Wire(nil, nil)
	require.Zero(t, testing.AllocsPerRun(1000, func() { none.Decode(frame, arrival(), &m) }))
	require.LessOrEqual(t, testing.AllocsPerRun(1000, func() { all.Decode(frame, arrival(), &m) }), 4.0)
	require.Len(t, m.Events, 1)
}

// TestDeepUnsortedRecordIsSorted decodes the worst record that passes: each of
// its hundred levels has to be sorted.
func TestDeepUnsortedRecordIsSorted(t *testing.T) { // it measures what the process allocates
	var record []byte
	for range maxDepth - 1 {
		record = append(record, "\xa2\x62bb\x01\x61c"...) // bb before c in JSON too: sorted
	}
	const text = 900_000
	var unsorted []byte
	for range maxDepth - 1 {
		unsorted = append(unsorted, "\xa2\x61c\x01\x62bb"...)
	}
	tail := append(appendHead([]byte("\xa1\x61a"), majorText, text), bytes.Repeat([]byte{1}, text)...)
	var t1, t2 transcoder
	var out, same []byte
	used := allocated(func() {
		var bad *consumer.Malformed
		out, _, bad = t1.transcode(nil, append(unsorted, tail...))
		require.Nil(t, bad)
	})
	require.Less(t, used, uint64(64<<20))
	require.True(t, strings.HasPrefix(string(out), `{"bb":{"bb":{"bb":`))
	require.True(t, strings.HasSuffix(string(out), `},"c":1},"c":1}`))
	same, _, bad := t2.transcode(nil, append(record, tail...))
	require.Nil(t, bad)
	require.Len(t, same, len(out))
	require.LessOrEqual(t, cap(t1.spare), keepBuffer, "a large record's memory is released")
}

// TestMutatedFramesNeverLie changes frames at random. Decoding never panics,
// and what passes equals what was sent.
func TestMutatedFramesNeverLie(t *testing.T) {
	t.Parallel()
	r := filled(t, 60)
	random := rand.New(rand.NewPCG(9, 9))
	passed, refused := 0, 0
	for range 30 {
		frame := commitFrame(t, r.commit(r.writes(random, 5)...))
		whole := map[string]string{}
		for _, ev := range decoded(t, frame).Events {
			whole[ev.Collection+"/"+ev.Key] = ev.CID + string(ev.Record)
		}
		wire := Wire(nil, nil)
		var m consumer.Message
		for range 200 {
			mutated := slices.Clone(frame)
			for range 1 + random.IntN(3) {
				switch at := random.IntN(len(mutated)); random.IntN(3) {
				case 0:
					mutated[at] ^= 1 << random.IntN(8)
				case 1:
					mutated = slices.Delete(mutated, at, min(len(mutated), at+1+random.IntN(40)))
				case 2:
					mutated = slices.Insert(mutated, at, byte(random.Uint32()))
				}
			}
			wire.Decode(mutated, arrival(), &m)
			refused += len(m.Malformed)
			for _, ev := range m.Events {
				if ev.Kind == consumer.KindCommit && ev.Operation != consumer.Delete {
					require.Equal(t, whole[ev.Collection+"/"+ev.Key], ev.CID+string(ev.Record))
					passed++
				}
			}
			alone(t, &m)
		}
	}
	require.Positive(t, passed)
	require.Greater(t, refused, 1000)
}
