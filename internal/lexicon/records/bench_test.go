package records

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// The graph of the benchmark. About edges / 3 * r^(-2/3) / nodes^(1/3) others refer to the record
// of rank r: a power law with the exponent 2.5. The first one has about 17,000 referrers. Each
// record refers to five.
const (
	benchNodes = 200_000
	benchEdges = 1_000_000
)

func benchNode(rank int) schema.Key {
	return schema.Key{Collection: "com.example.town.tree", DID: fmt.Sprintf("did:plc:%04d", rank%1000), Rkey: fmt.Sprintf("n%d", rank)}
}

// BenchmarkGraph measures queries for what is around records of that graph, and for the paths
// between them. Every second record is chosen by how many references it has.
func BenchmarkGraph(b *testing.B) {
	pool := schematest.New(b)
	execute(b, pool, `SELECT setseed(0.5)`)
	execute(b, pool, `INSERT INTO record_refs (collection, did, rkey, path, kind, target, to_collection, to_did, to_rkey, declared)
		SELECT 'com.example.town.tree', 'did:plc:' || lpad((f % 1000)::text, 4, '0'), 'n' || f, '/ref' || n % 5, 'at-uri',
		    'at://did:plc:x/com.example.town.tree/n', 'com.example.town.tree', 'did:plc:' || lpad((t % 1000)::text, 4, '0'), 'n' || t, true
		FROM (SELECT n, n / 5 AS f, floor($1 * power(random(), 3))::int AS t FROM generate_series(0, $2 - 1) AS n) AS e`, benchNodes, benchEdges)
	execute(b, pool, `VACUUM ANALYZE record_refs`)
	config := pool.Config()
	config.MaxConns = 1
	pool, err := pgxpool.NewWithConfig(b.Context(), config)
	require.NoError(b, err)
	defer pool.Close()
	backend := one[uint32](b, pool, `SELECT pg_backend_pid()`)
	r := rand.New(rand.NewPCG(1, 2))
	some := func(n int) schema.Key {
		if n%2 == 0 {
			return benchNode(r.IntN(benchNodes))
		}
		return benchNode(int(benchNodes * math.Pow(r.Float64(), 3)))
	}
	measure := func(name string, queries int, f func(ctx context.Context, n int) (truncated bool)) {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				took, spent := make([]time.Duration, queries), schematest.CPU(b, backend)
				cut := 0
				for i := range took {
					began := time.Now()
					truncated := f(b.Context(), i)
					took[i] = time.Since(began)
					if truncated {
						cut++
					}
				}
				b.ReportMetric(float64(100*cut)/float64(queries), "truncated-%")
				b.ReportMetric(float64((schematest.CPU(b, backend)-spent).Microseconds())/1000/float64(queries), "server-cpu-ms")
				slices.Sort(took)
				for _, p := range []int{50, 99} {
					b.ReportMetric(float64(took[queries*p/100].Microseconds())/1000, fmt.Sprintf("p%d-ms", p))
				}
				b.ReportMetric(float64(took[queries-1].Microseconds())/1000, "max-ms")
				b.ReportMetric(0, "ns/op")
			}
		})
	}
	measure("neighbours", 2000, func(ctx context.Context, n int) bool {
		g, err := Neighbourhood(ctx, pool, some(n), 1, 200)
		require.NoError(b, err)
		return g.Truncated
	})
	measure("depth-2", 300, func(ctx context.Context, n int) bool {
		g, err := Neighbourhood(ctx, pool, some(n), 2, 1000)
		require.NoError(b, err)
		return g.Truncated
	})
	found := 0
	measure("paths-4", 300, func(ctx context.Context, n int) bool {
		p, err := ShortestPaths(ctx, pool, some(n), some(n/2), 4, 4000)
		require.NoError(b, err)
		if p.Length > 0 {
			found++
		}
		return p.Truncated
	})
	require.Positive(b, found)
}
