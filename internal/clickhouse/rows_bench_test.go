package clickhouse

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/simnet"
)

// simulatedPosts returns frames of new posts.
func simulatedPosts(b *testing.B, events int) [][]byte {
	b.Helper()
	n, err := simnet.New(simnet.Config{Seed: 5, Accounts: 20_000, Mix: simnet.MixPosts, History: events, HistorySpan: 6 * time.Hour})
	require.NoError(b, err)
	var lines bytes.Buffer
	require.NoError(b, n.Log().WriteJSONL(&lines, simnet.V2))
	return bytes.Split(bytes.TrimSpace(lines.Bytes()), []byte("\n"))
}

// BenchmarkRows decodes a segment of posts into rows and into a block.
func BenchmarkRows(b *testing.B) {
	frames := simulatedPosts(b, 50_000)
	all := sealed(b, frames)
	for b.Loop() {
		rows, err := Rows(main, all, wire)
		require.NoError(b, err)
		require.NotEmpty(b, block(1, rows))
	}
	b.ReportMetric(float64(b.N*len(frames))/b.Elapsed().Seconds(), "events/s")
}
