package nostr_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/btcsuite/btcd/btcec/v2/schnorr"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/nostr"
	protocol "github.com/weir-social/weir/internal/nostr"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// notes returns messages with notes of typical length by 64 authors, and their events.
func notes(b *testing.B, count int) (frames [][]byte, events []*protocol.Event) {
	b.Helper()
	for i := range count {
		e := &protocol.Event{CreatedAt: 1_700_000_000 + int64(i), Kind: 1,
			Content: fmt.Sprintf("note %d: %s https://news.example/%d\n", i, strings.Repeat("some <words> & “more” ", 15), i),
			Tags:    [][]string{{"e", strings.Repeat("ab", 32), "wss://relay.example", "root"}, {"p", strings.Repeat("cd", 32)}, {"t", "news"}}}
		require.NoError(b, e.Sign([32]byte{31: byte(1 + i%64)}))
		frames, events = append(frames, frame(e)), append(events, e)
	}
	return frames, events
}

// bare verifies signatures with the library alone, on all processors.
func bare(b *testing.B, events []*protocol.Event) {
	var all sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for worker := range workers {
		all.Go(func() {
			for i := worker; i < len(events); i += workers {
				e := events[i]
				key, _ := schnorr.ParsePubKey(e.PubKey[:]) // both are valid
				sig, _ := schnorr.ParseSignature(e.Sig[:])
				if !sig.Verify(e.ID[:], key) {
					b.Error("not signed")
				}
			}
		})
	}
	all.Wait()
}

// decodeAll decodes a batch's messages and returns the proofs and the ids of their events.
func decodeAll(b *testing.B, wire *consumer.Wire, frames [][]byte) (proofs []consumer.Proof, ids [][16]byte) {
	now := time.Unix(2_000_000_000, 0)
	var m consumer.Message
	for _, frame := range frames {
		if wire.Decode(frame, now, &m); len(m.Events) != 1 {
			b.Fatal(m.Malformed)
		}
		proofs, ids = append(proofs, m.Proof), append(ids, m.ID)
	}
	return proofs, ids
}

// prove verifies the proofs of a batch, as a session does.
func prove(b *testing.B, proofs []consumer.Proof) {
	for _, p := range proofs {
		p.Start()
	}
	for _, p := range proofs {
		if v := p.Outcome(); v.Cause != "" {
			b.Fatal(v.Cause)
		}
	}
}

// BenchmarkVerification compares verifying the signatures of a batch, alone and after decoding,
// with the library alone on all processors. It also compares a batch of duplicates with verifying
// as many signatures on one processor. Duplicates are decoded and looked up in a table of 200,000
// ids.
func BenchmarkVerification(b *testing.B) {
	const batch = 500
	frames, events := notes(b, batch)
	wire := nostr.Wire(nostr.NewVerifier(nostr.VerifierConfig{}), nil)
	pool := schematest.New(b)
	_, ids := decodeAll(b, &wire, frames)
	_, err := pool.Exec(b.Context(), `
INSERT INTO seen (id) SELECT gen_random_uuid()
FROM generate_series(1, 200000)
UNION ALL SELECT unnest($1::uuid[])`, ids)
	require.NoError(b, err)
	_, err = pool.Exec(b.Context(), `ANALYZE seen`)
	require.NoError(b, err)

	var proofs []consumer.Proof
	ways := []func(){
		func() { bare(b, events) },
		func() { prove(b, proofs) },
		func() { proofs, _ = decodeAll(b, &wire, frames); prove(b, proofs) },
		func() {
			for _, e := range events {
				require.NoError(b, e.CheckSignature())
			}
		},
		func() {
			_, ids := decodeAll(b, &wire, frames)
			seen, err := schema.SeenIDs(b.Context(), pool, ids)
			require.NoError(b, err)
			require.Len(b, seen, batch)
		},
		func() { decodeAll(b, &wire, frames) },
	}
	best := make([]time.Duration, len(ways))
	for b.Loop() { // alternate, so that a busy machine slows all of them
		proofs, _ = decodeAll(b, &wire, frames)
		for way, f := range ways {
			start := time.Now()
			f()
			if took := time.Since(start) / batch; best[way] == 0 || took < best[way] {
				best[way] = took
			}
		}
	}
	micros := func(way int) float64 { return float64(best[way].Nanoseconds()) / 1000 }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(micros(0), "µs/bare")
	b.ReportMetric(micros(0)/micros(1), "speed-of-bare")
	b.ReportMetric(micros(0)/micros(2), "speed-of-bare-with-decoding")
	b.ReportMetric(micros(3), "µs/signature")
	b.ReportMetric(micros(4), "µs/duplicate")
	b.ReportMetric(micros(5), "µs/decoding")
	b.ReportMetric(micros(4)/micros(3), "duplicate-of-signature")
}
