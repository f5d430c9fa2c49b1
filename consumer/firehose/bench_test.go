package firehose

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	comatproto "github.com/bluesky-social/indigo/api/atproto"
	"github.com/bluesky-social/indigo/atproto/atdata"
	"github.com/bluesky-social/indigo/atproto/identity"
	"github.com/bluesky-social/indigo/atproto/repo"
	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"
	cbg "github.com/whyrusleeping/cbor-gen"

	"github.com/weir-social/weir/consumer"
)

// commits returns n frames of the same shape, from a repository of 2,000 records.
func commits(b *testing.B, n int, record func() []byte, collection string) [][]byte {
	b.Helper()
	r := filled(b, 2000)
	var frames [][]byte
	for range 32 {
		var writes []write
		for range n {
			writes = append(writes, write{fmt.Sprintf("%s/%s", collection, r.clock.Next()), record()})
		}
		frames = append(frames, commitFrame(b, r.commit(writes...)))
	}
	return frames
}

// ratio runs Weir's code and indigo's alternately, so that a busy machine slows both. It reports
// indigo's time as a multiple of Weir's.
func ratio(b *testing.B, n int, weir, indigo func(i int)) {
	b.Helper()
	const turn = 16
	best := [2]time.Duration{time.Hour, time.Hour}
	for b.Loop() {
		for way, f := range []func(int){weir, indigo} {
			start := time.Now()
			for i := range turn {
				f(i % n)
			}
			best[way] = min(best[way], time.Since(start)/turn)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(best[0].Nanoseconds())/1000, "µs/weir")
	b.ReportMetric(float64(best[1].Nanoseconds())/1000, "µs/indigo")
	b.ReportMetric(float64(best[1])/float64(best[0]), "times")
}

// indigoFrame decodes a commit with indigo's generated code.
func indigoFrame(b *testing.B, frame []byte) *comatproto.SyncSubscribeRepos_Commit {
	b.Helper()
	reader := bytes.NewReader(frame)
	var header cbg.Deferred
	require.NoError(b, header.UnmarshalCBOR(reader))
	var msg comatproto.SyncSubscribeRepos_Commit
	require.NoError(b, msg.UnmarshalCBOR(reader))
	return &msg
}

// indigoRecords decodes a commit and its records with indigo.
func indigoRecords(b *testing.B, frame []byte) *comatproto.SyncSubscribeRepos_Commit {
	b.Helper()
	ctx := context.Background()
	msg := indigoFrame(b, frame)
	_, loaded, err := repo.LoadRepoFromCAR(ctx, bytes.NewReader(msg.Blocks))
	require.NoError(b, err)
	for _, op := range msg.Ops {
		collection, key, err := syntax.ParseRepoPath(op.Path)
		require.NoError(b, err)
		raw, _, err := loaded.GetRecordBytes(ctx, collection, key)
		require.NoError(b, err)
		indigoTranscode(b, raw)
	}
	return msg
}

func indigoTranscode(b *testing.B, raw []byte) {
	b.Helper()
	v, err := atdata.UnmarshalCBOR(raw)
	require.NoError(b, err)
	_, err = json.Marshal(v)
	require.NoError(b, err)
}

// benchSigned compares decoding and verifying a commit with doing the same with indigo. Both have
// the account's key or document cached. If chained is true, both also apply the operations
// backwards.
func benchSigned(b *testing.B, curve string, chained bool) {
	r := filled(b, 2000)
	p256, k256 := newKeys(b)
	if r.key = p256; curve == "k256" {
		r.key = k256
	}
	var frames [][]byte
	for range 32 {
		frames = append(frames, r.next())
	}
	_, v := newDirectory(r, VerifierConfig{Chained: chained})
	public, err := r.key.PublicKey()
	require.NoError(b, err)
	known := identity.NewMockDirectory()
	known.Insert(identity.Identity{
		DID: testDID, Handle: "a.example",
		Keys: map[string]identity.VerificationMethod{"atproto": {Type: "Multikey", PublicKeyMultibase: public.Multibase()}},
	})
	wire := Wire(nil, v)
	var m consumer.Message
	ratio(b, len(frames), func(i int) {
		wire.Decode(frames[i], arrival(), &m)
		m.Proof.Start()
		if outcome := m.Proof.Outcome(); outcome.Cause != "" || chained && outcome.Chained.Broken != "" {
			b.Fatal(outcome)
		}
	}, func(i int) {
		msg := indigoRecords(b, frames[i])
		require.NoError(b, repo.VerifyCommitSignature(context.Background(), known, msg))
		if chained {
			_, err := repo.VerifyCommitMessage(context.Background(), msg)
			require.NoError(b, err)
		}
	})
}

func BenchmarkFirehose(b *testing.B) {
	posts := commits(b, 1, func() []byte { return post(b, "Hello, world: this is a post of usual length, with a link. é") },
		"app.bsky.feed.post")
	ten := commits(b, 10, func() []byte { return post(b, "Hello, world: this is a post of usual length, with a link. é") },
		"app.bsky.feed.post")
	layers := commits(b, 1, func() []byte { return layer(b) }, "pub.layers.annotation")
	var m consumer.Message
	all, none := Wire(nil, nil), Wire(func(string) bool { return false }, nil)
	decode := func(wire consumer.Wire, frames [][]byte) func(int) {
		return func(i int) {
			if wire.Decode(frames[i], arrival(), &m); len(m.Malformed) > 0 {
				b.Fatal(m.Malformed[0])
			}
		}
	}
	b.Run("unwanted", func(b *testing.B) {
		ratio(b, len(posts), decode(none, posts), func(i int) { indigoFrame(b, posts[i]) })
	})
	for _, shape := range []struct {
		name   string
		frames [][]byte
	}{{"post", posts}, {"posts", ten}, {"layer", layers}} {
		b.Run(shape.name, func(b *testing.B) {
			ratio(b, len(shape.frames), decode(all, shape.frames), func(i int) { indigoRecords(b, shape.frames[i]) })
		})
	}
	var d decoder
	b.Run("inversion", func(b *testing.B) {
		ratio(b, len(posts), func(i int) {
			d.read(posts[i])
			d.readSigned()
			if _, bad := d.blocks.invert(d.signed.data, d.ops); bad != nil {
				b.Fatal(bad)
			}
		}, func(i int) {
			_, err := repo.VerifyCommitMessage(context.Background(), indigoFrame(b, posts[i]))
			require.NoError(b, err)
		})
	})
	for _, curve := range []string{"p256", "k256"} {
		b.Run("signed/"+curve, func(b *testing.B) { benchSigned(b, curve, false) })
		b.Run("chained/"+curve, func(b *testing.B) { benchSigned(b, curve, true) })
	}
	var t transcoder
	var out []byte
	for name, raw := range map[string][]byte{
		"transcode/post": post(b, "Hello, world: this is a post of usual length, with a link. é"), "transcode/layer": layer(b),
	} {
		b.Run(name, func(b *testing.B) {
			ratio(b, 1, func(int) { out, _, _ = t.transcode(out[:0], raw) }, func(int) { indigoTranscode(b, raw) })
		})
	}
}
