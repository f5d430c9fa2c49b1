package e2e

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/simnet"
)

// BenchmarkArchive measures what the archive costs the stream: the same posts are stored
// without it and with it, in turn, each time in a new database. The ratios are of the
// medians.
func BenchmarkArchive(b *testing.B) {
	const events = 20_000
	turns, err := strconv.Atoi(cmp.Or(os.Getenv("WEIR_BENCH_TURNS"), "10"))
	require.NoError(b, err)
	server := benchServer(b)
	file, _ := benchRecording(b, simnet.MixPosts, events, newPost)
	var wal, lived [2][]float64
	for range turns {
		for with := range 2 {
			url, pool := benchDatabase(b, server)
			env := []string{"DATABASE_URL=" + url, "WEIR_RETENTION=0"}
			if with == 1 {
				env = append(env, "WEIR_ARCHIVE=dir:"+b.TempDir())
			}
			position := func() (at float64) {
				require.NoError(b, pool.QueryRow(b.Context(), `SELECT (pg_current_wal_insert_lsn() - '0/0')::float8`).Scan(&at))
				return at
			}
			_, err := pool.Exec(b.Context(), `CHECKPOINT`)
			require.NoError(b, err)
			before := position()
			p := start(b, env, "ingest", "--work=false", file)
			require.Zero(b, p.wait(b, 5*time.Minute), p.stderr.String())
			wal[with] = append(wal[with], (position()-before)/events)
			lived[with] = append(lived[with], p.lived.Seconds()/events*1e6)
			var open int
			require.NoError(b, pool.QueryRow(b.Context(), `SELECT coalesce(sum(records), 0) FROM archive_open`).Scan(&open))
			require.Equal(b, with*events, open)
			pool.Close()
		}
	}
	median := func(values []float64) float64 {
		slices.Sort(values)
		return values[len(values)/2]
	}
	b.ReportMetric(median(wal[0]), "WAL-B/event")
	b.ReportMetric(median(lived[0]), "µs/event")
	b.ReportMetric(median(wal[1])/median(wal[0]), "WAL-ratio")
	b.ReportMetric(median(lived[1])/median(lived[0]), "time-ratio")
	b.ReportMetric(0, "ns/op")
}
