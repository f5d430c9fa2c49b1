package archive

import (
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
)

// body returns the rows of a block, column after column.
func body(rows ...row) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, uint32(len(rows)))
	column := func(add func(r *row)) {
		for i := range rows {
			add(&rows[i])
		}
	}
	column(func(r *row) { b = le.AppendUint64(b, r.seq) })
	column(func(r *row) { b = le.AppendUint64(b, uint64(r.witnessed)) })
	column(func(r *row) { b = le.AppendUint64(b, uint64(r.shown)) })
	column(func(r *row) { b = append(b, r.kind) })
	column(func(r *row) { b = append(b, byte(len(r.collection))) })
	column(func(r *row) { b = le.AppendUint16(b, uint16(len(r.did))) })
	column(func(r *row) { b = append(b, byte(len(r.rkey))) })
	column(func(r *row) { b = append(b, byte(len(r.rev))) })
	column(func(r *row) { b = le.AppendUint32(b, uint32(len(r.payload))) })
	column(func(r *row) { b = append(b, r.collection...) })
	column(func(r *row) { b = append(b, r.did...) })
	column(func(r *row) { b = append(b, r.rkey...) })
	column(func(r *row) { b = append(b, r.rev...) })
	column(func(r *row) { b = append(b, r.payload...) })
	return b
}

func some() []row {
	at := time.Date(2026, 8, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	post := []byte("\xa1\x64text\x65hello")
	return []row{
		{
			seq: 7, witnessed: at, kind: kindCreate, collection: []byte("app.bsky.feed.post"), did: []byte("did:plc:a"),
			rkey: []byte("3lu2x2x2x2x2x"), rev: []byte("3lu2x2x2x2x2y"), payload: post,
		},
		{
			seq: 8, witnessed: at + 1, shown: at - 5, kind: kindCreateResync, collection: []byte("app.bsky.feed.post"), did: []byte("did:plc:a"),
			rkey: []byte("a\"\xff"), rev: []byte("3lu2x2x2x2x2z"), payload: []byte("\xff"),
		},
		{
			seq: 9, witnessed: at + 1, kind: kindDelete, collection: []byte("app.bsky.feed.like"), did: []byte("did:plc:b"), rkey: []byte("x"),
			rev: []byte("3lu2x2x2x2x3z"),
		},
		{seq: 10, witnessed: at + 2, kind: 99, did: []byte("did:plc:b")},
		{
			seq: 11, witnessed: at + 3, kind: kindSync, did: []byte("did:plc:b"),
			payload: []byte("\xa2\x63did\x69did:plc:b\x63rev\x6d3lu2x2x2x2x4z"),
		},
	}
}

func describe(rows []row, raw []byte) blockInfo {
	return blockInfo{raw: len(raw), events: len(rows), minSeq: 0, maxSeq: math.MaxUint64, minAt: math.MinInt64, maxAt: math.MaxInt64}
}

// TestRowsBecomeFrames decodes rows of every kind. What cannot be read becomes a dead letter with its
// reason, and unknown kinds are left out.
func TestRowsBecomeFrames(t *testing.T) {
	t.Parallel()
	rows := some()
	raw := body(rows...)
	var f framer
	var frames [][]byte
	require.Empty(t, decodeRows(raw, describe(rows, raw), func(r *row) bool {
		if frame := f.frame(r); frame != nil {
			frames = append(frames, frame)
		}
		return true
	}))
	require.Len(t, frames, 4)
	wire := jetstream.Wire(nil)
	messages := make([]consumer.Message, len(frames))
	for i, frame := range frames {
		wire.Decode(frame, time.Now(), &messages[i])
	}
	require.Equal(t, `{"text":"hello"}`, string(messages[0].Events[0].Record))
	require.True(t, strings.HasPrefix(messages[0].Events[0].CID, "bafyrei"))
	require.Equal(t, rows[0].witnessed, messages[0].TimeUS)
	require.Equal(t, rows[1].shown, messages[1].TimeUS)
	require.Len(t, messages[1].Malformed, 1)
	require.Contains(t, messages[1].Malformed[0].Error(), "not a record key")
	require.Equal(t, consumer.Delete, messages[2].Events[0].Operation)
	require.Equal(t, consumer.KindSync, messages[3].Events[0].Kind)
	require.Equal(t, "3lu2x2x2x2x4z", messages[3].Events[0].Revision)
	rows[1].rkey = []byte("a")
	wire.Decode(f.frame(&rows[1]), time.Now(), &messages[1])
	require.Len(t, messages[1].Malformed, 1)
	require.Contains(t, messages[1].Malformed[0].Error(), "an object")
}

// TestDamagedRowsAreRefused shows that a block is refused as a whole, and before its lengths are used.
func TestDamagedRowsAreRefused(t *testing.T) {
	t.Parallel()
	rows := some()
	raw := body(rows...)
	info := describe(rows, raw)
	none := func(*row) bool { require.Fail(t, "a row of a damaged block"); return false }
	for cut := range len(raw) {
		require.NotEmpty(t, decodeRows(raw[:cut], info, none))
	}
	require.Contains(t, decodeRows(append(slices.Clone(raw), 0), info, none), "1 bytes after its rows")
	change := func(at int, b byte) []byte { c := slices.Clone(raw); c[at] = b; return c }
	require.Contains(t, decodeRows(change(3, 0xff), info, none), "too short for")
	require.Contains(t, decodeRows(change(4+5*29, 0xff), info, none), "longer than it is")
	short := info
	short.events++
	require.Contains(t, decodeRows(raw, short, none), "5 rows instead of 6")
	bounded := info
	bounded.maxSeq = 10
	require.Contains(t, decodeRows(raw, bounded, none), "row 4 is outside")
	bounded = info
	bounded.minAt = rows[0].witnessed + 1
	require.Contains(t, decodeRows(raw, bounded, none), "row 0 is outside")
}

// TestBombsAreNotDecompressed shows that a frame does not become longer than the index says.
func TestBombsAreNotDecompressed(t *testing.T) {
	t.Parallel()
	for _, options := range [][]zstd.EOption{{}, {zstd.WithSingleSegment(true)}} {
		encoder, err := zstd.NewWriter(nil, append(options, zstd.WithEncoderCRC(true))...)
		require.NoError(t, err)
		bomb := encoder.EncodeAll(make([]byte, 48<<20), nil)
		zip, err := newDecoder()
		require.NoError(t, err)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		cause := decodeBlock(zip, bomb, blockInfo{size: len(bomb), raw: 5000}, nil)
		runtime.ReadMemStats(&after)
		require.Contains(t, cause, "cannot be decompressed")
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
	}
	plain, err := zstd.NewWriter(nil, zstd.WithEncoderCRC(false))
	require.NoError(t, err)
	zip, err := newDecoder()
	require.NoError(t, err)
	frame := plain.EncodeAll(body(some()...), nil)
	require.Contains(t, decodeBlock(zip, frame, blockInfo{size: len(frame), raw: 5000}, nil), "checksum")
}

// FuzzRows shows that no block makes the decoder panic, and that an accepted block has all its rows.
func FuzzRows(f *testing.F) {
	f.Add(body(some()...))
	f.Add(body())
	f.Fuzz(func(t *testing.T, raw []byte) {
		count := 0
		if len(raw) >= 4 {
			count = int(binary.LittleEndian.Uint32(raw))
		}
		seen, wire := 0, jetstream.Wire(nil)
		var fr framer
		var m consumer.Message
		cause := decodeRows(raw, blockInfo{events: count, maxSeq: math.MaxUint64, minAt: math.MinInt64, maxAt: math.MaxInt64}, func(r *row) bool {
			seen++
			if frame := fr.frame(r); frame != nil {
				wire.Decode(frame, time.Now(), &m)
			}
			return true
		})
		if cause == "" {
			require.Equal(t, count, seen)
		} else {
			require.Zero(t, seen)
		}
	})
}

// FuzzIndex gives hostile headers and footers, whose checksum is right.
func FuzzIndex(f *testing.F) {
	head := make([]byte, headerBytes)
	copy(head, magic)
	binary.LittleEndian.PutUint16(head[12:], version)
	binary.LittleEndian.PutUint64(head[58:], headerBytes)
	binary.LittleEndian.PutUint64(head[90:], headerBytes)
	f.Add(head, []byte("the rest"))
	f.Fuzz(func(t *testing.T, head, footer []byte) {
		if len(head) == headerBytes {
			hash := xxh3.New()
			hash.Write(head[12:]) // never fails
			hash.Write(footer)    // as above
			head = slices.Clone(head)
			binary.LittleEndian.PutUint64(head[4:], hash.Sum64())
		}
		blocks, cause := parseIndex(head, footer)
		if cause == "" {
			require.LessOrEqual(t, len(blocks)*entryBytes, len(footer))
		}
	})
}
