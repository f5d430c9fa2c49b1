package archive

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// decoder decodes whole frames of bounded size. It is safe for concurrent use.
var decoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxFrame), zstd.WithDecoderLowmem(true))
})

// Segment is a segment in memory.
type Segment struct {
	data   []byte
	frames []frame
}

// frame is an entry of the seek table.
type frame struct {
	from, to int // in data
	raw      int // bytes
	checksum uint32
}

// Open reads the seek table of a segment.
func Open(data []byte) (*Segment, error) {
	if len(data) < 8+footerBytes {
		return nil, corrupt("%d bytes are no segment", len(data))
	}
	footer := data[len(data)-footerBytes:]
	if binary.LittleEndian.Uint32(footer[5:]) != seekableMagic || footer[4] != withChecksums {
		return nil, corrupt("there is no seek table at the end")
	}
	count := int64(binary.LittleEndian.Uint32(footer))
	table := count*entryBytes + footerBytes
	begin := int64(len(data)) - table - 8
	if begin < 0 {
		return nil, corrupt("a seek table of %d frames in %d bytes", count, len(data))
	}
	if binary.LittleEndian.Uint32(data[begin:]) != skippableMagic || int64(binary.LittleEndian.Uint32(data[begin+4:])) != table {
		return nil, corrupt("the seek table has no frame of its own")
	}
	s := &Segment{data: data, frames: make([]frame, 0, count)}
	at := int64(0)
	for entry := data[begin+8 : begin+8+count*entryBytes]; len(entry) > 0; entry = entry[entryBytes:] {
		packed, raw := int64(binary.LittleEndian.Uint32(entry)), int64(binary.LittleEndian.Uint32(entry[4:]))
		if at+packed > begin || raw > maxFrame {
			return nil, corrupt("frame %d has %d bytes, %d decompressed", len(s.frames), packed, raw)
		}
		s.frames = append(s.frames, frame{from: int(at), to: int(at + packed), raw: int(raw), checksum: binary.LittleEndian.Uint32(entry[8:])})
		at += packed
	}
	if at != begin {
		return nil, corrupt("%d bytes between the frames and the seek table", begin-at)
	}
	return s, nil
}

// Frames returns the number of frames.
func (s *Segment) Frames() int { return len(s.frames) }

// Frame decompresses a frame and checks it.
func (s *Segment) Frame(i int) ([]byte, error) {
	f := s.frames[i]
	raw, err := decompress(s.data[f.from:f.to], f.raw)
	if err == nil && checksum(raw) != f.checksum {
		err = corrupt("its checksum differs")
	}
	if err != nil {
		return nil, fmt.Errorf("frame %d: %w", i, err)
	}
	return raw, nil
}

// Records yields the records in order. The first error ends the sequence.
func (s *Segment) Records() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for i := range s.frames {
			raw, err := s.Frame(i)
			if err != nil {
				yield(nil, err)
				return
			}
			for record, err := range Records(raw) {
				if !yield(record, err) || err != nil {
					return
				}
			}
		}
	}
}

// Whole yields the records of the undamaged frames, and an error for each damaged
// frame.
func (s *Segment) Whole() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for i := range s.frames {
			raw, err := s.Frame(i)
			if err != nil {
				if !yield(nil, err) {
					return
				}
				continue
			}
			for record, err := range Records(raw) {
				if !yield(record, err) {
					return
				}
			}
		}
	}
}

// Check reads everything and returns a description of the segment, without the hash
// of the file.
func (s *Segment) Check() (Sum, error) {
	sum, content := Sum{StoredBytes: int64(len(s.data))}, xxhash.New()
	for i := range s.frames {
		raw, err := s.Frame(i)
		if err != nil {
			return Sum{}, err
		}
		for _, err := range Records(raw) {
			if err != nil {
				return Sum{}, fmt.Errorf("frame %d: %w", i, err)
			}
			sum.Records++
		}
		content.Write(raw) // never fails
		sum.RawBytes += int64(len(raw))
	}
	sum.Content = fmt.Sprintf("%016x", content.Sum64())
	return sum, nil
}

// decompress returns the raw bytes of a frame. It returns an error if there are not
// exactly size bytes.
func decompress(packed []byte, size int) ([]byte, error) {
	d, err := decoder()
	if err != nil {
		return nil, fmt.Errorf("set up zstd: %w", err)
	}
	raw, err := d.DecodeAll(packed, make([]byte, 0, size))
	if err != nil {
		return nil, errors.Join(corrupt("zstd"), err)
	}
	if len(raw) != size {
		return nil, corrupt("%d bytes instead of %d", len(raw), size)
	}
	return raw, nil
}
