package archive

import (
	"bytes"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/weir-social/weir/consumer/firehose"
)

// framer writes rows as frames of the wire. One goroutine uses it.
type framer struct {
	records firehose.Transcoder
	slab    []byte // that the frames of a block share
}

// wants reports whether a query selects a row. Rows of accounts belong to every collection.
func (q *Query) wants(r *row) bool {
	switch {
	case r.witnessed < q.From.UnixMicro() || r.witnessed > q.To.UnixMicro() || q.Wants != nil && !q.Wants(r.did):
		return false
	case r.kind == kindIdentity || r.kind == kindAccount || r.kind == kindSync || len(q.Collections) == 0:
		return true
	}
	for _, pattern := range q.Collections {
		prefix := pattern[:len(pattern)-1]
		if pattern == string(r.collection) || pattern[len(pattern)-1] == '*' && bytes.HasPrefix(r.collection, []byte(prefix)) {
			return true
		}
	}
	return false
}

// frame returns a row as a frame; nil if its kind is unknown. A payload that cannot be read
// becomes a text, for which the frame is refused as a dead letter.
func (f *framer) frame(r *row) []byte {
	kind := "commit"
	switch r.kind {
	case kindCreate, kindUpdate, kindDelete, kindCreateResync:
	case kindIdentity:
		kind = "identity"
	case kindAccount:
		kind = "account"
	case kindSync:
		kind = "sync"
	default:
		return nil
	}
	if need := 512 + 3*len(r.payload); cap(f.slab)-len(f.slab) < need {
		f.slab = make([]byte, 0, max(256<<10, need))
	}
	began := len(f.slab)
	b := append(f.slab, `{"did":`...)
	b = quoted(b, r.did)
	at := r.shown
	if at <= 0 {
		at = r.witnessed
	}
	b = strconv.AppendInt(append(b, `,"time_us":`...), at, 10)
	b = strconv.AppendUint(append(b, `,"cursor":`...), r.seq, 10)
	b = append(append(b, `,"kind":"`...), kind...)
	b = append(append(append(b, `","`...), kind...), `":`...)
	if kind == "commit" {
		b = f.commit(b, r)
	} else {
		b = f.payload(b, r.payload)
	}
	b = append(b, '}')
	f.slab = b
	return b[began:len(b):len(b)]
}

func (f *framer) commit(b []byte, r *row) []byte {
	operation := `"create"`
	switch r.kind {
	case kindUpdate:
		operation = `"update"`
	case kindDelete:
		operation = `"delete"`
	}
	b = quoted(append(b, `{"rev":`...), r.rev)
	b = append(append(b, `,"operation":`...), operation...)
	b = quoted(append(b, `,"collection":`...), r.collection)
	b = quoted(append(b, `,"rkey":`...), r.rkey)
	if r.kind != kindDelete {
		b = f.payload(append(b, `,"record":`...), r.payload)
		b = append(firehose.AppendCID(append(b, `,"cid":"`...), r.payload), '"')
	}
	return append(b, '}')
}

// payload writes DAG-CBOR as JSON.
func (f *framer) payload(b, payload []byte) []byte {
	began := len(b)
	b, bad := f.records.Append(b, payload)
	if bad != nil {
		return quoted(b[:began], []byte(bad.Error()))
	}
	return b
}

// quoted appends a string as JSON. Invalid UTF-8 is replaced.
func quoted(b, s []byte) []byte {
	b, _ = jsontext.AppendQuote(b, s) // the error says that it was replaced
	return b
}
