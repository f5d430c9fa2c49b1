package firehose

import (
	"crypto/sha256"
	"strconv"

	"github.com/weir-social/weir/consumer"
)

// blocks are the blocks of a CAR. A block's hash is checked when the block is used.
// Blocks that nobody needs are never checked: a sender may add any.
type blocks struct {
	root  digest
	list  []block
	index map[digest]int32 // of a long list
}

type block struct {
	digest  digest
	data    []byte
	checked bool // data has the digest
}

const (
	shortList  = 16   // longer lists get an index
	keepBlocks = 1024 // the memory of at most this many blocks is kept
)

// read reads a CAR. The blocks share its memory.
func (b *blocks) read(car []byte) *consumer.Malformed {
	b.list, b.index = b.list[:0], nil
	if cap(b.list) > keepBlocks {
		b.list = nil
	}
	header, rest, bad := section(car)
	if bad == nil {
		bad = b.header(header)
	}
	if bad != nil {
		return bad
	}
	for len(rest) > 0 {
		var s []byte
		if s, rest, bad = section(rest); bad != nil {
			return bad
		}
		const size = len(cidPrefix) + sha256.Size
		if len(s) < size || string(s[:len(cidPrefix)]) != cidPrefix {
			continue // the block has another codec: no operation can name it
		}
		b.list = append(b.list, block{digest: digest(s[len(cidPrefix):size]), data: s[size:len(s):len(s)]})
	}
	return nil
}

// section returns the next section of a CAR.
func section(car []byte) (s, rest []byte, bad *consumer.Malformed) {
	length, n := uvarint(car)
	if n == 0 || length > uint64(len(car)-n) {
		return nil, nil, &consumer.Malformed{Cause: "the CAR ends within a block", Received: strconv.Itoa(len(car)) + " bytes are left"}
	}
	end := n + int(length)
	return car[n:end], car[end:], nil
}

func (b *blocks) header(header []byte) *consumer.Malformed {
	r, version, roots := reader{data: header}, int64(0), 0
	bad := r.object(func(name []byte) *consumer.Malformed {
		switch string(name) {
		case "version":
			return r.integer(&version)
		case "roots":
			var bad *consumer.Malformed
			if roots, bad = r.count(majorArray); bad != nil || roots == 0 {
				return bad
			}
			if bad := r.link(&b.root); bad != nil {
				return within("/0", bad)
			}
			for range roots - 1 {
				if bad := r.skip(); bad != nil {
					return bad
				}
			}
			return nil
		}
		return r.skip()
	})
	switch {
	case bad != nil:
		return bad
	case version != 1:
		return &consumer.Malformed{Cause: "not a CAR of version 1", Path: "/version", Expected: "1", Received: strconv.FormatInt(version, 10)}
	case roots == 0:
		return &consumer.Malformed{Cause: "the CAR has no root", Path: "/roots", Expected: "the CID of the commit", Received: "nothing"}
	}
	return nil
}

// find returns the first block that claims a digest, or nil.
func (b *blocks) find(d *digest) *block {
	if len(b.list) <= shortList {
		for i := range b.list {
			if b.list[i].digest == *d {
				return &b.list[i]
			}
		}
		return nil
	}
	if b.index == nil {
		b.index = make(map[digest]int32, len(b.list))
		for i := len(b.list) - 1; i >= 0; i-- {
			b.index[b.list[i].digest] = int32(i)
		}
	}
	if i, ok := b.index[*d]; ok {
		return &b.list[i]
	}
	return nil
}

// get returns a block's data, whose hash it checks.
func (b *blocks) get(d *digest) ([]byte, *consumer.Malformed) {
	found := b.find(d)
	if found == nil {
		return nil, &consumer.Malformed{Cause: "a block is missing", Expected: d.String(), Received: strconv.Itoa(len(b.list)) + " other blocks"}
	}
	if !found.checked {
		if sum := digest(sha256.Sum256(found.data)); sum != *d {
			return nil, &consumer.Malformed{Cause: "a block does not match its CID", Expected: d.String(), Received: sum.String()}
		}
		found.checked = true
	}
	return found.data, nil
}

// appendText appends the text of the block's CID.
func (d *digest) appendText(dst []byte) []byte {
	var cid [len(cidPrefix) + sha256.Size]byte
	copy(cid[copy(cid[:], cidPrefix):], d[:])
	return appendCID(dst, cid[:])
}

func (d digest) String() string { return string(d.appendText(nil)) }
