package e2e

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// BenchmarkArchive measures what the archive costs the stream, and how fast a rebuild reads the
// events back. It stores the same posts without an archive, with one, and with one and processing,
// and rebuilds them, which processes them too. The cases run in turn, -turns times (10),
// each time in a new database. The figures are medians and ratios of medians: of an archive to
// none, and of a rebuild to storing and processing. CPU is that of Weir and Postgres together; it
// depends little on the load of the machine, unlike elapsed time.
func BenchmarkArchive(b *testing.B) {
	const events = 40_000
	turns := turns()
	a := newMeasured(b)
	file, _ := benchRecording(b, simnet.MixPosts, events, newPost)
	sealed := "WEIR_ARCHIVE=dir:" + b.TempDir()
	a.seal(sealed, file, events)

	const without, with, processed, rebuilt = 0, 1, 2, 3
	var wal, cpu, lived [4][]float64
	for turn := range turns + 1 {
		for which := range len(wal) {
			url, drop := a.database(binary)
			env := []string{"DATABASE_URL=" + url, "WEIR_RETENTION=0", "WEIR_LOG_LEVEL=warn"}
			command := []string{"ingest", "--work=false", file}
			switch which {
			case with:
				env = append(env, "WEIR_ARCHIVE=dir:"+b.TempDir())
			case processed:
				env, command = append(env, "WEIR_ARCHIVE=dir:"+b.TempDir()), []string{"ingest", file}
			case rebuilt:
				env, command = append(env, sealed), []string{"archive", "rebuild", "--database"}
			}
			var took time.Duration
			of := a.measure(func() *os.ProcessState {
				began := time.Now()
				defer func() { took = time.Since(began) }()
				return a.run(env, binary, command...)
			})
			require.Equal(b, events, a.count(url, `SELECT count(*) FROM records`))
			drop()
			if turn > 0 { // the first one warms up
				wal[which] = append(wal[which], float64(of.wal)/events)
				cpu[which] = append(cpu[which], float64((of.process+of.postgres).Nanoseconds())/1000/events)
				lived[which] = append(lived[which], float64(took.Nanoseconds())/1000/events)
			}
		}
	}
	b.ReportMetric(middle(wal[without]), "WAL-B/event")
	b.ReportMetric(middle(cpu[without]), "CPU-µs/event")
	b.ReportMetric(middle(lived[without]), "µs/event")
	b.ReportMetric(middle(wal[with])/middle(wal[without]), "WAL-ratio")
	b.ReportMetric(middle(cpu[with])/middle(cpu[without]), "CPU-ratio")
	b.ReportMetric(middle(lived[with])/middle(lived[without]), "time-ratio")
	b.ReportMetric(middle(cpu[rebuilt])/middle(cpu[processed]), "rebuild-CPU-ratio")
	b.ReportMetric(middle(lived[rebuilt])/middle(lived[processed]), "rebuild-time-ratio")
	b.ReportMetric(0, "ns/op")
}

// middle returns the median.
func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// seal stores a recording with an archive and waits until the store has all of it.
func (a *against) seal(archive, recording string, events int) {
	a.b.Helper()
	url, drop := a.database(binary)
	env := []string{"DATABASE_URL=" + url, "WEIR_RETENTION=0", "WEIR_ARCHIVE_INTERVAL=1s", archive}
	a.run(env, binary, "ingest", "--work=false", recording)
	require.Equal(a.b, events, a.count(url, `SELECT sum(records) FROM archive_open`))
	work := start(a.b, env, "work", "--queues", "archive")
	eventually.True(a.b, func() bool { return a.count(url, `SELECT count(*) FROM archive_open`) == 0 }, 50*time.Millisecond)
	work.kill()
	drop()
}

func (a *against) count(url, sql string) (n int) {
	a.b.Helper()
	pool, err := pgxpool.New(a.b.Context(), url)
	require.NoError(a.b, err)
	defer pool.Close()
	require.NoError(a.b, pool.QueryRow(a.b.Context(), sql).Scan(&n))
	return n
}
