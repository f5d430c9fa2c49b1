package e2e

import (
	"cmp"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// BenchmarkNetworkBackfill reads the same events twice: as a stream from its beginning, and from the
// archive into an empty database, while five hundred live events a second arrive. It prints the rates,
// their ratio, and the peak of the memory of the process that reads the archive.
func BenchmarkNetworkBackfill(b *testing.B) {
	past := cmp.Or(*pastEvents, 200_000)
	if *pastEvents == 0 && testing.Short() {
		past = 20_000
	}
	n, err := simnet.New(simnet.Config{
		Seed: 5, Accounts: 20_000, History: past, HistorySpan: 6 * time.Hour, Serving: simnet.Serving{Archive: &simnet.Archive{}},
	})
	require.NoError(b, err)
	require.NoError(b, n.Start("127.0.0.1:0"))
	b.Cleanup(n.Stop)
	n.SealArchive()
	server := benchServer(b)
	for b.Loop() {
		url, pool := benchDatabase(b, server)
		env := func(database, start string) []string {
			return []string{
				"DATABASE_URL=" + database, "WEIR_JETSTREAM=" + n.URL(), "WEIR_START=" + start, "WEIR_LISTEN=127.0.0.1:0", "WEIR_RETENTION=0",
				"WEIR_HISTORY=manual", "WEIR_LOG_LEVEL=warn", "WEIR_DATABASE_LIMIT=100000000000",
			}
		}
		began := time.Now()
		consuming := start(b, env(url, "oldest"), "serve")
		readsAll(b, pool, n)
		consumed := time.Since(began)
		consuming.kill()

		url, pool = benchDatabase(b, server)
		filling := start(b, env(url, "tip"), "serve")
		peak := watchMemory(filling.cmd.Process.Pid)
		ctx, cancel := context.WithCancel(b.Context())
		go n.Live(ctx, 500)
		done := func(sql string) func() bool {
			return func() bool { left, err := tryCount(pool, sql); return err == nil && left == 1 }
		}
		eventually.True(b, done(`SELECT count(*) FROM streams WHERE advanced_at IS NOT NULL`), 20*time.Millisecond)
		began = time.Now()
		_, err := pool.Exec(b.Context(), `SELECT enqueue_network_backfill(interval '7 hours')`)
		require.NoError(b, err)
		sealed := false
		eventually.True(b, func() bool {
			if !sealed && done(`SELECT count(*) FROM network_backfills WHERE problem LIKE 'the newest%'`)() {
				n.SealArchive()
				due, err := pool.Exec(b.Context(), `
					UPDATE river_job SET scheduled_at = now(), state = 'available' WHERE kind = 'backfill_network' AND state = 'scheduled'`)
				sealed = err == nil && due.RowsAffected() == 1 // the job stores why it waits before it does
			}
			return done(`SELECT count(*) FROM network_backfills WHERE completed_at IS NOT NULL`)()
		}, 50*time.Millisecond)
		filled := time.Since(began)
		cancel()
		filling.kill()
		b.ReportMetric(float64(past)/consumed.Seconds(), "consumed/s")
		b.ReportMetric(float64(past)/filled.Seconds(), "filled/s")
		b.ReportMetric(consumed.Seconds()/filled.Seconds(), "ratio")
		b.ReportMetric(peak(), "MB")
	}
}
