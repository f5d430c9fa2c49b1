//go:build clickhouse

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/clickhouse/clickhousetest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

// BenchmarkIndex has the real worker copy sealed posts from the store into ClickHouse. For
// comparison it inserts the same blocks into a table of the same kind without the worker. It
// reports the worker's events per second, their ratio to the rate of the bare inserts, and the
// worker's CPU per event.
func BenchmarkIndex(b *testing.B) {
	const events = 300_000
	server := benchServer(b)
	file, _ := benchRecording(b, simnet.MixPosts, events, newPost)
	database, pool := benchDatabase(b, server)
	env := []string{
		"DATABASE_URL=" + database, "WEIR_RETENTION=0", "WEIR_ARCHIVE=dir:" + b.TempDir(), "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_RESOLVE_LINKS=false",
	}
	ingest := start(b, env, "ingest", "--work=false", file)
	require.Zero(b, ingest.wait(b, 5*time.Minute), ingest.stderr.String())
	work := start(b, env, "work", "--queues", "archive")
	finishes(b, 50*time.Millisecond, func() (int, error) { return tryCount(pool, `SELECT count(*) FROM archive_open`) },
		"not everything is in the store")
	work.kill()

	clickHouse := clickhousetest.Start(b)
	work = start(b, append(env, "WEIR_CLICKHOUSE="+clickHouse.URL), "work", "--queues", "index")
	finishes(b, 50*time.Millisecond, func() (int, error) {
		return tryCount(pool, `SELECT count(*) FROM segments WHERE indexed_at IS NULL`)
	}, "not everything is indexed")
	work.kill()
	const times = `
SELECT extract(epoch FROM (SELECT max(indexed_at) FROM segments WHERE index_attempt > 0) - min(attempted_at))::float8 FROM river_job
WHERE kind = 'index_segment'`
	var took float64
	require.NoError(b, pool.QueryRow(b.Context(), times).Scan(&took))
	ask := func(query string, body []byte) []byte {
		r, err := http.Post(clickHouse.URL+"/?max_block_size=1000000&query="+url.QueryEscape(query), "", bytes.NewReader(body))
		require.NoError(b, err)
		answer, err := io.ReadAll(r.Body)
		require.NoError(b, err)
		require.NoError(b, r.Body.Close())
		require.Equal(b, http.StatusOK, r.StatusCode, string(answer))
		return answer
	}
	require.Equal(b, fmt.Sprintln(events), string(ask(`SELECT count() FROM events`, nil)))
	ask(`CREATE TABLE bare AS events`, []byte{})
	var bare time.Duration
	rows, err := pool.Query(b.Context(), `SELECT number FROM segments`)
	require.NoError(b, err)
	for rows.Next() {
		var number int64
		require.NoError(b, rows.Scan(&number))
		block := ask(fmt.Sprintf(`SELECT * FROM events WHERE segment = %d FORMAT Native`, number), nil)
		began := time.Now()
		ask(`INSERT INTO bare FORMAT Native`, block)
		bare += time.Since(began)
	}
	require.NoError(b, rows.Err())
	cpu := work.cmd.ProcessState.UserTime() + work.cmd.ProcessState.SystemTime()
	b.ReportMetric(events/took, "events/s")
	b.ReportMetric(bare.Seconds()/took, "of-bare")
	b.ReportMetric(cpu.Seconds()/events*1e6, "CPU-µs/event")
	b.ReportMetric(0, "ns/op")
}
