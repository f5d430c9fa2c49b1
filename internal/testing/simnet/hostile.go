package simnet

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strconv"
)

// The hostile commits. An account signs them itself, to exhaust or to confuse their
// readers.
const (
	NestedArrays   Forgery = "nested-arrays"   // a record of a million arrays in each other
	NestedMaps     Forgery = "nested-maps"     // a record of a hundred thousand objects in each other
	EndlessArray   Forgery = "endless-array"   // a record that claims to have an array of 2^63 items
	EndlessText    Forgery = "endless-text"    // and a text of 2^64 bytes
	HugeInteger    Forgery = "huge-integer"    // a record with the integer 2^64-1
	NegativeHuge   Forgery = "negative-huge"   // and -2^64
	SameName       Forgery = "same-name"       // a record with two fields of one name
	LargeRecord    Forgery = "large-record"    // a record above a megabyte
	NotARecord     Forgery = "not-a-record"    // a record that is an array
	ManyOperations Forgery = "many-operations" // 8,192 operations
	NullOperation  Forgery = "null-operation"  // null as the only operation
	EndlessOps     Forgery = "endless-ops"     // a list of 2^32 operations that ends before the first
	CyclicTree     Forgery = "cyclic-tree"     // a node of the tree that links to itself
	DeepTree       Forgery = "deep-tree"       // 20,000 nodes with one child
	WideNode       Forgery = "wide-node"       // 200 operations on a node with 20,000 keys of a kilobyte each, written in few bytes
	EmptyBlocks    Forgery = "empty-blocks"    // 45,000 blocks without content
	EndlessBlock   Forgery = "endless-block"   // a CAR with a block of 2^63 bytes
	CutCAR         Forgery = "cut-car"         // a CAR that ends within a block
	LongBlocks     Forgery = "long-blocks"     // blocks above two megabytes
	CutFrame       Forgery = "cut-frame"       // a frame that ends in its middle
)

// HostileCommits returns what Forge can send besides forgeries.
func HostileCommits() []Forgery {
	return []Forgery{NestedArrays, NestedMaps, EndlessArray, EndlessText, HugeInteger, NegativeHuge, SameName, LargeRecord, NotARecord,
		ManyOperations, NullOperation, EndlessOps, CyclicTree, DeepTree, WideNode, EmptyBlocks, EndlessBlock, CutCAR, LongBlocks, CutFrame}
}

// verbatim is CBOR that is written unchanged.
type verbatim []byte

// hostileRecord returns the CBOR of a hostile record, or nil for other kinds.
func hostileRecord(f Forgery) []byte {
	a := []byte("\xa1\x61a") // an object with one field
	switch f {
	case NestedArrays:
		return append(append(a, bytes.Repeat([]byte{0x81}, 1<<20-9)...), 0x80)
	case NestedMaps:
		return append(bytes.Repeat(a, 100_000), 0xf6)
	case EndlessArray:
		return appendHead(a, 4, 1<<63-1)
	case EndlessText:
		return appendHead(a, 3, 1<<64-1)
	case HugeInteger:
		return appendHead(a, 0, 1<<64-1)
	case NegativeHuge:
		return appendHead(a, 1, 1<<64-1)
	case SameName:
		return []byte("\xa2\x61a\x01\x61a\x02")
	case LargeRecord:
		return append(appendHead(a, 3, 1<<20), bytes.Repeat([]byte{'a'}, 1<<20)...)
	case NotARecord:
		return []byte{0x81, 0x01}
	}
	return nil
}

// hostile returns the message of a hostile commit, without its number and time. It
// changes the repository.
func (r *repository) hostile(e *Entry) object {
	raw := hostileRecord(e.Forgery)
	if raw == nil {
		raw = []byte("\xa1\x65$type\x72app.bsky.feed.post")
	}
	path, id := post+"/"+e.Rkey, cidOfBlock(raw)
	op := object{"path": path, "action": "create", "cid": id}
	message := object{"repo": r.did, "rev": e.Rev, "ops": []any{op}, "blobs": []any{}, "tooBig": false, "rebase": false, "since": nil}
	if r.rev != "" {
		message["since"], message["prevData"] = r.rev, r.data
	}
	t := r.tree.put(path, id)
	root, nodes := t.write()
	switch e.Forgery {
	case ManyOperations:
		message["ops"] = slices.Repeat([]any{op}, 8192)
	case NullOperation:
		message["ops"] = []any{nil}
	case EndlessOps:
		message["ops"] = verbatim(appendHead(nil, 4, 1<<32))
	case CyclicTree:
		self := contentID("\x01\x71\x12\x20" + string(bytes.Repeat([]byte{7}, 32)))
		node := appendCBOR(nil, object{"e": []any{}, "l": self})
		root, nodes = cidOfBlock(node), []repoBlock{{cidOfBlock(node), node}, {self, node}}
	case DeepTree:
		nodes = oneChildEach(20_000)
		root = nodes[0].cid
	case WideNode:
		node := wideNode(20_000)
		root, nodes = cidOfBlock(node), []repoBlock{{cidOfBlock(node), node}}
		message["ops"] = manyPaths(id, 200)
	case EmptyBlocks:
		for i := range 45_000 {
			nodes = append(nodes, repoBlock{cidOfBlock([]byte(strconv.Itoa(i))), nil})
		}
		op["cid"], op["action"] = nil, "delete"
	case LongBlocks:
		long := make([]byte, 2_000_001)
		nodes = append(nodes, repoBlock{cidOfBlock(long), long})
	}
	r.data = root
	signed := r.signed(e.Rev)
	message["commit"] = signed.cid
	car := carOf(append(append([]repoBlock{signed}, nodes...), repoBlock{id, raw}))
	switch e.Forgery {
	case EndlessBlock:
		car = binary.AppendUvarint(car, 1<<63)
	case CutCAR:
		car = car[:len(car)-len(raw)/2]
	}
	message["blocks"] = car
	return message
}

// oneChildEach returns nodes that contain only a link to the next.
func oneChildEach(n int) []repoBlock {
	var below any
	blocks := make([]repoBlock, 0, n)
	for range n {
		node := appendCBOR(nil, object{"e": []any{}, "l": below})
		blocks = append(blocks, repoBlock{cidOfBlock(node), node})
		below = cidOfBlock(node)
	}
	slices.Reverse(blocks)
	return blocks
}

// wideNode returns a node with many long keys that share almost all of their bytes.
func wideNode(n int) []byte {
	value := cidOfBlock(nil)
	entries := make([]any, n)
	for i := range entries {
		key, shared := binary.BigEndian.AppendUint32(nil, uint32(i)), 1000 // it is small
		if i == 0 {
			key, shared = append(bytes.Repeat([]byte{'a'}, 1000), key...), 0
		}
		entries[i] = object{"k": key, "p": shared, "t": nil, "v": value}
	}
	return appendCBOR(nil, object{"e": entries, "l": nil})
}

func manyPaths(id contentID, n int) []any {
	ops := make([]any, n)
	for i := range ops {
		ops[i] = object{"path": post + "/" + strconv.Itoa(i), "action": "create", "cid": id}
	}
	return ops
}
