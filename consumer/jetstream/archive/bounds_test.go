package archive

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// sealed returns the header and the footer of a segment, with the right checksum.
func sealed(blocks ...blockInfo) (head, footer []byte, checksum string) {
	le := binary.LittleEndian
	end := uint64(headerBytes)
	for _, b := range blocks {
		footer = le.AppendUint64(footer, end)
		for _, n := range []int{b.size, b.raw, b.events} {
			footer = le.AppendUint32(footer, uint32(n))
		}
		for _, n := range []uint64{b.minSeq, b.maxSeq, uint64(b.minAt), uint64(b.maxAt)} {
			footer = le.AppendUint64(footer, n)
		}
		end += 8 + uint64(b.size)
	}
	head = make([]byte, headerBytes)
	copy(head, magic)
	le.PutUint16(head[12:], version)
	le.PutUint32(head[14:], uint32(len(blocks)))
	le.PutUint64(head[58:], end)
	le.PutUint64(head[90:], end)
	hash := xxh3.New()
	hash.Write(head[12:]) // never fails
	hash.Write(footer)    // as above
	le.PutUint64(head[4:], hash.Sum64())
	return head, footer, fmt.Sprintf("%016x", hash.Sum64())
}

// TestImpossibleIndexIsRefused shows which blocks an index cannot have.
func TestImpossibleIndexIsRefused(t *testing.T) {
	t.Parallel()
	good := blockInfo{size: 1, raw: 1, events: 1, minSeq: 1, maxSeq: 2, minAt: 1, maxAt: 2}
	parse := func(change func(*blockInfo)) string {
		b := good
		change(&b)
		head, footer, _ := sealed(good, b)
		_, cause := parseIndex(head, footer)
		return cause
	}
	require.Empty(t, parse(func(*blockInfo) {}))
	for _, change := range []func(*blockInfo){
		func(b *blockInfo) { b.size = maxFrame + 1 }, func(b *blockInfo) { b.raw = maxRaw + 1 }, func(b *blockInfo) { b.events = maxEvents + 1 },
		func(b *blockInfo) { b.minSeq = 3 }, func(b *blockInfo) { b.minAt = 3 }, func(b *blockInfo) { b.maxAt = maxTime + 1 },
	} {
		require.Equal(t, "the entry of block 1 is impossible", parse(change))
	}
}

// TestLargeBlocksAreReadOneAtATime reads blocks of which two are too large to be in memory at once: each is requested
// only after the one before it was taken.
func TestLargeBlocksAreReadOneAtATime(t *testing.T) {
	t.Parallel()
	raw := body(row{seq: 1, witnessed: 1, kind: kindCreate, payload: make([]byte, maxRaw/2)})
	zip, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(true))
	require.NoError(t, err)
	frame := zip.EncodeAll(raw, nil)
	info := blockInfo{size: len(frame), raw: len(raw), events: 1, minSeq: 1, maxSeq: 1, minAt: 1, maxAt: 1}
	head, footer, checksum := sealed(info, info, info)
	var mu sync.Mutex
	var order []string
	add := func(what string) { mu.Lock(); defer mu.Unlock(); order = append(order, what) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch method := strings.TrimPrefix(r.URL.Path, methods); method {
		case "listSegments":
			fmt.Fprint(w, `{"segments":[{"name":"a","eventCount":3,"minSeq":1,"maxSeq":1,"minWitnessedAt":1,"maxWitnessedAt":1}]}`)
		case "planSnapshot":
			fmt.Fprintf(w, `{"plannedThroughSeq":1,"sealedTipSeq":1,"segments":[{"name":"a","checksum":%q,"mode":"segment"}]}`, checksum)
		case "getSegment":
			part, from := head, "0"
			if !strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
				part, from = footer, strconv.FormatUint(binary.LittleEndian.Uint64(head[58:]), 10)
			}
			w.Header().Set("Content-Range", "bytes "+from+"-")
			w.WriteHeader(http.StatusPartialContent)
			w.Write(part) // the client may have gone
		default:
			add("requested")
			w.Write(frame) // the client may have gone
		}
	}))
	t.Cleanup(s.Close)
	c, err := New(Config{Endpoints: []string{"ws" + strings.TrimPrefix(s.URL, "http")}, Retry: time.Nanosecond})
	require.NoError(t, err)
	p, err := c.Plan(t.Context(), Query{From: time.UnixMicro(1), To: time.UnixMicro(1)})
	require.NoError(t, err)
	require.NoError(t, c.Read(t.Context(), p, func(Portion) error { add("taken"); return nil }))
	require.Equal(t, slices.Repeat([]string{"requested", "taken"}, 3), order)
}
