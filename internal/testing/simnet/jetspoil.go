package simnet

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// ArchiveFault is a way in which a response of the archive is damaged. The faults of calls are
// beside these: Slow, Severed and so on.
type ArchiveFault string

// The faults of the archive.
const (
	FlippedBit   ArchiveFault = "flipped-bit"   // one bit is another
	CutShort     ArchiveFault = "cut-short"     // the end is missing, and the length agrees
	WrongLengths ArchiveFault = "wrong-lengths" // the lengths of a column exceed the block
	WrongCount   ArchiveFault = "wrong-count"   // a whole block without its rows
	HugeCount    ArchiveFault = "huge-count"    // four billion rows
	OtherBlock   ArchiveFault = "other-block"   // a block whose rows are of other numbers
	Bomb         ArchiveFault = "bomb"          // a small frame of 4 MiB
	BlockAbsent  ArchiveFault = "block-absent"  // the block is missing
	OtherRange   ArchiveFault = "other-range"   // of a segment: other bytes than the requested ones
)

// BlockFaults returns the faults of blocks.
func BlockFaults() []ArchiveFault {
	return []ArchiveFault{FlippedBit, CutShort, WrongLengths, WrongCount, HugeCount, OtherBlock, Bomb, BlockAbsent}
}

// spoilt is a fault of some of the next responses.
type spoilt struct {
	endpoint string
	fault    ArchiveFault
	count    int
}

// SpoilBlocks damages the next responses of getBlock.
func (n *Net) SpoilBlocks(f ArchiveFault, count int) { n.spoil("getBlock", f, count) }

// SpoilSegments damages the next responses of getSegment.
func (n *Net) SpoilSegments(f ArchiveFault, count int) { n.spoil("getSegment", f, count) }

func (n *Net) spoil(method string, f ArchiveFault, count int) {
	n.archive.mu.Lock()
	defer n.archive.mu.Unlock()
	n.archive.spoilt = append(n.archive.spoilt, spoilt{archivePrefix + method, f, count})
}

// ArchiveFired returns how many responses each fault has damaged.
func (n *Net) ArchiveFired() map[ArchiveFault]int {
	n.archive.mu.Lock()
	defer n.archive.mu.Unlock()
	return maps.Clone(n.archive.fired)
}

// spoil consumes the first fault of an endpoint.
func (a *archive) spoil(endpoint string) ArchiveFault {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.spoilt {
		s := &a.spoilt[i]
		if s.endpoint != endpoint || s.count == 0 {
			continue
		}
		s.count--
		if a.fired == nil {
			a.fired = map[ArchiveFault]int{}
		}
		a.fired[s.fault]++
		return s.fault
	}
	return ""
}

// apply returns damaged data.
func (f ArchiveFault) apply(data []byte, encoder *zstd.Encoder) []byte {
	data = slices.Clone(data)
	if f == FlippedBit {
		data[len(data)-2] ^= 4
		return data
	}
	if f == CutShort {
		return data[:len(data)*2/3]
	}
	if f == Bomb {
		return encoder.EncodeAll(make([]byte, 4<<20), nil)
	}
	decoder, _ := zstd.NewReader(nil) // the options are valid
	defer decoder.Close()
	raw, err := decoder.DecodeAll(data, nil)
	if err != nil {
		return data
	}
	rows := int(binary.LittleEndian.Uint32(raw))
	switch f {
	case WrongLengths: // of the last column of lengths
		for i := range 4 * rows {
			raw[4+rows*(8+8+8+1+1+2+1+1)+i] = 0xff
		}
	case WrongCount:
		raw = make([]byte, 4)
	case HugeCount:
		binary.LittleEndian.PutUint32(raw, 1<<32-1)
	case OtherBlock:
		for i := range rows {
			seq := raw[4+8*i:]
			binary.LittleEndian.PutUint64(seq, binary.LittleEndian.Uint64(seq)+1_000_000)
		}
	}
	return encoder.EncodeAll(raw, nil)
}
