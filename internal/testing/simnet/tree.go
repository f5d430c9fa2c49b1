package simnet

import (
	"crypto/sha256"
	"math/bits"
	"sort"
)

// node is a node of a repository's tree, a Merkle search tree. Nodes never change:
// a change of the tree makes new nodes along its path, and these have no CID until
// the tree is written.
type node struct {
	keys   []string
	values []contentID
	below  []*node // one more than keys; nil where there is no subtree

	cid contentID // once written
}

// tree is a repository's tree. The zero tree is empty.
type tree struct {
	root  *node
	layer int // of the root
}

// layerOf returns the layer of a key, which its hash determines.
func layerOf(key string) int {
	sum := sha256.Sum256([]byte(key))
	zeros := 0
	for _, b := range sum {
		zeros += bits.LeadingZeros8(b)
		if b != 0 {
			break
		}
	}
	return zeros / 2
}

// newNode returns a node; nil if it is empty.
func newNode(keys []string, values []contentID, below []*node) *node {
	if len(keys) == 0 && below[0] == nil {
		return nil
	}
	return &node{keys: keys, values: values, below: below}
}

// splice returns the node with the elements from i to j of its entries, and of the
// subtrees from i to k, replaced.
func (n *node) splice(i, j, k int, keys []string, values []contentID, below ...*node) *node {
	return newNode(
		append(append(append([]string{}, n.keys[:i]...), keys...), n.keys[j:]...),
		append(append(append([]contentID{}, n.values[:i]...), values...), n.values[j:]...),
		append(append(append([]*node{}, n.below[:i]...), below...), n.below[k:]...))
}

// search returns the index of a key in a node.
func (n *node) search(key string) (at int, found bool) {
	at = sort.SearchStrings(n.keys, key)
	return at, at < len(n.keys) && n.keys[at] == key
}

// get returns the value of a key.
func (t tree) get(key string) (contentID, bool) {
	n := t.root
	for n != nil {
		at, found := n.search(key)
		if found {
			return n.values[at], true
		}
		n = n.below[at]
	}
	return "", false
}

// put returns the tree with a key's new value.
func (t tree) put(key string, value contentID) tree {
	layer := layerOf(key)
	if t.root == nil {
		t.layer = layer
	}
	if layer > t.layer {
		left, right := split(t.root, key)
		left, right = lift(left, layer-1-t.layer), lift(right, layer-1-t.layer)
		return tree{newNode([]string{key}, []contentID{value}, []*node{left, right}), layer}
	}
	return tree{put(t.root, t.layer-layer, key, value), t.layer}
}

// put puts a key into a node that is some layers above the key's.
func put(n *node, above int, key string, value contentID) *node {
	if n == nil {
		n = &node{below: []*node{nil}}
	}
	at, found := n.search(key)
	switch {
	case above > 0:
		return n.splice(at, at, at+1, nil, nil, put(n.below[at], above-1, key, value))
	case found:
		return n.splice(at, at+1, at+1, []string{key}, []contentID{value}, n.below[at])
	}
	left, right := split(n.below[at], key)
	return n.splice(at, at, at+1, []string{key}, []contentID{value}, left, right)
}

// lift puts empty nodes above a node.
func lift(n *node, layers int) *node {
	for ; n != nil && layers > 0; layers-- {
		n = &node{below: []*node{n}}
	}
	return n
}

// split returns the parts before and after a key.
func split(n *node, key string) (left, right *node) {
	if n == nil {
		return nil, nil
	}
	at, _ := n.search(key)
	l, r := split(n.below[at], key)
	left = n.splice(at, len(n.keys), len(n.below), nil, nil, l)
	right = newNode(append([]string{}, n.keys[at:]...), append([]contentID{}, n.values[at:]...), append([]*node{r}, n.below[at+1:]...))
	return left, right
}

// remove returns the tree without a key. The tree must contain the key.
func (t tree) remove(key string) tree {
	t.root = remove(t.root, key)
	for t.root != nil && len(t.root.keys) == 0 {
		t.root = t.root.below[0]
		t.layer--
	}
	return t
}

func remove(n *node, key string) *node {
	at, found := n.search(key)
	if !found {
		return n.splice(at, at, at+1, nil, nil, remove(n.below[at], key))
	}
	return n.splice(at, at+1, at+2, nil, nil, merge(n.below[at], n.below[at+1]))
}

// merge joins neighbours. It makes the nodes at the seam anew even if only one side
// has any, because a client that undoes a deletion needs to see them.
func merge(left, right *node) *node {
	switch {
	case left == nil && right == nil:
		return nil
	case right == nil:
		last := len(left.keys)
		return left.splice(last, last, last+1, nil, nil, merge(left.below[last], nil))
	case left == nil:
		return right.splice(0, 0, 1, nil, nil, merge(nil, right.below[0]))
	}
	last := len(left.keys)
	return left.splice(last, last, last+1, right.keys, right.values,
		append([]*node{merge(left.below[last], right.below[0])}, right.below[1:]...)...)
}

// write returns the tree's CID, and its nodes that were not written before, from
// the root down.
func (t tree) write() (contentID, []repoBlock) {
	if t.root == nil {
		raw := encodeNode(&node{below: []*node{nil}})
		return cidOfBlock(raw), []repoBlock{{cidOfBlock(raw), raw}}
	}
	var blocks []repoBlock
	t.root.write(&blocks)
	return t.root.cid, blocks
}

func (n *node) write(blocks *[]repoBlock) {
	if n == nil || n.cid != "" {
		return
	}
	at := len(*blocks)
	*blocks = append(*blocks, repoBlock{})
	for _, child := range n.below {
		child.write(blocks)
	}
	raw := encodeNode(n)
	n.cid = cidOfBlock(raw)
	(*blocks)[at] = repoBlock{n.cid, raw}
}

// encodeNode returns a node whose children have been written. It omits the part of
// a key that it shares with the key before.
func encodeNode(n *node) []byte {
	link := func(child *node) any {
		if child == nil {
			return nil
		}
		return child.cid
	}
	entries, before := make([]any, 0, len(n.keys)), ""
	for i, key := range n.keys {
		shared := 0
		for shared < min(len(before), len(key)) && before[shared] == key[shared] {
			shared++
		}
		entries = append(entries, object{"p": shared, "k": []byte(key[shared:]), "v": n.values[i], "t": link(n.below[i+1])})
		before = key
	}
	return appendCBOR(nil, object{"l": link(n.below[0]), "e": entries})
}
