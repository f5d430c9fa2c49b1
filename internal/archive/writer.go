package archive

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"

	"github.com/cespare/xxhash/v2"
	"github.com/klauspost/compress/zstd"
)

// The seek table of the seekable format of zstd: a skippable frame with one entry per
// frame and a footer.
const (
	skippableMagic = 0x184D2A5E
	seekableMagic  = 0x8F92EAB1
	withChecksums  = 0x80 // the table's descriptor: entries have checksums
	entryBytes     = 12
	footerBytes    = 9
)

// Sum describes a written segment.
type Sum struct {
	Records     int64
	RawBytes    int64  // decompressed
	StoredBytes int64  // the size of the file
	SHA256      string // of the file
	Content     string // XXH64 of the decompressed bytes: equal records have equal contents
}

// Writer writes a segment.
type Writer struct {
	out     io.Writer
	encoder *zstd.Encoder
	frame   []byte // raw
	packed  []byte
	table   []byte
	sha     hash.Hash
	content *xxhash.Digest
	sum     Sum
}

// NewWriter returns a writer of a segment to out.
func NewWriter(out io.Writer) (*Writer, error) {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, fmt.Errorf("set up zstd: %w", err)
	}
	return &Writer{out: out, encoder: encoder, sha: sha256.New(), content: xxhash.New()}, nil
}

// Add adds a record.
func (w *Writer) Add(record []byte) error {
	if len(record) > MaxRecord {
		return fmt.Errorf("a record has %d bytes: at most %d can be archived", len(record), MaxRecord)
	}
	w.frame = AppendRecord(w.frame, record)
	w.sum.Records++
	if len(w.frame) < frameBytes {
		return nil
	}
	return w.flush()
}

// flush writes the frame.
func (w *Writer) flush() error {
	if len(w.frame) == 0 {
		return nil
	}
	w.packed = w.encoder.EncodeAll(w.frame, w.packed[:0])
	w.table = binary.LittleEndian.AppendUint32(w.table, uint32(len(w.packed))) // about maxFrame
	w.table = binary.LittleEndian.AppendUint32(w.table, uint32(len(w.frame)))  // at most maxFrame
	w.table = binary.LittleEndian.AppendUint32(w.table, checksum(w.frame))
	w.content.Write(w.frame) // never fails
	w.sum.RawBytes += int64(len(w.frame))
	w.frame = w.frame[:0]
	return w.write(w.packed)
}

func (w *Writer) write(b []byte) error {
	w.sha.Write(b) // never fails
	w.sum.StoredBytes += int64(len(b))
	_, err := w.out.Write(b)
	return err
}

// Close writes the last frame and the seek table. It does not close the output.
func (w *Writer) Close() (Sum, error) {
	if err := w.flush(); err != nil {
		return Sum{}, err
	}
	frames := len(w.table) / entryBytes
	end := binary.LittleEndian.AppendUint32(nil, skippableMagic)
	end = binary.LittleEndian.AppendUint32(end, uint32(len(w.table)+footerBytes)) // a few bytes per MiB
	end = append(end, w.table...)
	end = binary.LittleEndian.AppendUint32(end, uint32(frames)) // likewise
	end = append(end, withChecksums)
	end = binary.LittleEndian.AppendUint32(end, seekableMagic)
	if err := w.write(end); err != nil {
		return Sum{}, err
	}
	w.sum.SHA256 = hex.EncodeToString(w.sha.Sum(nil))
	w.sum.Content = fmt.Sprintf("%016x", w.content.Sum64())
	return w.sum, nil
}

// checksum returns the checksum of a frame in the seek table: the lower half of its
// XXH64.
func checksum(raw []byte) uint32 { return uint32(xxhash.Sum64(raw)) } // the lower half
