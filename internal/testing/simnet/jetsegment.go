package simnet

import (
	"encoding/binary"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/xxh3"
)

// archivedBlock is a block of a segment. Compaction removes entries, and keeps the block with
// its bounds.
type archivedBlock struct {
	entries []*Entry
	frame   []byte // zstd
	raw     int    // bytes before the compression
	offset  int    // in the file
	bounds
}

// bounds are of the entries that a block or a segment began with.
type bounds struct{ minSeq, maxSeq, minAt, maxAt int64 }

func (b *bounds) include(o bounds) {
	if b.minSeq == 0 {
		*b = o
		return
	}
	b.minSeq, b.maxSeq = min(b.minSeq, o.minSeq), max(b.maxSeq, o.maxSeq)
	b.minAt, b.maxAt = min(b.minAt, o.minAt), max(b.maxAt, o.maxAt)
}

// archivedSegment is a sealed file.
type archivedSegment struct {
	index    int
	blocks   []archivedBlock
	events   int
	file     []byte
	checksum uint64
	bounds
}

// The kinds of rows.
const (
	rowCreate = iota + 1
	rowUpdate
	rowDelete
	rowIdentity
	rowAccount
	rowSync
	rowCreateResync
)

// row returns the kind of an entry in a block, and its payload in CBOR.
func (e *Entry) row() (kind byte, payload []byte) {
	at := time.UnixMicro(e.TimeUS).UTC().Format("2006-01-02T15:04:05.000Z")
	body := object{"did": e.DID, "seq": e.RelaySeq, "time": at}
	switch e.Kind {
	case "identity":
		kind, body["handle"] = rowIdentity, e.Handle
	case "account":
		if kind, body["active"] = rowAccount, e.Active; e.Status != "" {
			body["status"] = e.Status
		}
	case syncKind:
		kind, body["rev"], body["blocks"] = rowSync, e.Rev, []byte{}
	default:
		switch {
		case e.Operation == "delete":
			return rowDelete, nil
		case e.Resynced:
			kind = rowCreateResync
		case e.Operation == "update":
			kind = rowUpdate
		default:
			kind = rowCreate
		}
		return kind, recordBlock(e.Record)
	}
	return kind, appendCBOR(nil, body)
}

// columns returns the rows of a block before the compression: column after column.
func columns(entries []*Entry, shift int64) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(len(entries)))
	kinds, payloads := make([]byte, len(entries)), make([][]byte, len(entries))
	each := func(column func(e *Entry, i int)) {
		for i, e := range entries {
			column(e, i)
		}
	}
	each(func(e *Entry, i int) { kinds[i], payloads[i] = e.row() })
	each(func(e *Entry, _ int) { b = le.AppendUint64(b, uint64(e.sequence(shift))) })
	each(func(e *Entry, _ int) { b = le.AppendUint64(b, uint64(e.TimeUS)) })
	each(func(*Entry, int) { b = le.AppendUint64(b, 0) }) // nobody imported another time
	b = append(b, kinds...)
	each(func(e *Entry, _ int) { b = append(b, byte(len(e.Collection))) })
	each(func(e *Entry, _ int) { b = le.AppendUint16(b, uint16(len(e.DID))) })
	each(func(e *Entry, _ int) { b = append(b, byte(len(e.Rkey))) })
	each(func(e *Entry, _ int) { b = append(b, byte(len(e.Rev))) })
	each(func(_ *Entry, i int) { b = le.AppendUint32(b, uint32(len(payloads[i]))) })
	each(func(e *Entry, _ int) { b = append(b, e.Collection...) })
	each(func(e *Entry, _ int) { b = append(b, e.DID...) })
	each(func(e *Entry, _ int) { b = append(b, e.Rkey...) })
	each(func(e *Entry, _ int) { b = append(b, e.Rev...) })
	for _, p := range payloads {
		b = append(b, p...)
	}
	return b
}

// blockOf makes the block of some entries. left are those that compaction has not removed.
func blockOf(all, left []*Entry, shift int64, encoder *zstd.Encoder) archivedBlock {
	raw := columns(left, shift)
	b := archivedBlock{entries: left, raw: len(raw), frame: encoder.EncodeAll(raw, nil)}
	for _, e := range all {
		seq := e.sequence(shift)
		b.include(bounds{seq, seq, e.TimeUS, e.TimeUS})
	}
	return b
}

// Sizes in the file.
const (
	segmentHeader = 256
	indexEntry    = 52
)

// seal writes the file: header, blocks, the index of the blocks, and three parts that only a
// server reads.
func (s *archivedSegment) seal() {
	le := binary.LittleEndian
	file := make([]byte, segmentHeader)
	dids := map[string]bool{}
	s.events, s.bounds = 0, bounds{}
	for i := range s.blocks {
		b := &s.blocks[i]
		b.offset = len(file)
		file = append(le.AppendUint64(file, uint64(len(b.frame))), b.frame...)
		s.include(b.bounds)
		s.events += len(b.entries)
		for _, e := range b.entries {
			dids[e.DID] = true
		}
	}
	footer := len(file)
	for i := range s.blocks {
		b := &s.blocks[i]
		file = le.AppendUint64(file, uint64(b.offset))
		for _, n := range []int{len(b.frame), b.raw, len(b.entries)} {
			file = le.AppendUint32(file, uint32(n))
		}
		for _, n := range []int64{b.minSeq, b.maxSeq, b.minAt, b.maxAt} {
			file = le.AppendUint64(file, uint64(n))
		}
	}
	rest := len(file)
	file = append(file, "blooms and collections, which no client reads"...)
	copy(file, "jss0")
	head := le.AppendUint16(file[:12], 1)
	for _, n := range []int{len(s.blocks), s.events, len(dids)} {
		head = le.AppendUint32(head, uint32(n))
	}
	for _, n := range []int64{s.minSeq, s.maxSeq, s.minAt, s.maxAt, int64(footer), int64(rest), int64(rest), int64(rest), int64(footer)} {
		head = le.AppendUint64(head, uint64(n))
	}
	hash := xxh3.New()
	hash.Write(file[12:segmentHeader]) // never fails
	hash.Write(file[footer:])          // as above
	s.file, s.checksum = file, hash.Sum64()
	le.PutUint64(file[4:], s.checksum)
}
