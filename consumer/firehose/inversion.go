package firehose

import (
	"cmp"
	"crypto/sha256"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/consumer"
)

// maxKeys limits the total size of the keys that one inversion rebuilds, in bytes: a
// node that uses a few bytes per key may have keys of a kilobyte.
const maxKeys = 8 << 20

// invert returns the root of the tree before the operations. It applies their
// inverses to the tree below root, of which only the nodes in b are known. If a
// commit's prevData is another root, the commit does not list everything that it
// changed.
func (b *blocks) invert(root digest, ops []operation) (before digest, bad *consumer.Malformed) {
	sorted, bad := inversionOrder(ops)
	if bad != nil {
		return before, bad
	}
	t := partialTree{blocks: b, root: &subtree{cid: root, known: true}}
	top, bad := t.load(t.root, anyLayer)
	if bad != nil {
		return before, bad
	}
	switch {
	case len(top.entries) > 0:
		t.layer = layerOf(alias(top.entries[0].key))
	case top.left == nil:
		t.root = nil
	default:
		return before, &consumer.Malformed{Cause: "the top of the tree has no keys"}
	}
	for _, o := range sorted {
		switch {
		case !o.hasCID:
			bad = t.insert(o.path, o.prev)
		case o.hasPrev:
			bad = t.change(o.path, o.cid, o.prev)
		default:
			bad = t.remove(o.path, o.cid)
		}
		if bad != nil {
			return before, bad
		}
	}
	if bad := t.trim(); bad != nil {
		return before, bad
	}
	return t.root.hash(), nil
}

// inversionOrder returns the operations in an order for which the nodes that a
// commit includes are sufficient: deletions first.
func inversionOrder(ops []operation) ([]*operation, *consumer.Malformed) {
	sorted := make([]*operation, 0, len(ops))
	for i := range ops {
		o := &ops[i]
		complete := o.path != "" && len(o.path) <= maxKey
		switch o.action {
		case "create":
			complete = complete && o.hasCID && !o.hasPrev
		case "update":
			complete = complete && o.hasCID && o.hasPrev
		case "delete":
			complete = complete && !o.hasCID && o.hasPrev
		default:
			complete = false
		}
		if o.bad != nil || !complete {
			return nil, &consumer.Malformed{Cause: "the operation does not say what it changed", Path: "/ops/" + strconv.Itoa(i),
				Expected: "a path, and the CIDs before and after", Received: consumer.Shorten(o.action + " " + o.path)}
		}
		sorted = append(sorted, o)
	}
	slices.SortFunc(sorted, func(a, b *operation) int { return strings.Compare(a.path, b.path) })
	for i := 1; i < len(sorted); i++ {
		if sorted[i-1].path == sorted[i].path {
			return nil, &consumer.Malformed{Cause: "two operations change one record", Path: "/ops", Received: consumer.Shorten(sorted[i].path)}
		}
	}
	rank := func(o *operation) int {
		if o.hasCID {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(sorted, func(a, b *operation) int { return cmp.Compare(rank(a), rank(b)) })
	return sorted, nil
}

// partialTree is a tree of which only some nodes are known. A change that needs an
// unknown node is an error.
type partialTree struct {
	blocks *blocks
	root   *subtree // nil: an empty tree
	layer  int      // the layer of the root
	keys   int      // total bytes of rebuilt keys
}

// subtree is a node and everything below it. A nil subtree is empty.
type subtree struct {
	cid     digest
	known   bool // cid is right
	loaded  bool
	left    *subtree
	entries []treeEntry
}

type treeEntry struct {
	key   []byte
	value digest
	right *subtree
}

func newSubtree(left *subtree, entries []treeEntry) *subtree {
	if left == nil && len(entries) == 0 {
		return nil
	}
	return &subtree{loaded: true, left: left, entries: entries}
}

// anyLayer means that the node's keys determine its layer.
const anyLayer = 1 << 10

// load reads a node, and checks the order of its keys and its layer.
func (t *partialTree) load(s *subtree, layer int) (*subtree, *consumer.Malformed) {
	if layer < 0 {
		return nil, &consumer.Malformed{Cause: "the tree has a node below its lowest layer"}
	}
	if s.loaded {
		return s, nil
	}
	data, bad := t.blocks.get(&s.cid)
	if bad != nil {
		return nil, bad
	}
	n, bad := readNode(data)
	if bad != nil {
		return nil, bad
	}
	var e entry
	var last []byte
	for n.left > 0 {
		if bad := n.next(&e); bad != nil {
			return nil, bad
		}
		key := append(append(make([]byte, 0, n.length), last[:e.shared]...), e.rest...)
		if last != nil && string(key) <= string(last) {
			return nil, &consumer.Malformed{Cause: "the keys of the tree are not sorted", Received: consumer.Shorten(string(key))}
		}
		if at := layerOf(alias(key)); layer != anyLayer && at != layer {
			return nil, &consumer.Malformed{
				Cause: "a key is in the wrong layer of the tree", Expected: strconv.Itoa(at), Received: strconv.Itoa(layer),
			}
		}
		if t.keys += len(key); t.keys > maxKeys {
			return nil, &consumer.Malformed{
				Cause: "the keys of the tree are too long", Expected: strconv.Itoa(maxKeys) + " bytes at most", Received: "more",
			}
		}
		added := treeEntry{key: key, value: e.value}
		if e.hasRight {
			added.right = &subtree{cid: e.right, known: true}
		}
		s.entries, last = append(s.entries, added), key
	}
	var left digest
	hasLeft, bad := n.end(&left)
	if hasLeft {
		s.left = &subtree{cid: left, known: true}
	}
	s.loaded = bad == nil
	return s, bad
}

// find returns the index of a key in a node, or the index at which it belongs.
func (s *subtree) find(key string) (int, bool) {
	return slices.BinarySearchFunc(s.entries, key, func(e treeEntry, key string) int { return strings.Compare(alias(e.key), key) })
}

// gap returns the subtree before entry i.
func (s *subtree) gap(i int) **subtree {
	if i == 0 {
		return &s.left
	}
	return &s.entries[i-1].right
}

// insert inverts a deletion.
func (t *partialTree) insert(key string, value digest) *consumer.Malformed {
	at := layerOf(key)
	if t.root == nil {
		t.layer = at
	}
	for ; t.layer < at; t.layer++ {
		t.root = newSubtree(t.root, nil)
	}
	var bad *consumer.Malformed
	t.root, bad = t.insertBelow(t.root, t.layer, key, at, value)
	return bad
}

func (t *partialTree) insertBelow(s *subtree, layer int, key string, at int, value digest) (*subtree, *consumer.Malformed) {
	if s == nil {
		s = &subtree{loaded: true}
	}
	s, bad := t.load(s, layer)
	if bad != nil {
		return nil, bad
	}
	i, found := s.find(key)
	if found {
		return nil, &consumer.Malformed{Cause: "the deleted record is in the repository's tree", Received: consumer.Shorten(key)}
	}
	s.known = false
	if layer > at {
		*s.gap(i), bad = t.insertBelow(*s.gap(i), layer-1, key, at, value)
		return s, bad
	}
	left, right, bad := t.split(*s.gap(i), layer-1, key)
	if bad != nil {
		return nil, bad
	}
	*s.gap(i) = left
	s.entries = slices.Insert(s.entries, i, treeEntry{key: []byte(key), value: value, right: right})
	return s, nil
}

// split cuts a subtree in two, before and after a key that it does not contain.
func (t *partialTree) split(s *subtree, layer int, key string) (left, right *subtree, bad *consumer.Malformed) {
	if s == nil {
		return nil, nil, nil
	}
	if s, bad = t.load(s, layer); bad != nil {
		return nil, nil, bad
	}
	i, _ := s.find(key)
	before, after, bad := t.split(*s.gap(i), layer-1, key)
	if bad != nil {
		return nil, nil, bad
	}
	right = newSubtree(after, slices.Clone(s.entries[i:]))
	if i == 0 {
		return newSubtree(before, nil), right, nil
	}
	s.entries[i-1].right = before
	return newSubtree(s.left, s.entries[:i:i]), right, nil
}

// below finds the node of a record with a value, calls change on it, and marks the
// path to it as changed.
func (t *partialTree) below(key string, value digest, change func(s *subtree, layer, i int) *consumer.Malformed) *consumer.Malformed {
	at, s, layer := layerOf(key), t.root, t.layer
	for ; s != nil && layer >= at; layer-- {
		var bad *consumer.Malformed
		if s, bad = t.load(s, layer); bad != nil {
			return bad
		}
		s.known = false
		i, found := s.find(key)
		if layer > at && !found {
			s = *s.gap(i)
			continue
		}
		if !found || s.entries[i].value != value {
			break
		}
		return change(s, layer, i)
	}
	return &consumer.Malformed{Cause: "the record is not in the repository's tree", Expected: consumer.Shorten(key) + " " + value.String()}
}

// change inverts an update.
func (t *partialTree) change(key string, now, before digest) *consumer.Malformed {
	return t.below(key, now, func(s *subtree, _, i int) *consumer.Malformed {
		s.entries[i].value = before
		return nil
	})
}

// remove inverts a creation.
func (t *partialTree) remove(key string, value digest) *consumer.Malformed {
	bad := t.below(key, value, func(s *subtree, layer, i int) *consumer.Malformed {
		merged, bad := t.merge(*s.gap(i), s.entries[i].right, layer-1)
		if bad != nil {
			return bad
		}
		*s.gap(i) = merged
		s.entries = slices.Delete(s.entries, i, i+1)
		return nil
	})
	t.root = t.root.prune(key)
	return bad
}

// prune returns s without the nodes on the path to a key that became empty.
func (s *subtree) prune(key string) *subtree {
	if s == nil || !s.loaded {
		return s
	}
	i, _ := s.find(key)
	gap := s.gap(i)
	*gap = (*gap).prune(key)
	if s.left == nil && len(s.entries) == 0 {
		return nil
	}
	return s
}

// merge joins two neighbouring subtrees.
func (t *partialTree) merge(a, b *subtree, layer int) (*subtree, *consumer.Malformed) {
	if a == nil {
		return b, nil
	}
	if b == nil {
		return a, nil
	}
	a, bad := t.load(a, layer)
	if bad == nil {
		b, bad = t.load(b, layer)
	}
	if bad != nil {
		return nil, bad
	}
	gap := a.gap(len(a.entries))
	between, bad := t.merge(*gap, b.left, layer-1)
	if bad != nil {
		return nil, bad
	}
	*gap, a.known = between, false
	a.entries = append(a.entries, b.entries...)
	return a, nil
}

// trim removes nodes without keys from the top. It assumes that an unknown node has
// keys: if that is wrong, the hash differs.
func (t *partialTree) trim() *consumer.Malformed {
	for t.root != nil && (t.root.loaded || t.blocks.find(&t.root.cid) != nil) {
		s, bad := t.load(t.root, t.layer)
		if bad != nil || len(s.entries) > 0 {
			return bad
		}
		t.root = s.left
		t.layer--
	}
	return nil
}

// hash returns the CID of a subtree. It encodes the nodes that have changed.
func (s *subtree) hash() digest {
	if s == nil {
		s = &subtree{} // a tree without records is a node without entries
	}
	if !s.known {
		s.cid, s.known = sha256.Sum256(s.encode()), true
	}
	return s.cid
}

// encode returns the block of a node.
func (s *subtree) encode() []byte {
	out := appendHead(appendText(appendHead(nil, majorMap, 2), "e"), majorArray, uint64(len(s.entries)))
	var last []byte
	for i := range s.entries {
		e := &s.entries[i]
		shared := sharedPrefix(last, alias(e.key))
		out = appendText(appendHead(out, majorMap, 4), "k")
		out = append(appendHead(out, majorBytes, uint64(len(e.key)-shared)), e.key[shared:]...)
		out = appendHead(appendText(out, "p"), majorUnsigned, uint64(shared))
		out = e.right.appendTo(appendText(out, "t"))
		out = appendLink(appendText(out, "v"), &e.value)
		last = e.key
	}
	return s.left.appendTo(appendText(out, "l"))
}

// appendTo appends a link to a subtree, or null.
func (s *subtree) appendTo(dst []byte) []byte {
	if s == nil {
		return append(dst, cborNull)
	}
	cid := s.hash()
	return appendLink(dst, &cid)
}
