package firehose

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/ipfs/go-cid"
	cbornode "github.com/ipfs/go-ipld-cbor"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
)

// sorted returns JSON with sorted names. Indigo's JSON has that order except in blobs.
func sorted(t testing.TB, data []byte) string {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var v any
	require.NoError(t, decoder.Decode(&v))
	out, err := json.Marshal(v)
	require.NoError(t, err)
	return string(out)
}

// random returns a value of the network's data model.
func random(r *rand.Rand, depth int) any {
	text := func() string {
		var s strings.Builder
		for range r.IntN(12) {
			s.WriteRune([]rune("aZ 09\"\\/<>&\n\t\b\x01\x7f\u00e9\u2028\u2029\u3042\U0001F600\uFFFD$")[r.IntN(22)])
		}
		return s.String()
	}
	switch n := r.IntN(11); {
	case n < 3 && depth > 0:
		m := map[string]any{}
		for range r.IntN(8) {
			m["k"+text()] = random(r, depth-1)
		}
		return m
	case n < 5 && depth > 0:
		a := make([]any, 0, 6)
		for range r.IntN(6) {
			a = append(a, random(r, depth-1))
		}
		return a
	case n < 6:
		return r.Int64()>>r.IntN(64) - int64(r.IntN(3))
	case n < 7:
		return []any{true, false, nil}[r.IntN(3)]
	case n < 8:
		b := make([]byte, 1+r.IntN(40)) // indigo fails on empty bytes
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	case n < 9:
		c, err := cid.NewPrefixV1([]uint64{cid.DagCBOR, cid.Raw}[r.IntN(2)], 0x12).Sum([]byte(text()))
		if err != nil {
			panic(err)
		}
		return c
	case n < 10 && depth > 0:
		c := cid.NewCidV1(cid.Raw, []byte("\x12\x20"+strings.Repeat("x", 32)))
		return map[string]any{"$type": "blob", "ref": c, "mimeType": text(), "size": int64(r.IntN(1 << 20))}
	}
	return text()
}

// FuzzValidRecord compares the JSON of generated records with indigo's, byte by byte.
func FuzzValidRecord(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		r := rand.New(rand.NewPCG(seed, 0))
		v := map[string]any{"$type": "a.b.c"}
		for i := range r.IntN(10) {
			v[fmt.Sprint(i*i*i)] = random(r, 5)
		}
		raw := encoded(t, v)
		var tr transcoder
		out, replaced, bad := tr.transcode(nil, raw)
		require.Nil(t, bad)
		require.Zero(t, replaced)
		require.Equal(t, sorted(t, indigoJSON(t, raw)), string(out))
	})
}

// FuzzRecord transcodes any input. A record that passes is JSON that Postgres can store. Indigo
// reads the same from it, except for floats, which it turns into integers.
func FuzzRecord(f *testing.F) {
	f.Add(post(f, "hello <b>"))
	f.Add(layer(f)[:400])
	for _, value := range []string{"fb3ff8000000000000", "d82a582500017112205555555555555555555555555555555555555555555555555555555555555555",
		"a2616201616102", "8201a163616263f6", "63eda080", "6100", "1bffffffffffffffff", "3903e7"} {
		f.Add(inRecord(f, value))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var tr transcoder
		out, replaced, bad := tr.transcode(nil, raw)
		v, err := indigoReads(raw)
		if bad != nil {
			if err == nil && !strings.Contains(bad.Cause, "deeply") && !strings.Contains(bad.Cause, "link") &&
				!strings.Contains(bad.Cause, "not a number") && !strings.Contains(bad.Cause, "twice") {
				again, dumped := cbornode.DumpObject(v)
				require.False(t, dumped == nil && bytes.Equal(again, raw) && clean(raw), "%s refused: %v", bad, v)
			}
			return
		}
		require.True(t, jsontext.Value(out).IsValid(), "%s", out)
		require.Equal(t, jsontext.KindBeginObject, jsontext.Value(out).Kind())
		require.NotContains(t, string(out), `\u0000`)
		require.Equal(t, replaced > 0, !clean(raw) && bytes.Contains(out, []byte(`\ufffd`)))
		require.LessOrEqual(t, len(out), 13*len(raw))
		if err != nil || replaced > 0 || bytes.IndexByte(raw, cborFloat64) >= 0 || bytes.Contains(raw, []byte("$")) ||
			bytes.Contains(raw, []byte("mimeType")) {
			return
		}
		if want, err := json.Marshal(v); err == nil { // it fails on empty bytes
			require.Equal(t, sorted(t, want), sorted(t, out))
		}
	})
}

// indigoReads decodes a record with indigo, unless the record is nested too deeply for it.
func indigoReads(raw []byte) (map[string]any, error) {
	if len(raw) > 4000 {
		return nil, fmt.Errorf("long")
	}
	return atdata.UnmarshalCBOR(raw)
}

// clean reports whether the record needs no replacements, as far as its bytes show.
func clean(raw []byte) bool { return utf8.Valid(raw) && bytes.IndexByte(raw, 0) < 0 }

// FuzzFrame decodes any input as a frame, with every collection wanted.
func FuzzFrame(f *testing.F) {
	r := newRepository(f)
	small := record(f, map[string]any{"text": "a"}) // a short input is minimized soon
	first := r.commit(write{"app.bsky.feed.post/a", small}, write{"app.bsky.feed.post/b", small})
	f.Add(commitFrame(f, first))
	second := r.commit(write{"app.bsky.feed.post/a", nil}, write{"app.bsky.feed.post/b", record(f, map[string]any{"text": "b"})})
	f.Add(commitFrame(f, second))
	second.Ops[0] = nil
	f.Add(commitFrame(f, second))
	f.Add(append(encoded(f, map[string]any{"op": 1, "t": "#account"}),
		encoded(f, map[string]any{"did": testDID, "seq": 1, "time": "2026-08-01T12:00:00Z", "active": true})...))
	f.Add(append(encoded(f, map[string]any{"op": -1}), encoded(f, map[string]any{"error": "FutureCursor"})...))
	f.Fuzz(func(t *testing.T, frame []byte) {
		var d decoder
		var m consumer.Message
		kept := bytes.Clone(frame)
		used := allocated(func() { d.decode(frame, arrival(), &m) })
		require.Less(t, used, uint64(1<<20+100*len(frame)), "bytes allocated")
		require.Equal(t, kept, frame, "a frame is never changed")
		require.LessOrEqual(t, len(m.Events)+len(m.Malformed), maxOperations)
		for _, ev := range m.Events {
			if ev.Record != nil {
				require.True(t, jsontext.Value(ev.Record).IsValid())
			}
		}
		for _, bad := range m.Malformed {
			require.NotEmpty(t, bad.Cause)
			require.True(t, utf8.ValidString(bad.Error()), bad.Error())
		}
		if d.kind == typeCommit {
			alone(t, &m)
			d.blocks.invert(d.signed.data, d.ops)
		}
	})
}

// FuzzTree reads any input as a tree node, and changes it.
func FuzzTree(f *testing.F) {
	r := filled(f, 40)
	for _, b := range blocksOf(f, r.commit(write{"app.bsky.feed.post/a", post(f, "a")})) {
		f.Add(b.RawData(), "app.bsky.feed.post/a", byte(0))
	}
	f.Add([]byte("\xa2\x61e\x80\x61l\xf6"), "a/b", byte(1))
	f.Fuzz(func(t *testing.T, node []byte, key string, action byte) {
		root := digest(sha256.Sum256(node))
		b := blocks{list: []block{{digest: root, data: node}}}
		value, found, bad := b.lookup(&root, key, nil)
		tree := partialTree{blocks: &b}
		s, broken := tree.load(&subtree{cid: root}, anyLayer)
		if broken == nil {
			written := s.encode()
			again := partialTree{blocks: &blocks{list: []block{{digest: sha256.Sum256(written), data: written}}}}
			same, unread := again.load(&subtree{cid: sha256.Sum256(written)}, anyLayer)
			require.Nil(t, unread)
			require.Equal(t, []any{s.left, s.entries}, []any{same.left, same.entries}, "a node must be written as it was read")
			require.LessOrEqual(t, len(written), len(node))
			i, there := s.find(key)
			if bad == nil && there && len(s.entries) > 0 && layerOf(string(s.entries[0].key)) == layerOf(key) {
				require.True(t, found)
				require.Equal(t, s.entries[i].value, value)
			}
			require.False(t, found && !there)
		}
		o := operation{
			action: []string{"create", "update", "delete"}[action%3], path: key, cid: value, hasCID: action%3 < 2, hasPrev: action%3 > 0,
		}
		before, hidden := b.invert(root, []operation{o})
		if hidden == nil && o.action == "update" && value != o.prev {
			require.NotEqual(t, root, before)
		}
	})
}
