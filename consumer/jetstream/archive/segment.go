package archive

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/url"
	"strconv"

	"github.com/zeebo/xxh3"
)

// The layout of a sealed file: a header, the blocks, and a footer that begins with an index of the
// blocks. All numbers are little-endian. The rest of the footer is for servers only.
const (
	headerBytes = 256
	entryBytes  = 52
	magic       = "jss0"
	version     = 1
	maxFooter   = 64 << 20
	maxBlocks   = maxFooter / entryBytes
	maxFrame    = 32 << 20 // bytes of a block
	maxRaw      = 64 << 20 // the same before the compression
	maxEvents   = 1 << 17  // of a block
)

// header is the part of a file's header that a reader needs.
type header struct {
	checksum uint64
	blocks   int
	footer   int64 // where it begins
}

// blockInfo is what the index says about a block.
type blockInfo struct {
	size, raw, events int
	minSeq, maxSeq    uint64
	minAt, maxAt      int64
}

func parseHeader(b []byte) (h header, cause string) {
	le := binary.LittleEndian
	switch {
	case len(b) != headerBytes:
		return h, fmt.Sprintf("the header has %d bytes", len(b))
	case string(b[:4]) != magic:
		return h, "it is not a segment"
	case le.Uint16(b[12:]) != version:
		return h, fmt.Sprintf("it has the unknown version %d", le.Uint16(b[12:]))
	}
	h.checksum, h.blocks = le.Uint64(b[4:]), int(le.Uint32(b[14:]))
	footer, index := le.Uint64(b[58:]), le.Uint64(b[90:])
	switch {
	case h.checksum == 0:
		return h, "it is not sealed"
	case footer != index || footer < headerBytes || footer > 1<<40:
		return h, "its footer is at an impossible place"
	case h.blocks > maxBlocks:
		return h, fmt.Sprintf("it has %d blocks", h.blocks)
	}
	h.footer = int64(footer)
	return h, ""
}

// parseIndex checks the header and the footer, and returns the index.
func parseIndex(head, footer []byte) (blocks []blockInfo, cause string) {
	h, cause := parseHeader(head)
	if cause != "" {
		return nil, cause
	}
	hash := xxh3.New()
	hash.Write(head[12:]) // never fails
	hash.Write(footer)    // as above
	if sum := hash.Sum64(); sum != h.checksum {
		return nil, fmt.Sprintf("its checksum is %016x instead of %016x", sum, h.checksum)
	}
	if len(footer) < h.blocks*entryBytes {
		return nil, "the index is shorter than its blocks"
	}
	blocks = make([]blockInfo, h.blocks)
	le, end := binary.LittleEndian, uint64(headerBytes)
	for i := range blocks {
		e := footer[i*entryBytes:]
		b := blockInfo{size: int(le.Uint32(e[8:])), raw: int(le.Uint32(e[12:])), events: int(le.Uint32(e[16:])),
			// any value is compared
			minSeq: le.Uint64(e[20:]), maxSeq: le.Uint64(e[28:]), minAt: int64(le.Uint64(e[36:])), maxAt: int64(le.Uint64(e[44:]))}
		if at := le.Uint64(e); at != end || b.size > maxFrame || b.raw > maxRaw || b.events > maxEvents || b.minSeq > b.maxSeq ||
			b.minAt > b.maxAt || b.maxAt > maxTime {
			return nil, fmt.Sprintf("the entry of block %d is impossible", i)
		}
		end += 8 + uint64(b.size) // at most maxFrame
		blocks[i] = b
	}
	if end != uint64(h.footer) {
		return nil, "the blocks do not reach the footer"
	}
	return blocks, ""
}

// index reads the index of a segment.
func (c *Client) index(ctx context.Context, s server, p *planned) (blocks []blockInfo, err error) {
	err = c.repeat(ctx, func(ctx context.Context) error {
		blocks, err = c.readIndex(ctx, s, p)
		return err
	})
	return blocks, err
}

func (c *Client) readIndex(ctx context.Context, s server, p *planned) ([]blockInfo, error) {
	r := request{
		method: "getSegment", query: url.Values{"name": {p.Name}}, last: headerBytes - 1, most: headerBytes, tag: strconv.Quote(p.Checksum),
	}
	head, err := c.request(ctx, s, r)
	if err != nil {
		return nil, err
	}
	h, cause := parseHeader(head.body)
	if cause != "" {
		return nil, &DamagedError{p.Name, -1, cause}
	}
	r.first, r.last, r.most = h.footer, h.footer+maxFooter, maxFooter
	footer, err := c.request(ctx, s, r)
	if err != nil {
		return nil, err
	}
	blocks, cause := parseIndex(head.body, footer.body)
	switch {
	case cause != "":
		return nil, &DamagedError{p.Name, -1, cause}
	case fmt.Sprintf("%016x", h.checksum) != p.Checksum:
		return nil, fmt.Errorf("%s: %w", p.Name, ErrChanged)
	}
	return blocks, nil
}
