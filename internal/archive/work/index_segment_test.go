//go:build clickhouse

package work

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/clickhouse"
	"github.com/weir-social/weir/internal/archive/clickhouse/clickhousetest"
	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/jobs"
)

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
		return nil, errKilled
	}
	response, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
	if err == nil && lost {
		return nil, errors.Join(errKilled, response.Body.Close())
	}
	return response, err
}

// indexTest is an archive with a ClickHouse server that has a view in which a duplicate would count
// twice.
type indexTest struct {
	*archiveTest
	server *clickhousetest.Server
	lossy  *lossy
}

func newIndexTest(t *testing.T) *indexTest {
	t.Helper()
	i := &indexTest{newArchiveTest(t), clickhousetest.Start(t), &lossy{}}
	index, err := clickhouse.New(i.server.URL, i.lossy)
	require.NoError(t, err)
	require.NoError(t, index.Create(t.Context()))
	i.archive.Index = &Index{ClickHouse: index, Rows: func(m archive.Manifest, s *archive.Segment) ([]clickhouse.Row, error) {
		var rows []clickhouse.Row
		for record, err := range s.Records() {
			if err != nil {
				return nil, err
			}
			rows = append(rows, clickhouse.Row{ID: archive.NewID(string(record)), Source: m.Stream, Body: string(record), Position: uint32(len(rows))})
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

// sealed seals and syncs new records, and returns the number of their segment.
func (i *indexTest) sealed() int64 {
	i.t.Helper()
	i.add(12)
	require.NoError(i.t, i.seal())
	require.NoError(i.t, i.sync(i.store))
	numbers, err := catalog.UnindexedSegments(i.t.Context(), i.pool, 1)
	require.NoError(i.t, err)
	require.Len(i.t, numbers, 1)
	return numbers[0]
}

func (i *indexTest) index(segment int64) error {
	return runJob(i.archiveTest, &IndexSegment{pool: i.pool, archive: i.archive}, jobs.IndexSegment{Segment: segment})
}

// settled makes the last attempts old enough to be settled.
func (i *indexTest) settled() {
	i.exec(`UPDATE segments SET index_begun_at = index_begun_at - $1::interval`, clickhouse.Settle)
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
	require.ErrorIs(t, i.index(lost), clickhouse.ErrAmbiguous)
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
	require.ErrorIs(t, i.index(away), clickhouse.ErrAway)
	i.add(12) // the archive grows
	require.NoError(t, i.seal())
	require.NoError(t, i.sync(i.store))
	i.server.Start(t)
	require.NoError(t, i.index(away))

	var both sync.WaitGroup
	next, err := catalog.UnindexedSegments(t.Context(), i.pool, 1)
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
	marks := catalog.IndexMarks{DB: i.pool}
	attempt, _, err := marks.Begun(t.Context(), segment)
	require.NoError(t, err)
	for range 2 { // an empty table, then a whole one
		_, err = catalog.IndexAgain(t.Context(), i.pool)
		require.NoError(t, err)
		if i.lossy.inserts == 1 {
			require.NoError(t, i.archive.Index.ClickHouse.Empty(t.Context()))
			i.ask(`DROP TABLE sums`)
			i.ask(`CREATE MATERIALIZED VIEW sums ENGINE = SummingMergeTree ORDER BY body AS SELECT body, toUInt64(1) AS n FROM events`)
		}
		require.NoError(t, marks.Indexed(t.Context(), segment, attempt), "end the attempt from before")
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
	f := &forgetTest{i.archiveTest, map[string]bool{}}
	f.archive.Forget, f.archive.Strip = time.Hour, stripOfTest
	segment := i.sealed()
	require.NoError(t, i.index(segment))
	marks := catalog.IndexMarks{DB: i.pool}
	attempt, _, err := marks.Begun(t.Context(), segment)
	require.NoError(t, err)
	f.due()
	f.deletesRecord(3)
	require.NoError(t, f.forget(f.store))
	require.NoError(t, marks.Indexed(t.Context(), segment, attempt), "end the attempt from before")
	begun, err := marks.Begin(t.Context(), segment, attempt)
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
	want := fmt.Sprint(len(f.remaining()))
	require.Equal(t, want+"\t"+want, i.ask(`SELECT count(), uniqExact(body) FROM events`))
	require.Equal(t, "0", i.ask(`SELECT count() FROM events WHERE body = '`+i.records[3]+`'`))
	require.Equal(t, "1", i.ask(`SELECT count(DISTINCT bitAnd(segment, 4294967295)) FROM events`))
	require.Zero(t, i.count(`SELECT count(*) FROM segments WHERE indexed_at IS NULL`))
	i.exec(`UPDATE segments SET indexed_at = NULL`) // as if a process died before it marked the segment
	i.settled()
	require.NoError(t, i.index(segment), "the rows of this version are not deleted")
	require.Equal(t, want+"\t"+want, i.ask(`SELECT count(), uniqExact(body) FROM events`))
}
