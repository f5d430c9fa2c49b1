package firehose

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bluesky-social/indigo/atproto/atcrypto"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	blockformat "github.com/ipfs/go-block-format"
	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"
)

func publicOf(t testing.TB, key atcrypto.PrivateKey) atcrypto.PublicKey {
	t.Helper()
	public, err := key.PublicKey()
	require.NoError(t, err)
	return public
}

func everything(string) bool { return true }

// export returns a repository of n records in one commit, as its server exports it.
func export(t testing.TB, n int) (*repository, []blockformat.Block) {
	t.Helper()
	r, random := newRepository(t), rand.New(rand.NewPCG(1, uint64(n)))
	var writes []write
	for range n {
		writes = append(writes, r.writes(random, 1)...)
	}
	writes = slices.DeleteFunc(writes, func(w write) bool { return w.record == nil })
	slices.SortFunc(writes, func(a, b write) int { return strings.Compare(a.path, b.path) })
	writes = slices.CompactFunc(writes, func(a, b write) bool { return a.path == b.path })
	return r, blocksOf(t, r.commit(writes...))
}

// TestRepositoriesAreRead reads repositories of every size, with keys of both curves, with their
// blocks in any order.
func TestRepositoriesAreRead(t *testing.T) {
	t.Parallel()
	p256, k256 := newKeys(t)
	for n, key := range map[int]atcrypto.PrivateKeyExportable{0: p256, 1: k256, 2: p256, 50: k256, 1500: p256} {
		r, all := export(t, n)
		r.key = key
		var out sent
		msg := r.commit()
		r.sign(msg, &out, &repo.Commit{DID: testDID, Version: 3, Data: *r.data, Rev: r.rev})
		root := blocksOf(t, msg)[0]
		all[0] = root
		slices.Reverse(all)
		got, err := ReadRepository(carFrom(t, root.Cid(), all...), testDID, publicOf(t, key), everything)
		require.NoError(t, err)
		require.Equal(t, r.rev, got.Rev())
		require.True(t, slices.IsSorted(got.Collections()))
		found := map[string]string{}
		for _, name := range got.Collections() {
			for i := range got.Len(name) {
				id, record := got.Record(name, i)
				require.Contains(t, string(record), `"$type":"app.bsky.feed.post"`)
				found[name+"/"+got.Key(name, i)] = id
				require.True(t, i == 0 || got.Key(name, i-1) < got.Key(name, i))
			}
		}
		want := map[string]string{}
		for path, id := range r.records {
			want[path] = id.String()
		}
		require.Equal(t, want, found)
	}
}

// TestRepositoryLeavesOutWhatIsNotWanted shows that unwanted records are omitted, and that
// unreadable records are named.
func TestRepositoryLeavesOutWhatIsNotWanted(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	const missing, large, float = "app.bsky.feed.post/a", "app.bsky.feed.post/b", "app.bsky.feed.post/c"
	msg := r.commit(write{"app.bsky.feed.like/a", post(t, "a like")}, write{missing, post(t, "missing")},
		write{large, record(t, map[string]any{"text": strings.Repeat("a", maxRecord)})}, write{float, []byte("\xa1\x61a\xf9\x3c\x00")},
		write{"app.bsky.feed.post/d", post(t, "d")}, write{"nocollection/a", post(t, "a")})
	all := slices.DeleteFunc(blocksOf(t, msg), func(b blockformat.Block) bool { return b.Cid() == r.records[missing] })
	got, err := ReadRepository(carOf(t, all...), testDID, publicOf(t, r.key), func(name string) bool { return name != "app.bsky.feed.like" })
	require.NoError(t, err)
	require.Equal(t, []string{"app.bsky.feed.post"}, got.Collections())
	require.Equal(t, 4, got.Len("app.bsky.feed.post"))
	for i := range 3 {
		id, record := got.Record("app.bsky.feed.post", i)
		require.Equal(t, r.records["app.bsky.feed.post/"+got.Key("app.bsky.feed.post", i)].String(), id)
		require.Nil(t, record)
	}
	_, record := got.Record("app.bsky.feed.post", 3)
	require.Contains(t, string(record), `"text":"d"`)
}

// TestForgedRepositoriesAreRefused covers another key, account or time, and blocks that do not
// match.
func TestForgedRepositoriesAreRefused(t *testing.T) {
	t.Parallel()
	r, all := export(t, 200)
	key := publicOf(t, r.key)
	other, _ := newKeys(t)
	read := func(car []byte, did string, key atcrypto.PublicKey) string {
		t.Helper()
		_, err := ReadRepository(car, did, key, everything)
		require.Error(t, err)
		return err.Error()
	}
	resigned := func(c repo.Commit, key atcrypto.PrivateKeyExportable) []byte {
		before := r.key
		defer func() { r.key = before }()
		var out sent
		r.key, out.blocks = key, all[1:]
		msg := r.commit()
		r.sign(msg, &out, &c)
		return msg.Blocks
	}
	good := repo.Commit{DID: testDID, Version: 3, Data: *r.data, Rev: r.rev}
	_, err := ReadRepository(resigned(good, r.key), testDID, key, everything)
	require.NoError(t, err)
	require.Contains(t, read(resigned(good, other), testDID, key), "is not signed with the account's key")
	require.Contains(t, read(resigned(good, highS{r.key}), testDID, key), "is not signed with the account's key")
	require.Contains(t, read(resigned(good, r.key), "did:plc:another", key), "is that of "+testDID)
	ahead := good
	ahead.Rev = syntax.NewTID(time.Now().Add(2*time.Hour).UnixMicro(), 0).String()
	require.Contains(t, read(resigned(ahead, r.key), testDID, key), "is of the future")
	ahead.Rev = "soon"
	require.Contains(t, read(resigned(ahead, r.key), testDID, key), "is no TID")

	nodes := slices.DeleteFunc(slices.Clone(all[1:]),
		func(b blockformat.Block) bool { return !strings.HasPrefix(string(b.RawData()), "\xa2\x61e") })
	require.Greater(t, len(nodes), 20)
	for _, node := range nodes {
		without := slices.DeleteFunc(slices.Clone(all), func(b blockformat.Block) bool { return b.Cid() == node.Cid() })
		require.Contains(t, read(carOf(t, without...), testDID, key), "a block is missing")
	}
	spoilt := slices.Clone(all)
	changed := slices.Clone(nodes[0].RawData())
	changed[len(changed)-1] ^= 1
	spoilt[slices.IndexFunc(all, func(b blockformat.Block) bool { return b.Cid() == nodes[0].Cid() })], err = blockformat.NewBlockWithCid(
		changed, nodes[0].Cid())
	require.NoError(t, err)
	require.Contains(t, read(carOf(t, spoilt...), testDID, key), "a block does not match its CID")
	whole := carOf(t, all...)
	for _, size := range []int{0, 1, 40, len(whole) / 2, len(whole) - 1} {
		read(whole[:size], testDID, key)
	}
}

// TestRecordsAreProven shows that the proof of a record needs the commit, the nodes on the path to
// it, and the record itself. A proof that lacks one of these, or is of another account, is refused.
func TestRecordsAreProven(t *testing.T) {
	t.Parallel()
	r, all := export(t, 500)
	key := publicOf(t, r.key)
	read := func(path string, blocks ...blockformat.Block) ([]byte, error) {
		collection, rkey, _ := strings.Cut(path, "/")
		return ReadRecord(carOf(t, blocks...), testDID, key, collection, rkey)
	}
	refused := func(want, path string, blocks ...blockformat.Block) {
		t.Helper()
		_, err := read(path, blocks...)
		require.ErrorContains(t, err, want)
	}
	for path, id := range r.records {
		needed := 0
		proof := slices.Clone(all)
		for i := len(all) - 1; i > 0; i-- { // try to omit each block, as servers send as few as possible
			if without := slices.Delete(slices.Clone(proof), i, i+1); needed < 3 {
				if _, err := read(path, without...); err != nil {
					needed++
					require.ErrorContains(t, err, "a block is missing")
				} else {
					proof = without
				}
			}
		}
		got, err := read(path, proof...)
		require.NoError(t, err)
		require.Contains(t, string(got), `"$type":"app.bsky.feed.post"`)
		refused("a block is missing", path, slices.DeleteFunc(slices.Clone(all), func(b blockformat.Block) bool { return b.Cid() == id })...)
		break
	}
	refused("has no record", "app.bsky.feed.post/none", all...)

	// A record of a commit that is not signed with the account's key.
	other, _ := export(t, 3)
	for path := range other.records {
		other.key = highS{r.key}
		refused("is not signed with the account's key", path, blocksOf(t, other.commit(write{path, post(t, "forged")}))...)
		break
	}
	large, float := "app.bsky.feed.post/large", "app.bsky.feed.post/float"
	msg := r.commit(write{large, record(t, map[string]any{"text": strings.Repeat("a", maxRecord)})},
		write{float, []byte("\xa1\x61a\xf9\x3c\x00")})
	blocks := append(blocksOf(t, msg), all[1:]...)
	refused("more than the network allows", large, blocks...)
	refused("read at://"+testDID+"/"+float, float, blocks...)
	_, err := ReadRecord(carOf(t, blocks...), "did:plc:another", key, "app.bsky.feed.post", "large")
	require.ErrorContains(t, err, "is that of "+testDID)
}

// TestLongKeysFillNoMemory reads a node that is a tenth of the size of its expanded keys.
func TestLongKeysFillNoMemory(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	read := func(keys int) error {
		t.Helper()
		first := "app.bsky." + strings.Repeat("a", 60) + "/" + strings.Repeat("k", 500)
		node := appendHead(appendText(appendHead(nil, majorMap, 2), "e"), majorArray, uint64(keys))
		for i := range keys {
			rest, shared := fmt.Sprintf("%06d", i), len(first)
			if i == 0 {
				rest, shared = first+rest, 0
			}
			node = append(appendHead(appendText(appendHead(node, majorMap, 4), "k"), majorBytes, uint64(len(rest))), rest...)
			node = append(appendText(appendHead(appendText(node, "p"), majorUnsigned, uint64(shared)), "t"), cborNull)
			node = appendLink(appendText(node, "v"), new(digest))
		}
		b := blockOf(t, append(appendText(node, "l"), cborNull))
		out := sent{blocks: []blockformat.Block{b}}
		msg := r.commit()
		r.sign(msg, &out, &repo.Commit{DID: testDID, Version: 3, Data: b.Cid(), Rev: r.rev})
		_, err := ReadRepository(msg.Blocks, testDID, publicOf(t, r.key), everything)
		return err
	}
	require.NoError(t, read(1000))
	require.ErrorContains(t, read(maxRepositoryKeys/550), "its keys are longer than")
}

// TestTreesThatRepeatThemselvesEnd reads a signed tree in which the nodes of every level contain
// the same node several times.
func TestTreesThatRepeatThemselvesEnd(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	trees := testTree{t: t}
	read := func(root *cid.Cid) string {
		t.Helper()
		var out sent
		for _, b := range trees.list {
			out.blocks = append(out.blocks, blockOf(t, b.data))
		}
		msg := r.commit()
		r.sign(msg, &out, &repo.Commit{DID: testDID, Version: 3, Data: *root, Rev: r.rev})
		_, err := ReadRepository(msg.Blocks, testDID, publicOf(t, r.key), everything)
		require.Error(t, err)
		return err.Error()
	}
	at := trees.node(nil)
	for range 60 { // 2^60 visits, if every path was followed
		at = trees.node(at, testEntry{0, "k", "k", at})
	}
	require.Contains(t, read(at), "are not sorted")
	at = trees.node(nil)
	for range 300 {
		at = trees.node(at)
	}
	require.Contains(t, read(at), "its nodes contain each other")
	require.Contains(t, read(trees.node(nil, testEntry{0, "b", "b", nil}, testEntry{0, "a", "a", nil})), "are not sorted")
}
