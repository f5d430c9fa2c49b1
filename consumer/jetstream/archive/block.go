package archive

import (
	"encoding/binary"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// The kinds of rows.
const (
	kindCreate = iota + 1
	kindUpdate
	kindDelete
	kindIdentity
	kindAccount
	kindSync
	kindCreateResync // the server read the record from the repository again
)

// row is an event of a block. Its bytes are parts of the block.
type row struct {
	seq                        uint64
	witnessed                  int64 // when the server saw the event, in microseconds since 1970
	shown                      int64 // the time that the wire shows
	kind                       byte
	collection, did, rkey, rev []byte
	payload                    []byte // DAG-CBOR
}

// fixedBytes is the length of a row without its strings.
const fixedBytes = 8 + 8 + 8 + 1 + 1 + 2 + 1 + 1 + 4

// newDecoder returns a decoder of blocks. Nothing becomes longer than the index says.
func newDecoder() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(maxRaw),
		zstd.WithDecodeAllCapLimit(true))
}

// decodeBlock checks a block and calls each with its rows, in order, until it returns false. It
// calls it only if the whole block is as the index describes it.
func decodeBlock(zip *zstd.Decoder, frame []byte, info blockInfo, each func(*row) bool) (cause string) {
	if len(frame) != info.size {
		return fmt.Sprintf("it has %d bytes instead of %d", len(frame), info.size)
	}
	var head zstd.Header
	if err := head.Decode(frame); err != nil || !head.HasCheckSum {
		return "it is not a zstd frame with a checksum"
	}
	raw, err := zip.DecodeAll(frame, make([]byte, 0, info.raw))
	switch {
	case err != nil:
		return "it cannot be decompressed: " + err.Error()
	case len(raw) != info.raw:
		return fmt.Sprintf("it has %d bytes decompressed instead of %d", len(raw), info.raw)
	}
	return decodeRows(raw, info, each)
}

// columns are the columns of a block.
type columns struct {
	rows                                               int
	seq, witnessed, shown, kind                        []byte
	collectionLen, didLen, rkeyLen, revLen, payloadLen []byte
	collections, dids, rkeys, revs, payloads           []byte
}

func decodeRows(raw []byte, info blockInfo, each func(*row) bool) (cause string) {
	var c columns
	if cause = c.split(raw); cause != "" {
		return cause
	}
	if c.rows != info.events {
		return fmt.Sprintf("it has %d rows instead of %d", c.rows, info.events)
	}
	for i := range c.rows {
		seq, at := binary.LittleEndian.Uint64(c.seq[8*i:]), int64(binary.LittleEndian.Uint64(c.witnessed[8*i:])) // any value is compared
		if seq < info.minSeq || seq > info.maxSeq || at < info.minAt || at > info.maxAt {
			return fmt.Sprintf("row %d is outside of the bounds in the index", i)
		}
	}
	for i := range c.rows {
		r := c.row(i)
		if !each(&r) {
			return ""
		}
	}
	return ""
}

// split finds the columns.
func (c *columns) split(raw []byte) (cause string) {
	le := binary.LittleEndian
	if len(raw) < 4 {
		return "it has no count of rows"
	}
	n := uint64(le.Uint32(raw))
	if raw = raw[4:]; n*fixedBytes > uint64(len(raw)) {
		return fmt.Sprintf("it is too short for %d rows", n)
	}
	c.rows = int(n) // no more than the bytes
	take := func(length int) (column []byte) {
		column, raw = raw[:length], raw[length:]
		return column
	}
	for _, fixed := range []struct {
		column *[]byte
		width  int
	}{
		{&c.seq, 8}, {&c.witnessed, 8}, {&c.shown, 8}, {&c.kind, 1}, {&c.collectionLen, 1}, {&c.didLen, 2}, {&c.rkeyLen, 1}, {&c.revLen, 1},
		{&c.payloadLen, 4},
	} {
		*fixed.column = take(c.rows * fixed.width)
	}
	for _, text := range []struct {
		column  *[]byte
		lengths []byte
		width   int
	}{
		{&c.collections, c.collectionLen, 1}, {&c.dids, c.didLen, 2}, {&c.rkeys, c.rkeyLen, 1}, {&c.revs, c.revLen, 1},
		{&c.payloads, c.payloadLen, 4},
	} {
		sum := uint64(0)
		for i := range c.rows {
			sum += uint64(length(text.lengths, text.width, i)) // not negative
		}
		if sum > uint64(len(raw)) {
			return fmt.Sprintf("its strings are longer than it is: %d bytes of %d", sum, len(raw))
		}
		*text.column = take(int(sum)) // no more than the bytes
	}
	if len(raw) > 0 {
		return fmt.Sprintf("it has %d bytes after its rows", len(raw))
	}
	return ""
}

// length returns an element of a column of lengths.
func length(column []byte, width, i int) int {
	switch width {
	case 1:
		return int(column[i])
	case 2:
		return int(binary.LittleEndian.Uint16(column[2*i:]))
	}
	return int(binary.LittleEndian.Uint32(column[4*i:]))
}

// row takes the next row, which has this index, off the strings.
func (c *columns) row(i int) row {
	le := binary.LittleEndian
	take := func(column *[]byte, n int) (s []byte) {
		s, *column = (*column)[:n:n], (*column)[n:]
		return s
	}
	return row{
		// times
		seq: le.Uint64(c.seq[8*i:]), witnessed: int64(le.Uint64(c.witnessed[8*i:])), shown: int64(le.Uint64(c.shown[8*i:])), kind: c.kind[i],
		collection: take(&c.collections, length(c.collectionLen, 1, i)), did: take(&c.dids, length(c.didLen, 2, i)),
		rkey: take(&c.rkeys, length(c.rkeyLen, 1, i)), rev: take(&c.revs, length(c.revLen, 1, i)),
		payload: take(&c.payloads, length(c.payloadLen, 4, i)),
	}
}
