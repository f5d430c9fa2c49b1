package firehose

import (
	"crypto/sha256"

	"github.com/weir-social/weir/consumer"
)

// A Transcoder writes records as JSON for other readers of DAG-CBOR. One goroutine uses it.
type Transcoder struct{ t transcoder }

// Append appends a record as JSON to dst.
func (t *Transcoder) Append(dst, record []byte) ([]byte, *consumer.Malformed) {
	out, _, bad := t.t.transcode(dst, record)
	return out, bad
}

// AppendCID appends the CID of a record to dst.
func AppendCID(dst, record []byte) []byte {
	sum := sha256.Sum256(record)
	return appendCID(dst, append([]byte(cidPrefix), sum[:]...))
}
