package lexicons

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/schema"
)

// BenchmarkRelease commits the target of 100,000 parked records. It reports how long it takes until
// all are released, the 99th percentile of the consumer's commits meanwhile, and its ratio to the
// percentile without a release.
func BenchmarkRelease(b *testing.B) {
	const parked, each = 100_000, 50 * time.Millisecond
	for b.Loop() {
		w := newBench(b, nil)
		target := key(ontologies, "did:plc:author", 1)
		batch := 0
		// commits commits twenty batches of twenty records per second, until done returns true.
		commits := func(done func() bool) (took []time.Duration) {
			ticks := time.NewTicker(each)
			defer ticks.Stop()
			for ; !done(); <-ticks.C {
				batch++
				var writes []schema.Write
				for i := range 20 {
					writes = append(writes, written(schema.Key{
						Collection: corpora, DID: fmt.Sprintf("did:plc:live%d", i), Rkey: serialTID(batch),
					}, tidOf(1), `,"name":"c"`))
				}
				began := time.Now()
				require.NoError(b, w.commit(w.projections, schema.Batch{Writes: sorted(writes)}))
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			return took
		}
		without := commits(func() bool { return batch == 200 })
		exec := func(sql string, args ...any) {
			_, err := w.pool.Exec(b.Context(), sql, args...)
			require.NoError(b, err)
		}
		exec(`INSERT INTO records (collection, did, rkey, rev, cid, created_at, record)
SELECT $1, 'did:plc:waiter' || i % 1000, '3lbcdefg' || translate(lpad(i::text, 5, '0'), '0189', 'abyz'), '1', 'cid', now(), $2::jsonb
FROM generate_series(0, $3::int - 1) AS i`,
			typeDefs, string(written(key(typeDefs, "", 1), "1", typeDef(target)).Record), parked)
		exec(`INSERT INTO parked (collection, did, rkey, to_collection, to_did, to_rkey, state)
SELECT collection, did, rkey, $2, $3, $4, 'missing' FROM records
WHERE collection = $1`, typeDefs, target.Collection, target.DID, target.Rkey)
		exec(`
INSERT INTO verdicts (collection, did, rkey, cid, schema_hash, verdict, state) SELECT collection, did, rkey, cid, 'hash', 'valid', 'missing'
FROM records
WHERE collection = $1`, typeDefs)
		exec(`ANALYZE`)
		began := time.Now()
		w.write(target, tidOf(1), `,"name":"o"`)
		with := commits(func() bool {
			var left bool
			require.NoError(b, w.pool.QueryRow(b.Context(), `SELECT EXISTS (SELECT FROM parked)`).Scan(&left))
			return !left
		})
		took := time.Since(began)
		p99 := func(took []time.Duration) float64 {
			return float64(took[len(took)*99/100].Microseconds()) / 1000
		}
		b.ReportMetric(took.Seconds(), "s-to-release")
		b.ReportMetric(p99(with), "ms-p99-commit")
		b.ReportMetric(p99(with)/p99(without), "x-without")
		b.ReportMetric(0, "ns/op")
		require.Equal(b, parked, count(b, w.pool, `SELECT count(*) FROM verdicts WHERE collection = $1 AND state = 'projected'`, typeDefs))
		require.Equal(b, parked, count(b, w.pool, `SELECT count(*) FROM record_refs WHERE collection = $1`, typeDefs))
	}
}

// serialTID returns a distinct record key for each number.
func serialTID(n int) string {
	const digits = "234567abcdefghijklmnopqrstuvwxyz"
	key := []byte("3lbcdefg22222")
	for at := len(key) - 1; n > 0; at, n = at-1, n/len(digits) {
		key[at] = digits[n%len(digits)]
	}
	return string(key)
}
