package archive

import (
	"errors"
	"fmt"
	"sync"

	"github.com/klauspost/compress/zstd"
)

// maxRow is the maximum raw size of a row that is read. A batch closes at a few MiB,
// and one record may be added.
const maxRow = 64 << 20

// rowEncoder is fast: a row is compressed again when it is sealed. It is safe for
// concurrent use.
var rowEncoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic(err) // the options are constants
	}
	return e
})

var rowDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderMaxMemory(maxRow))
})

// PackRow compresses the records of one commit, framed as in a segment. The result
// stays in an open row in the database until it is sealed.
func PackRow(raw []byte) []byte {
	return rowEncoder().EncodeAll(raw, make([]byte, 0, len(raw)/3+64))
}

// UnpackRow returns the framed records of a row.
func UnpackRow(packed []byte) ([]byte, error) {
	d, err := rowDecoder()
	if err != nil {
		return nil, fmt.Errorf("set up zstd: %w", err)
	}
	raw, err := d.DecodeAll(packed, nil)
	if err != nil {
		return nil, errors.Join(corrupt("zstd"), err)
	}
	return raw, nil
}
