package e2e

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	// soakRate is the number of events per second. Nine tenths are posts, and all
	// of them are stored.
	soakRate = 500
	// soakVerdict is the shortest run with a verdict: caches fill and the first
	// vacuums run in the first minutes.
	soakVerdict = 4 * time.Minute
)

// TestSoak sends a steady stream to `weir serve` for the time in -soak, and
// requires that only the stored data grows. It compares the mean of the run's
// last third with that of the second; the first third is a warm-up. Without
// -soak it runs for seconds, which only shows that the figures can be read.
//
// Posts are kept for the whole run, and finished jobs for an hour. So tables
// grow, and their bloat is measured in bytes per row.
func TestSoak(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	length := *soakLength
	every := min(30*time.Second, length/6)
	url, pool := benchDatabase(t, benchServer(t))
	n, err := simnet.New(simnet.Config{Seed: 6, History: 5000})
	require.NoError(t, err)
	require.NoError(t, n.Start("127.0.0.1:0"))
	t.Cleanup(n.Stop)
	serve := start(t, append(alone(n, url), "WEIR_JOB_TIMEOUT=1m", "WEIR_RESCUE_AFTER=5m", "WEIR_QUIET_AFTER=5s"), "serve")
	at := serve.opsURL(t)
	stop := live(t, n, soakRate)
	tick := time.NewTicker(every)
	defer tick.Stop()
	readings := []reading{readSoak(t, pool, at)}
	for range length / every {
		<-tick.C
		readings = append(readings, readSoak(t, pool, at))
	}
	stop()
	began := time.Now()
	readsAll(t, pool, n)
	eventually.True(t, func() bool { return processed(pool) }, 20*time.Millisecond, "Weir has not kept up")
	behind := time.Since(began)
	serve.signal(syscall.SIGTERM)
	require.Zero(t, serve.wait(t, time.Minute))

	problems := reportSoak(t, readings,
		fmt.Sprintf("%s, %d events, %d a second, on %d cores; everything stored and counted %s after the last event",
			length, len(n.Log().Entries()), soakRate, runtime.NumCPU(), behind.Round(10*time.Millisecond)), length >= soakVerdict)
	if length >= soakVerdict {
		require.Empty(t, problems, strings.Join(problems, "\n"))
	}
}

// reading holds the figures of one moment.
type reading struct {
	at      time.Time
	metrics map[string]*dto.MetricFamily
	tables  map[string]tableSize // by group
	wal     float64              // bytes ever written
}

// tableSize is the size of a group of tables.
type tableSize struct{ bytes, live, dead float64 }

func readSoak(t testing.TB, pool *pgxpool.Pool, opsURL string) reading {
	t.Helper()
	r := reading{at: time.Now(), tables: map[string]tableSize{}}
	response, err := http.Get(opsURL + "/metrics") // of the test's own process
	require.NoError(t, err)
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	r.metrics, err = parser.TextToMetricFamilies(response.Body)
	require.NoError(t, err)
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8`).Scan(&r.wal))
	rows, err := pool.Query(t.Context(), `
SELECT CASE WHEN relname LIKE 'posts%' THEN 'posts' WHEN relname LIKE 'shares%' THEN 'shares' WHEN relname = 'river_job' THEN 'jobs'
            WHEN relname IN ('links', 'tombstones', 'accounts') THEN relname ELSE 'small' END,
       sum(pg_total_relation_size(relid))::float8, sum(n_live_tup)::float8, sum(n_dead_tup)::float8
FROM pg_stat_user_tables
GROUP BY 1`)
	require.NoError(t, err)
	var group string
	var size tableSize
	_, err = pgx.ForEachRow(rows, []any{&group, &size.bytes, &size.live, &size.dead}, func() error {
		r.tables[group] = size
		return nil
	})
	require.NoError(t, err)
	return r
}

// value returns a gauge or a counter without labels; 0 if there is none.
func (r reading) value(name string) float64 {
	f := r.metrics[name]
	if f == nil || len(f.GetMetric()) == 0 {
		return 0
	}
	m := f.GetMetric()[0]
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

// since is the growth of a counter.
func (r reading) since(before reading, name string) float64 {
	return r.value(name) - before.value(name)
}

// quantile returns a quantile of a histogram's observations since the previous
// reading, in milliseconds, interpolated linearly within a bucket.
func (r reading) quantile(before reading, name string, q float64) float64 {
	now, then := buckets(r.metrics[name]), buckets(before.metrics[name])
	if len(now) == 0 {
		return 0
	}
	grown := func(i int) float64 {
		n := float64(now[i].GetCumulativeCount())
		if i < len(then) {
			n -= float64(then[i].GetCumulativeCount())
		}
		return n
	}
	rank := q * grown(len(now)-1)
	low, below := 0.0, 0.0
	for i, b := range now {
		if n := grown(i); n >= rank && n > below {
			return 1000 * (low + (min(b.GetUpperBound(), 2*low+1)-low)*(rank-below)/(n-below)) // the last bucket has no upper bound
		} else {
			low, below = b.GetUpperBound(), n
		}
	}
	return 1000 * low
}

func buckets(f *dto.MetricFamily) []*dto.Bucket {
	if f == nil || len(f.GetMetric()) == 0 {
		return nil
	}
	return f.GetMetric()[0].GetHistogram().GetBucket()
}

// gauge is a figure of an interval between two readings.
type gauge struct {
	name string
	read func(before, now reading) float64
	most float64 // highest ratio of the last third's mean to the second's; 0: no limit
	free float64 // values up to this one are not checked
}

func soakGauges() []gauge {
	const mb = 1 << 20
	metric := func(name string, unit float64) func(reading, reading) float64 {
		return func(_, now reading) float64 { return now.value(name) / unit }
	}
	quantile := func(name string, q float64) func(reading, reading) float64 {
		return func(before, now reading) float64 { return now.quantile(before, name, q) }
	}
	perRow := func(group string) func(reading, reading) float64 {
		return func(_, now reading) float64 {
			s := now.tables[group]
			return s.bytes / max(1, s.live)
		}
	}
	const row, ranked = "weir_consumer_event_to_row_seconds", "weir_event_to_ranking_seconds"
	stored := func(before, now reading) float64 { return max(1, now.since(before, "weir_consumer_stored_total")) }
	return []gauge{
		{"posts/s", func(before, now reading) float64 { return stored(before, now) / now.at.Sub(before.at).Seconds() }, 0, 0},
		{"RSS MB", metric("process_resident_memory_bytes", mb), 1.05, 0},
		{"heap MB", metric("go_memstats_heap_inuse_bytes", mb), 1.15, 0},
		{"goroutines", metric("go_goroutines", 1), 1.05, 0},
		{"row p50 ms", quantile(row, 0.5), 1.5, 0},
		{"row p99 ms", quantile(row, 0.99), 1.5, 250},
		{"ranking p50 ms", quantile(ranked, 0.5), 1.5, 0},
		{"ranking p99 ms", quantile(ranked, 0.99), 1.5, 500},
		{"B/post", perRow("posts"), 1.1, 0},
		{"B/share", perRow("shares"), 1.1, 0},
		{"B/tombstone", perRow("tombstones"), 1.1, 0},
		{"B/job", perRow("jobs"), 1.1, 0},
		{"other tables MB", func(_, now reading) float64 { return now.tables["small"].bytes / mb }, 1.2, 2},
		{"dead rows per live", func(_, now reading) float64 {
			var all tableSize
			for _, s := range now.tables {
				all.live, all.dead = all.live+s.live, all.dead+s.dead
			}
			return all.dead / max(1, all.live)
		}, 1.2, 0.1},
		{"WAL B/post", func(before, now reading) float64 { return (now.wal - before.wal) / stored(before, now) }, 1.3, 0},
		{"CPU ms/post", func(before, now reading) float64 {
			return 1000 * now.since(before, "process_cpu_seconds_total") / stored(before, now)
		}, 1.2, 0},
	}
}

// reportSoak prints a line for each reading and a verdict for each figure, and
// returns the figures that have grown.
func reportSoak(t *testing.T, readings []reading, what string, conclusive bool) (problems []string) {
	t.Helper()
	gauges := soakGauges()
	head := []string{"after"}
	for _, g := range gauges {
		head = append(head, g.name)
	}
	series, verdicts := newTable(head...), newTable("figure", "second third", "last third", "ratio", "at most", "verdict")
	values := make([][]float64, len(gauges))
	for i := 1; i < len(readings); i++ {
		cells := []string{readings[i].at.Sub(readings[0].at).Round(time.Second).String()}
		for k, g := range gauges {
			v := g.read(readings[i-1], readings[i])
			values[k] = append(values[k], v)
			cells = append(cells, short(v))
		}
		series.line(cells...)
	}
	for k, g := range gauges {
		third := len(values[k]) / 3
		middle, last := mean(values[k][third:2*third]), mean(values[k][2*third:])
		ratio := last / max(middle, 1e-9)
		verdict := "flat"
		switch {
		case g.most == 0:
			verdict = ""
		case ratio > g.most && last > g.free:
			verdict = "grows"
			problems = append(problems, fmt.Sprintf("%s grows from %s to %s, by more than %.2f", g.name, short(middle), short(last), g.most))
		}
		verdicts.line(g.name, short(middle), short(last), fmt.Sprintf("%.2f", ratio), limit(g), verdict)
	}
	report := what + "\n\n" + verdicts.String() + "\n" + series.String()
	if !conclusive {
		report = "too short for a verdict: " + report
	}
	publish(t, report)
	return problems
}

func limit(g gauge) string {
	switch {
	case g.most == 0:
		return ""
	case g.free > 0:
		return fmt.Sprintf("%.2f, above %s", g.most, short(g.free))
	}
	return fmt.Sprintf("%.2f", g.most)
}

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(1, len(values)))
}

// short formats a figure with few digits.
func short(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}
