//go:build clickhouse

package clickhouse

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/dir"
	"github.com/weir-social/weir/internal/clickhouse/clickhousetest"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/workers"
)

var errLost = errors.New("lost")

// lossy loses the responses to inserts, or the inserts themselves.
type lossy struct {
	mu           sync.Mutex
	before, lost bool
	inserts      int
}

func (l *lossy) set(before, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.lost = before, lost
}

func (l *lossy) RoundTrip(r *http.Request) (*http.Response, error) {
	l.mu.Lock()
	insert := strings.Contains(r.URL.RawQuery, "INSERT")
	before, lost := insert && l.before, insert && l.lost
	if insert && !before {
		l.inserts++
	}
	l.mu.Unlock()
	if before {
		return nil, errLost
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err == nil && lost {
		return nil, errors.Join(errLost, response.Body.Close())
	}
	return response, err
}

// indexTest is an archive with a ClickHouse server that has a view in which a duplicate would count
// twice.
type indexTest struct {
	t       *testing.T
	pool    *pgxpool.Pool
	store   archive.Store
	queue   *river.Client[pgx.Tx]
	worker  *IndexSegment
	server  *clickhousetest.Server
	lossy   *lossy
	records []string
	last    archive.Manifest
}

func newIndexTest(t *testing.T) *indexTest {
	t.Helper()
	store, err := dir.New(t.TempDir())
	require.NoError(t, err)
	i := &indexTest{t: t, pool: schematest.New(t), store: store, server: clickhousetest.Start(t), lossy: &lossy{}}
	i.queue, err = workers.Queue(i.pool, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	index, err := New(i.server.URL, i.lossy)
	require.NoError(t, err)
	require.NoError(t, index.Create(t.Context()))
	i.worker = &IndexSegment{pool: i.pool, store: store, index: index, rows: func(m archive.Manifest, s *archive.Segment) ([]Row, error) {
		var rows []Row
		for record, err := range s.Records() {
			if err != nil {
				return nil, err
			}
			rows = append(rows, Row{ID: archive.NewID(string(record)), Source: m.Stream, Body: string(record), Position: uint32(len(rows))})
		}
		return rows, nil
	}}
	i.ask(`CREATE MATERIALIZED VIEW sums ENGINE = SummingMergeTree ORDER BY body AS SELECT body, toUInt64(1) AS n FROM events`)
	return i
}

func (i *indexTest) ask(sql string) string {
	i.t.Helper()
	return i.server.Ask(i.t, sql)
}

func (i *indexTest) exec(sql string, args ...any) {
	i.t.Helper()
	_, err := i.pool.Exec(i.t.Context(), sql, args...)
	require.NoError(i.t, err)
}

func (i *indexTest) count(sql string) (n int) {
	i.t.Helper()
	require.NoError(i.t, i.pool.QueryRow(i.t.Context(), sql).Scan(&n))
	return n
}

// write stores a segment with these records, and returns what describes the file.
func (i *indexTest) write(records []string, name func(archive.Sum) archive.Manifest) archive.Manifest {
	i.t.Helper()
	var file bytes.Buffer
	w, err := archive.NewWriter(&file)
	require.NoError(i.t, err)
	for _, record := range records {
		require.NoError(i.t, w.Add([]byte(record)))
	}
	sum, err := w.Close()
	require.NoError(i.t, err)
	m := name(sum)
	require.NoError(i.t, i.store.Put(i.t.Context(), m.Name, bytes.NewReader(file.Bytes()), sum.StoredBytes))
	_, err = archive.PutManifest(i.t.Context(), i.store, m)
	require.NoError(i.t, err)
	return m
}

// sealed stores a segment of new records, and returns its number.
func (i *indexTest) sealed() int64 {
	i.t.Helper()
	first := len(i.records)
	for range 48 {
		i.records = append(i.records, fmt.Sprintf("record %d", len(i.records)))
	}
	number, err := catalog.NextSegment(i.t.Context(), i.pool)
	require.NoError(i.t, err)
	i.last = i.write(i.records[first:], func(sum archive.Sum) archive.Manifest {
		return archive.NewManifest(number, "s", "w", sum, time.Now(), time.Now())
	})
	require.NoError(i.t, catalog.RestoreSegment(i.t.Context(), i.pool, i.last, i.store.String(), time.Now()))
	return number
}

// rewritten stores the last segment without a record.
func (i *indexTest) rewritten(without int) {
	i.t.Helper()
	remaining := slices.Delete(slices.Clone(i.records), without, without+1)
	next := i.write(remaining, func(sum archive.Sum) archive.Manifest { return i.last.Rewrite(sum, time.Now()) })
	require.NoError(i.t, catalog.ReplaceSegment(i.t.Context(), i.pool, next))
}

func (i *indexTest) index(segment int64) error {
	return i.worker.Work(rivertest.WorkContext(i.t.Context(), i.queue), &river.Job[IndexSegmentArgs]{
		JobRow: &rivertype.JobRow{}, Args: IndexSegmentArgs{Segment: segment},
	})
}

// settled makes the last attempts old enough to be settled.
func (i *indexTest) settled() {
	i.exec(`UPDATE segments SET index_begun_at = index_begun_at - $1::interval`, Settle)
}

// once checks that every record is in ClickHouse once, in the table and in the view.
func (i *indexTest) once() {
	i.t.Helper()
	want := fmt.Sprint(len(i.records))
	require.Equal(i.t, want+"\t"+want, i.ask(`SELECT count(), uniqExact(body) FROM events`))
	require.Equal(i.t, want, i.ask(`SELECT sum(n) FROM sums`))
	require.Zero(i.t, i.count(`SELECT count(*) FROM segments WHERE indexed_at IS NULL`))
}

// TestIndexAtMostOnce ends the job at each of its steps, and has several workers run it at once.
func TestIndexAtMostOnce(t *testing.T) {
	t.Parallel()
	i := newIndexTest(t)
	snoozed := func(segment int64) {
		t.Helper()
		require.ErrorContains(t, i.index(segment), "JobSnoozeError", "nothing is inserted until the attempt is settled")
	}

	lost := i.sealed()
	i.lossy.set(false, true)
	require.ErrorIs(t, i.index(lost), ErrAmbiguous)
	i.lossy.set(false, false)
	snoozed(lost)
	i.settled()
	require.NoError(t, i.index(lost), "the rows must be found in the table by their count")
	require.Equal(t, 1, i.lossy.inserts)

	before := i.sealed() // the process dies after the mark
	i.lossy.set(true, false)
	require.Error(t, i.index(before))
	i.lossy.set(false, false)
	i.settled()
	require.NoError(t, i.index(before))

	unmarked := i.sealed() // the process dies after the insert, before the segment is marked as indexed
	i.exec(`CREATE FUNCTION killed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'killed'; END $$`)
	i.exec(`CREATE TRIGGER killed BEFORE UPDATE OF indexed_at ON segments FOR EACH ROW EXECUTE FUNCTION killed()`)
	require.ErrorContains(t, i.index(unmarked), "killed")
	i.exec(`DROP TRIGGER killed ON segments`)
	snoozed(unmarked)
	i.settled()
	require.NoError(t, i.index(unmarked))

	away := i.sealed()
	i.server.Kill(t)
	require.ErrorIs(t, i.index(away), ErrAway)
	i.sealed() // the archive grows
	i.server.Start(t)
	require.NoError(t, i.index(away))

	var both sync.WaitGroup
	next, err := unindexedSegments(t.Context(), i.pool, 1)
	require.NoError(t, err)
	for range 4 {
		both.Go(func() { i.index(next[0]) }) // some are snoozed
	}
	both.Wait()
	i.settled()
	require.NoError(t, i.index(next[0]))
	i.once()
}

// TestIndexAgain inserts the rows that the table lost, and fills an emptied table, while an attempt
// from before ends late.
func TestIndexAgain(t *testing.T) {
	t.Parallel()
	i := newIndexTest(t)
	segment := i.sealed()
	require.NoError(t, i.index(segment))
	m := marks{DB: i.pool}
	attempt, _, err := m.Begun(t.Context(), segment)
	require.NoError(t, err)
	for range 2 { // an empty table, then a whole one
		_, err = indexAgain(t.Context(), i.pool)
		require.NoError(t, err)
		if i.lossy.inserts == 1 {
			require.NoError(t, i.worker.index.Empty(t.Context()))
			i.ask(`DROP TABLE sums`)
			i.ask(`CREATE MATERIALIZED VIEW sums ENGINE = SummingMergeTree ORDER BY body AS SELECT body, toUInt64(1) AS n FROM events`)
		}
		require.NoError(t, m.Indexed(t.Context(), segment, attempt), "end the attempt from before")
		require.Equal(t, 1, i.count(`SELECT count(*) FROM segments WHERE indexed_at IS NULL`))
		require.ErrorContains(t, i.index(segment), "JobSnoozeError")
		i.settled()
		require.NoError(t, i.index(segment))
		i.once()
	}
	require.Equal(t, 2, i.lossy.inserts)
}

// TestIndexForgets replaces the rows of a rewritten segment, while an attempt with the rows of the
// previous version ends late.
func TestIndexForgets(t *testing.T) {
	t.Parallel()
	i := newIndexTest(t)
	segment := i.sealed()
	require.NoError(t, i.index(segment))
	m := marks{DB: i.pool}
	attempt, _, err := m.Begun(t.Context(), segment)
	require.NoError(t, err)
	i.rewritten(3)
	require.NoError(t, m.Indexed(t.Context(), segment, attempt), "end the attempt from before")
	begun, err := m.Begin(t.Context(), segment, attempt)
	require.NoError(t, err)
	require.False(t, begun, "no attempt may begin with the rows from before")
	require.ErrorContains(t, i.index(segment), "JobSnoozeError")
	i.settled()
	i.ask(`SYSTEM STOP MERGES events`) // stops deletions too
	for range 3 {
		require.ErrorContains(t, i.index(segment), "JobSnoozeError", "the server deletes rows later")
		require.Equal(t, "0", i.ask(`SELECT count() FROM events WHERE segment > 4294967295`))
	}
	require.Equal(t, "1", i.ask(`SELECT count() FROM system.mutations`), "the rows must be deleted once, however often the job looks")
	i.ask(`SYSTEM START MERGES events`)
	eventually.True(t, func() bool { return i.index(segment) == nil }, 100*time.Millisecond)
	want := fmt.Sprint(len(i.records) - 1)
	require.Equal(t, want+"\t"+want, i.ask(`SELECT count(), uniqExact(body) FROM events`))
	require.Equal(t, "0", i.ask(`SELECT count() FROM events WHERE body = '`+i.records[3]+`'`))
	require.Equal(t, "1", i.ask(`SELECT count(DISTINCT bitAnd(segment, 4294967295)) FROM events`))
	require.Zero(t, i.count(`SELECT count(*) FROM segments WHERE indexed_at IS NULL`))
	i.exec(`UPDATE segments SET indexed_at = NULL`) // as if a process died before it marked the segment
	i.settled()
	require.NoError(t, i.index(segment), "the rows of this version are not deleted")
	require.Equal(t, want+"\t"+want, i.ask(`SELECT count(), uniqExact(body) FROM events`))
}
