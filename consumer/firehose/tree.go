package firehose

import (
	"crypto/sha256"
	"math/bits"
	"strconv"

	"github.com/weir-social/weir/consumer"
)

// maxKey limits a path in the tree, in bytes, as indigo does.
const maxKey = 1024

// A node of a repository's tree has entries in the order of their keys, and links
// to nodes of the next lower layer between them. A key is written as the number of
// bytes that it shares with the key before it, and the rest.

// layerOf returns the layer of a key: half the number of leading zero bits of its
// hash.
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

// entry is a key of a node, and the link after it.
type entry struct {
	shared   int    // bytes that the key shares with the one before it
	rest     []byte // the key's other bytes
	value    digest
	right    digest
	hasRight bool
}

// nodeReader reads a node's block: {"e": [{"k", "p", "t", "v"}, …], "l"}. The
// encoding must be canonical, since a node is named by its hash.
type nodeReader struct {
	reader
	left   int // entries not yet read
	length int // of the last key
}

func readNode(data []byte) (n nodeReader, bad *consumer.Malformed) {
	n.reader = reader{data: data}
	if !n.literal("\xa2\x61e") {
		return n, n.notNode()
	}
	n.left, bad = n.count(majorArray)
	return n, bad
}

// literal reads bytes that must be next.
func (n *nodeReader) literal(s string) bool {
	if n.rest() < len(s) || string(n.data[n.at:n.at+len(s)]) != s {
		return false
	}
	n.at += len(s)
	return true
}

func (n *nodeReader) notNode() *consumer.Malformed {
	return &consumer.Malformed{Cause: "not a node of a repository's tree", Received: "other data at byte " + strconv.Itoa(n.at)}
}

// next reads an entry. Call it n.left times.
func (n *nodeReader) next(e *entry) (bad *consumer.Malformed) {
	n.left--
	if !n.literal("\xa4\x61k") {
		return n.notNode()
	}
	if e.rest, bad = n.content(majorBytes); bad != nil {
		return bad
	}
	if !n.literal("\x61p") {
		return n.notNode()
	}
	shared, bad := n.expect(majorUnsigned)
	if bad != nil {
		return bad
	}
	if shared > uint64(n.length) || int(shared)+len(e.rest) > maxKey || len(e.rest) == 0 {
		return &consumer.Malformed{
			Cause: "a key in the tree has an impossible length", Expected: "1 to " + strconv.Itoa(maxKey) + " bytes",
			Received: strconv.FormatUint(shared, 10) + " shared of " + strconv.Itoa(n.length) + ", " + strconv.Itoa(len(e.rest)) + " more",
		}
	}
	e.shared = int(shared)
	n.length = e.shared + len(e.rest)
	if !n.literal("\x61t") {
		return n.notNode()
	}
	if e.hasRight = !n.null(); e.hasRight {
		if bad := n.link(&e.right); bad != nil {
			return bad
		}
	}
	if !n.literal("\x61v") {
		return n.notNode()
	}
	return n.link(&e.value)
}

// end reads the link before the entries, which is the last field of the block.
func (n *nodeReader) end(left *digest) (hasLeft bool, bad *consumer.Malformed) {
	if !n.literal("\x61l") {
		return false, n.notNode()
	}
	if hasLeft = !n.null(); hasLeft {
		bad = n.link(left)
	}
	if bad == nil && n.rest() > 0 {
		bad = n.notNode()
	}
	return hasLeft, bad
}

// position is where a key is, or would be, in a node.
type position struct {
	found    bool
	value    digest // of the key
	child    digest // if the key is not here: the node below which it would be
	hasChild bool
	top      int // the layer of the node's first key; -1: the node has no key
}

// search finds a key in a node. It compares without rebuilding the node's keys: it
// only needs how many bytes each key shares with the one before it, and checks that
// this number is right. measure: the layer of the first key is needed.
func search(data []byte, key string, measure bool) (p position, bad *consumer.Malformed) {
	n, bad := readNode(data)
	if bad != nil {
		return p, bad
	}
	var e entry
	p.top = -1
	shared := 0                     // bytes that the last smaller key shares with the key
	smaller, passed := false, false // a smaller key was read; the key itself or a larger one was read
	for i := 0; n.left > 0; i++ {
		if bad := n.next(&e); bad != nil {
			return p, bad
		}
		if i == 0 && measure {
			p.top = layerOf(alias(e.rest))
		}
		if !passed && e.shared < shared && e.rest[0] <= key[e.shared] {
			return p, &consumer.Malformed{Cause: "the keys of the tree are not sorted", Received: consumer.Shorten(string(e.rest))}
		}
		if passed || e.shared < shared {
			passed = true
			continue
		}
		if e.shared == shared {
			same := sharedPrefix(e.rest, key[shared:])
			at := shared + same
			if p.found = same == len(e.rest) && at == len(key); p.found {
				p.value = e.value
			}
			if p.found || at == len(key) || same < len(e.rest) && e.rest[same] > key[at] {
				passed = true
				continue
			}
			shared = at
		}
		smaller, p.child, p.hasChild = true, e.right, e.hasRight
	}
	if smaller {
		_, bad = n.end(new(digest))
	} else {
		p.hasChild, bad = n.end(&p.child)
	}
	return p, bad
}

func sharedPrefix(a []byte, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// lookup returns the CID that the tree below root has for a key. It needs the nodes
// on the path to the key's layer, and adds them to trace if that is not nil. Every
// step goes one layer down and checks a hash, so it ends.
func (b *blocks) lookup(root *digest, key string, trace *[]digest) (value digest, found bool, bad *consumer.Malformed) {
	at, below := *root, layerOf(key)
	for layer, top := 0, true; ; top, layer = false, layer-1 {
		if trace != nil {
			*trace = append(*trace, at)
		}
		data, bad := b.get(&at)
		if bad != nil {
			return value, false, bad
		}
		p, bad := search(data, key, top)
		if bad != nil {
			return value, false, bad
		}
		if top {
			layer = p.top
			if layer < 0 && p.hasChild {
				return value, false, &consumer.Malformed{Cause: "the top of the tree has no keys"}
			}
		}
		switch {
		case p.found && layer != below:
			return value, false, &consumer.Malformed{
				Cause: "a key is in the wrong layer of the tree", Expected: strconv.Itoa(below), Received: strconv.Itoa(layer),
			}
		case p.found, !p.hasChild, layer <= below:
			return p.value, p.found, nil
		}
		at = p.child
	}
}
