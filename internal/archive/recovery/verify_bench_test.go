package recovery

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// BenchmarkVerify checks a segment of posts as weir archive verify does: its hashes, and each
// record with the decoder of its wire. MB/s are of raw data, in one goroutine.
func BenchmarkVerify(b *testing.B) {
	const events = 50_000
	n, err := simnet.New(simnet.Config{Seed: 5, Accounts: 20_000, Mix: simnet.MixPosts, History: events, HistorySpan: 6 * time.Hour})
	require.NoError(b, err)
	var lines, file bytes.Buffer
	require.NoError(b, n.Log().WriteJSONL(&lines, simnet.V2))
	out, err := archive.NewWriter(&file)
	require.NoError(b, err)
	for _, frame := range bytes.Split(bytes.TrimSpace(lines.Bytes()), []byte("\n")) {
		require.NoError(b, out.Add(frame))
	}
	sum, err := out.Close()
	require.NoError(b, err)
	store, err := dir.New(b.TempDir())
	require.NoError(b, err)
	m := archive.NewManifest(1, "main", jetstream.Wire(nil).Name, sum, time.Now(), time.Now())
	require.NoError(b, store.Put(b.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
	wires, err := sourceAt(store).wires()
	require.NoError(b, err)
	b.SetBytes(sum.RawBytes)
	for b.Loop() {
		require.NoError(b, VerifySegment(b.Context(), store, m, wires))
	}
}
