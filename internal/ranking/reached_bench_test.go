package ranking

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// BenchmarkReached reads the newest links with a minimum among five million shares: for the first time, when
// none was published, and again. A feed does that every five minutes at most.
func BenchmarkReached(b *testing.B) {
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
			q, err := c.q.OfStoredShares()
			require.NoError(b, err)
			published := map[int64]time.Time{}
			for i := range took {
				began := time.Now()
				require.NoError(b, readOnlyTx(b.Context(), pool, func(tx pgx.Tx) error {
					r, err := NewReachReader(b.Context(), tx, q)
					require.NoError(b, err)
					links, err := r.Newest(b.Context(), published)
					for _, l := range links {
						published[l.ID] = l.At
					}
					return err
				}))
				took[i] = time.Since(began)
			}
			b.ReportMetric(float64(took[0].Milliseconds()), "first-ms")
			b.ReportMetric(float64(min(took[1], took[2]).Milliseconds()), "again-ms")
			b.ReportMetric(float64(len(published)), "entries")
			b.ReportMetric(0, "ns/op")
		})
	}
}
