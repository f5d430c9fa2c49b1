//go:build clickhouse

package clickhouse

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/archive/clickhouse/clickhousetest"
)

// BenchmarkSegment decodes segments and stores them.
func BenchmarkSegment(b *testing.B) {
	const events = 100_000
	records := make([][]byte, events)
	for i := range records {
		records[i] = frame("create", fmt.Sprint(i), `{"$type":"app.bsky.feed.post","createdAt":"2024-09-09T10:00:00Z","text":"`+strings.Repeat("word ", i%40)+` https://example.com/`+fmt.Sprint(i%5000)+`"}`)
	}
	all := sealed(b, records)
	x, err := New(clickhousetest.Start(b).URL, nil)
	require.NoError(b, err)
	require.NoError(b, x.Create(b.Context()))
	number, marks := int64(0), newMemory()
	for b.Loop() {
		number++
		rows, err := Rows(all, "main", wire)
		require.NoError(b, err)
		require.NoError(b, x.Put(b.Context(), Segment{Number: number, Rows: rows}, marks))
	}
	b.ReportMetric(float64(b.N)*events/b.Elapsed().Seconds(), "events/s")
}
