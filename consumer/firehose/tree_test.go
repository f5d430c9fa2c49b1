package firehose

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/bluesky-social/indigo/atproto/repo/mst"
	"github.com/ipfs/go-cid"
	"github.com/stretchr/testify/require"
)

// keyIn returns the n-th key of a layer, as indigo computes layers, from
// "k/10000" on.
func keyIn(layer, n int) string {
	for i := 10_000; ; i++ {
		key := fmt.Sprintf("k/%d", i)
		if mst.HeightForKey([]byte(key)) == layer {
			if n--; n < 0 {
				return key
			}
		}
	}
}

// testTree is a tree made by hand.
type testTree struct {
	t testing.TB
	blocks
}

func (tree *testTree) value(key string) cid.Cid { return blockOf(tree.t, []byte("of "+key)).Cid() }

func (tree *testTree) digest(c cid.Cid) digest { return digest([]byte(c.Hash())[2:]) }

type testEntry struct {
	shared int
	rest   string
	value  string // the content that the value's CID is computed from
	right  *cid.Cid
}

// node adds a node and returns its CID.
func (tree *testTree) node(left *cid.Cid, entries ...testEntry) *cid.Cid {
	link := func(c *cid.Cid) any {
		if c == nil {
			return nil
		}
		return *c
	}
	all := make([]any, 0, len(entries))
	for _, e := range entries {
		all = append(all, map[string]any{"p": e.shared, "k": []byte(e.rest), "v": tree.value(e.value), "t": link(e.right)})
	}
	data := encoded(tree.t, map[string]any{"l": link(left), "e": all})
	b := blockOf(tree.t, data)
	tree.list = append(tree.list, block{digest: tree.digest(b.Cid()), data: data})
	c := b.Cid()
	return &c
}

func (tree *testTree) lookup(root *cid.Cid, key string) string {
	d := tree.digest(*root)
	value, found, bad := tree.blocks.lookup(&d, key, nil)
	switch {
	case bad != nil:
		return bad.Cause
	case !found:
		return "none"
	}
	require.Equal(tree.t, tree.digest(tree.value(key)), value)
	return "found"
}

func TestLayersAreIndigos(t *testing.T) {
	t.Parallel()
	for i := range 20_000 {
		key := fmt.Sprint("app.bsky.feed.post/", i)
		require.Equal(t, mst.HeightForKey([]byte(key)), layerOf(key))
	}
}

// TestLookupNeedsOnlyTheNodesOfTheWay shows that a key is looked up down to its
// layer and not below. The nodes below did not change with it, and are not in
// the commit.
func TestLookupNeedsOnlyTheNodesOfTheWay(t *testing.T) {
	t.Parallel()
	tree := testTree{t: t}
	missing := tree.value("a node that is not in the commit")
	a, b, top := keyIn(1, 0), keyIn(1, 1), keyIn(2, 0)
	require.Less(t, a, b)
	low := tree.node(&missing, testEntry{0, a, a, &missing})
	root := tree.node(low, testEntry{0, top, top, &missing})
	if top < a {
		root = tree.node(&missing, testEntry{0, top, top, low})
	}
	require.Equal(t, "found", tree.lookup(root, a))
	require.Equal(t, "found", tree.lookup(root, top))
	require.Equal(t, "none", tree.lookup(root, b), "the nodes next to the key in layer 0 need not be in the commit")
	require.Equal(t, "none", tree.lookup(root, keyIn(3, 0)), "the key belongs above the top of the tree")
	require.Equal(t, "a block is missing", tree.lookup(root, keyIn(0, 0)))

	empty := tree.node(nil)
	require.Equal(t, "none", tree.lookup(empty, a))
	require.Equal(t, "the top of the tree has no keys", tree.lookup(tree.node(low), a))
	require.Equal(t, "none", tree.lookup(tree.node(nil, testEntry{0, top, top, nil}), a))
}

func TestTreeThatBreaksItsRulesIsRefused(t *testing.T) {
	t.Parallel()
	tree := testTree{t: t}
	low, high := keyIn(0, 0), keyIn(2, 0)
	require.Less(t, low, high)
	same := mst.CountPrefixLen([]byte(low), []byte(high))
	require.Equal(t, "a key is in the wrong layer of the tree",
		tree.lookup(tree.node(nil, testEntry{0, low, low, nil}, testEntry{same, high[same:], high, nil}), high))
	require.Equal(t, "the keys of the tree are not sorted", tree.lookup(
		tree.node(nil, testEntry{0, low, low, nil}, testEntry{0, high, high, nil}), high), "the key shares a longer prefix than it declares")
	for name, root := range map[string]*cid.Cid{
		"shares with nothing":    tree.node(nil, testEntry{1, low, low, nil}),
		"shares more than is":    tree.node(nil, testEntry{0, low, low, nil}, testEntry{len(low) + 1, "x", low, nil}),
		"adds nothing":           tree.node(nil, testEntry{0, low, low, nil}, testEntry{len(low), "", low, nil}),
		"is longer than a key":   tree.node(nil, testEntry{0, string(make([]byte, maxKey+1)), low, nil}),
		"is empty":               tree.node(nil, testEntry{0, "", low, nil}),
		"shares a negative part": tree.node(nil, testEntry{-1, low, low, nil}),
	} {
		require.NotContains(t, []string{"found", "none"}, tree.lookup(root, low), name)
	}
	for name, c := range map[string]struct {
		root *cid.Cid
		want string
	}{
		"unsorted": {tree.node(nil, testEntry{0, keyIn(0, 1), "", nil}, testEntry{0, keyIn(0, 0), "", nil}),
			"the keys of the tree are not sorted"},
		"twice": {tree.node(nil, testEntry{0, low, "", nil}, testEntry{len(low) - 1, low[len(low)-1:], "", nil}),
			"the keys of the tree are not sorted"},
		"wrong layer": {tree.node(tree.node(nil, testEntry{0, high, "", nil}), testEntry{0, keyIn(1, 9), "", nil}),
			"a key is in the wrong layer of the tree"},
		"no keys":        {tree.node(tree.node(nil, testEntry{0, low, "", nil})), "the top of the tree has no keys"},
		"a missing top":  {ptr(tree.value("nothing")), "a block is missing"},
		"something else": {ptr(blockOf(t, nil).Cid()), "a block is missing"},
		"below layer 0": {tree.node(tree.node(tree.node(nil)), testEntry{0, keyIn(0, 999), "", nil}),
			"the tree has a node below its lowest layer"},
		"a layer 0 with links": {tree.node(tree.node(nil, testEntry{0, low, "", nil}), testEntry{0, keyIn(0, 999), "", nil}),
			"the tree has a node below its lowest layer"},
	} {
		_, bad := tree.invert(tree.digest(*c.root), []operation{{action: "delete", path: keyIn(0, 5), hasPrev: true}})
		require.NotNil(t, bad, name)
		require.Equal(t, c.want, bad.Cause, name)
	}
}

func ptr[T any](v T) *T { return &v }

func TestOperationsThatCannotBeInverted(t *testing.T) {
	t.Parallel()
	tree := testTree{t: t}
	low := keyIn(0, 0)
	root := tree.digest(*tree.node(nil, testEntry{0, low, low, nil}))
	value, other := tree.digest(tree.value(low)), digest{1}
	invert := func(ops ...operation) string {
		before, bad := tree.invert(root, ops)
		if bad != nil {
			return bad.Cause
		}
		return before.String()
	}
	const empty = "bafyreie5737gdxlw5i64vzichcalba3z2v5n6icifvx5xytvske7mr3hpm"
	require.Equal(t, root.String(), invert())
	require.Equal(t, empty, invert(operation{action: "create", path: low, cid: value, hasCID: true}))
	require.NotEqual(t, root.String(), invert(operation{action: "update", path: low, cid: value, prev: other, hasCID: true, hasPrev: true}))
	require.Equal(t, digest(sha256.Sum256([]byte("\xa2\x61e\x80\x61l\xf6"))).String(), empty)

	const absent, vague = "the record is not in the repository's tree", "the operation does not say what it changed"
	require.Equal(t, absent, invert(operation{action: "create", path: low, cid: other, hasCID: true}))
	require.Equal(t, absent, invert(operation{action: "update", path: low, cid: other, prev: value, hasCID: true, hasPrev: true}))
	require.Equal(t, absent, invert(operation{action: "create", path: keyIn(0, 1), cid: value, hasCID: true}))
	require.Equal(t, absent, invert(operation{action: "create", path: keyIn(3, 1), cid: value, hasCID: true}))
	require.Equal(t, "the deleted record is in the repository's tree", invert(operation{
		action: "delete", path: low, prev: other, hasPrev: true,
	}))
	require.Equal(t, vague, invert(operation{action: "delete", path: low}))
	require.Equal(t, vague, invert(operation{action: "update", path: low, cid: value, hasCID: true}))
	require.Equal(t, vague, invert(operation{action: "create", path: low, cid: value, hasCID: true, hasPrev: true}))
	require.Equal(t, vague, invert(operation{action: "create", cid: value, hasCID: true}))
	require.Equal(t, vague, invert(operation{action: "x", path: low, cid: value, hasCID: true}))
	twice := operation{action: "update", path: low, cid: value, prev: value, hasCID: true, hasPrev: true}
	require.Equal(t, root.String(), invert(twice), "an update without a change")
	require.Equal(t, "two operations change one record", invert(twice, twice))

	// Servers choose the nodes that they include for this order.
	sorted, bad := inversionOrder([]operation{
		twice, {action: "delete", path: "z", hasPrev: true}, {action: "create", path: "b", hasCID: true},
		{action: "delete", path: "y", hasPrev: true},
	})
	require.Nil(t, bad)
	var paths []string
	for _, o := range sorted {
		paths = append(paths, o.path)
	}
	require.Equal(t, []string{"y", "z", "b", low}, paths)
}
