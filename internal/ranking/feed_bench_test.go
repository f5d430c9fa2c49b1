package ranking

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// BenchmarkFeed computes feeds of five million shares: for the first time, when no link is
// remembered, and again. A feed is computed every five minutes at most.
func BenchmarkFeed(b *testing.B) {
	pool := benchPool(b)
	now := time.Now()
	for _, c := range []struct {
		name string
		q    Query
	}{
		{"everyone", Query{AtLeast: 3}},
		{"everyone, one sharer", Query{AtLeast: 1}},
		{"everyone, 100 sharers", Query{AtLeast: 100}},
		{"everyone, 1000 sharers", Query{AtLeast: 1000}},
		{"quotes", Query{AtLeast: 10, Ways: []string{"quote"}}},
		{"a watch of 1000", Query{AtLeast: 3, Watch: "reader.example"}},
		{"a site", Query{AtLeast: 3, Site: "site17.example"}},
		{"a text", Query{AtLeast: 3, Text: "article 12345"}},
		{"a frequent text", Query{AtLeast: 3, Text: "article"}},
		{"an account", Query{AtLeast: 3, By: "did:plc:" + strings.Repeat("0", 21) + "123"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.q.At, c.q.Limit = now, 100
			var took [3]time.Duration
			entries := 0
			for i := range took {
				began := time.Now()
				f, err := ReadFeed(b.Context(), pool, c.q)
				require.NoError(b, err)
				took[i], entries = time.Since(began), len(f.Entries)
			}
			b.ReportMetric(float64(took[0].Milliseconds()), "first-ms")
			b.ReportMetric(float64(min(took[1], took[2]).Milliseconds()), "again-ms")
			b.ReportMetric(float64(entries), "entries")
			b.ReportMetric(0, "ns/op")
		})
	}
}
