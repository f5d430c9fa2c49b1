package work

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/schema"
)

// forgetTest is an archive. Its n-th record is the write of record n by author n modulo 7, sent in
// the n-th minute of a day.
type forgetTest struct {
	*archiveTest
	gone map[string]bool // records that must be forgotten
}

var firstMinute = time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)

func numberOf(record string) (n int) {
	fmt.Sscanf(record, "record %d ", &n) // the test's own records
	return n
}

func authorOf(n int) string { return fmt.Sprintf("did:plc:%d", n%7) }

func minute(n int) time.Time { return firstMinute.Add(time.Duration(n) * time.Minute) }

func newForgetTest(t *testing.T) *forgetTest {
	t.Helper()
	f := &forgetTest{newArchiveTest(t), map[string]bool{}}
	f.archive.Forget, f.archive.Age = time.Hour, time.Nanosecond
	f.archive.Strip = stripOfTest
	return f
}

func stripOfTest(archive.Manifest) (archive.Strip, error) {
	return func(_ archive.Manifest, record []byte, goes func(archive.Said) bool) [][]byte {
		n := numberOf(string(record))
		if goes(archive.Said{Author: authorOf(n), At: minute(n), Collection: "c", Key: fmt.Sprint(n), Revision: fmt.Sprintf("%09d", n)}) {
			return nil
		}
		return [][]byte{record}
	}, nil
}

// sealed archives some records, whose segment is due to be compared. It returns their numbers.
func (f *forgetTest) sealed(rows int) (from, to int) {
	f.t.Helper()
	from = len(f.records)
	f.add(rows)
	require.NoError(f.t, f.seal())
	require.NoError(f.t, f.sync(f.store))
	f.due()
	return from, len(f.records)
}

func (f *forgetTest) due() {
	f.exec(`
UPDATE segments
SET sealed_at = sealed_at - interval '1 hour', forgotten_at = forgotten_at - interval '1 hour',
    forget_failed_at = forget_failed_at - interval '1 hour'`)
}

// deletes deletes an account after its records before n.
func (f *forgetTest) deletes(author string, n int) {
	f.t.Helper()
	b := schema.Batch{Statuses: []schema.Status{{DID: author, Status: "deleted", At: minute(n - 1), Sent: minute(n - 1)}}}
	f.apply(&b)
	b.Statuses[0].Status, b.Statuses[0].At, b.Statuses[0].Sent = "active", minute(n), minute(n)
	f.apply(&b) // the account came back
	for i, record := range f.records {
		if i < n && authorOf(i) == author {
			f.gone[record] = true
		}
	}
}

// deletesRecord deletes one record.
func (f *forgetTest) deletesRecord(n int) {
	f.t.Helper()
	f.apply(&schema.Batch{Deletions: []schema.Deletion{{Key: schema.Key{Collection: "c", DID: authorOf(n), Rkey: fmt.Sprint(n)},
		Rev: fmt.Sprintf("%09d", n+1), At: minute(n + 1)}}})
	f.gone[f.records[n]] = true
}

func (f *forgetTest) apply(b *schema.Batch) {
	f.t.Helper()
	tx, err := f.pool.Begin(f.t.Context())
	require.NoError(f.t, err)
	b.Hooks = []schema.Hook{catalog.Hook("")}
	_, err = b.Apply(f.t.Context(), tx, schema.Lease{})
	require.NoError(f.t, err)
	require.NoError(f.t, tx.Commit(f.t.Context()))
}

func (f *forgetTest) forget(store archive.Store) error {
	numbers, err := catalog.SegmentsToForget(f.t.Context(), f.pool, f.archive.Forget, 1000)
	require.NoError(f.t, err)
	in := f.archive
	in.Store = store
	for _, number := range numbers {
		if err := runJob(f.archiveTest, &ForgetSegment{quiet[ForgetSegmentArgs](f.archiveTest, in)},
			ForgetSegmentArgs{Segment: number}); err != nil {
			return err
		}
	}
	return nil
}

// sweep sweeps as if this much time had passed.
func (f *forgetTest) sweep(after time.Duration) {
	f.t.Helper()
	require.NoError(f.t, runJob(f.archiveTest, f.sweepWorker(after), SweepArchiveArgs{}))
}

// complete checks that the store has exactly the records that remain, each once, and that the
// database knows its segments.
func (f *forgetTest) complete() {
	f.t.Helper()
	require.Equal(f.t, numbersOf(f.remaining()), numbersOf(f.stored()))
	rows, err := catalog.Segments(f.t.Context(), f.pool)
	require.NoError(f.t, err)
	manifests, err := archive.Manifests(f.t.Context(), f.store)
	require.NoError(f.t, err)
	require.Len(f.t, rows, len(manifests))
	for i, m := range manifests {
		require.Equal(f.t, []any{m.Name, m.Sum(), m.Rewritten}, []any{rows[i].Name, rows[i].Sum(), rows[i].Rewritten})
	}
}

func numbersOf(records []string) (numbers []int) {
	for _, record := range records {
		numbers = append(numbers, numberOf(record))
	}
	return numbers
}

func (f *forgetTest) remaining() (records []string) {
	for _, record := range f.records {
		if !f.gone[record] {
			records = append(records, record)
		}
	}
	return records
}

// everywhere returns all records in any file of the store, including files that no manifest names.
func (f *forgetTest) everywhere() map[string]bool {
	f.t.Helper()
	found := map[string]bool{}
	require.NoError(f.t, filepath.WalkDir(strings.TrimPrefix(f.store.String(), "dir:"), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".seg.zst") {
			return err
		}
		file, err := os.ReadFile(path)
		require.NoError(f.t, err)
		d, err := zstd.NewReader(bytes.NewReader(file))
		require.NoError(f.t, err)
		defer d.Close()
		raw, err := io.ReadAll(d)
		require.NoError(f.t, err)
		for len(raw) > 0 {
			n := binary.LittleEndian.Uint32(raw)
			found[string(raw[4:4+n])] = true
			raw = raw[4+n:]
		}
		return nil
	}))
	return found
}

// TestForgets rewrites segments without the records that were deleted, but with those that an
// account wrote after it came back. After a day no deleted record is left in the store.
func TestForgets(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(24)
	before, err := archive.Manifests(t.Context(), f.store)
	require.NoError(t, err)
	f.deletes("did:plc:3", 40)
	f.deletesRecord(4)
	f.deletesRecord(60)
	pending := func() [2]int64 {
		p, err := catalog.ReadForgetProgress(t.Context(), f.pool)
		require.NoError(t, err)
		return [2]int64{p.Accounts, p.Records}
	}
	require.Equal(t, [2]int64{1, 2}, pending())
	require.NoError(t, f.forget(f.store))
	require.Equal(t, [2]int64{0, 0}, pending(), "nothing is left in the segments")
	f.complete()
	require.Less(t, len(f.remaining()), len(f.records)-6)
	require.Contains(t, numbersOf(f.stored()), 45, "a record written after the account came back must be kept")
	require.True(t, f.everywhere()[f.records[4]], "the old version must stay for readers that have begun")

	after, err := archive.Manifests(t.Context(), f.store)
	require.NoError(t, err)
	rows, err := catalog.Segments(t.Context(), f.pool)
	require.NoError(t, err)
	require.Len(t, after, len(before))
	for i, m := range after {
		require.Equal(t, before[i].Position, m.Position)
		require.Equal(t, before[i].Number, m.Number)
		require.Equal(t, [2]any{m.Name, m.SHA256}, [2]any{rows[i].Name, rows[i].SHA256})
		require.NoError(t, archive.Verify(t.Context(), f.store, rows[i]))
	}
	f.sweep(23 * time.Hour)
	require.True(t, f.everywhere()[f.records[4]])
	f.sweep(25 * time.Hour)
	for record := range f.gone {
		require.False(t, f.everywhere()[record])
	}
	f.complete()
	m, s, err := archive.FetchLast(t.Context(), f.store, before[0])
	require.NoError(t, err, "a reader that began before must find the last version")
	require.NoError(t, s.Matches(m))
	require.Equal(t, after[0], m)

	f.deletesRecord(5) // a segment is compared at most once per interval
	delete(f.gone, f.records[5])
	require.NoError(t, f.forget(f.store))
	f.complete()
	f.gone[f.records[5]] = true
	f.due()
	require.NoError(t, f.forget(f.store))
	f.complete()
	require.Equal(t, 1, f.count(`SELECT count(*) FROM segments WHERE rewritten = 2`))
	require.Zero(t, f.count(`SELECT count(*) FROM segments WHERE forgotten_at IS NULL`))
}

// TestForgetsAllOfASegment empties a segment. A rebuild still finds its number and position.
func TestForgetsAllOfASegment(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	_, to := f.sealed(12)
	f.exec(`UPDATE segments SET position = '{"cursor": 7}'`)
	for n := range 7 {
		f.deletes(authorOf(n), to)
	}
	require.NoError(t, f.forget(f.store))
	require.Empty(t, f.stored())
	f.sweep(25 * time.Hour)
	require.Empty(t, f.everywhere())
	manifests, err := archive.Manifests(t.Context(), f.store)
	require.NoError(t, err)
	require.Len(t, manifests, 1)
	require.Zero(t, manifests[0].Records)
	require.JSONEq(t, `{"cursor": 7}`, string(manifests[0].Position))
	f.due()
	require.NoError(t, f.forget(f.store))
	require.Equal(t, 1, f.count(`SELECT max(rewritten) FROM segments`), "there is nothing more to forget")
}

// TestKilledInForget fails each call of the store, before and after it has taken effect, and the
// switch at the end. At any time the store has all records that remain, once. After the next run it
// has nothing else.
func TestKilledInForget(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	for failAt := 1; ; failAt++ {
		failed := false
		for _, after := range []bool{false, true} {
			f := newForgetTest(t)
			_, to := f.sealed(12)
			f.deletes("did:plc:3", 20)
			f.deletesRecord(to - 1)
			err := f.forget(&faulty{Store: f.store, failAt: failAt, after: after})
			failed = failed || err != nil
			if err != nil {
				require.ErrorIs(t, err, errKilled)
			}
			f.kept()
			if failAt%2 == 0 {
				require.NoError(t, os.RemoveAll(f.archive.Spool))
			}
			f.sweep(25 * time.Hour)
			f.kept()
			f.due()
			require.NoError(t, f.forget(f.store))
			f.complete()
		}
		if !failed {
			require.Greater(t, failAt, 7)
			return
		}
	}
}

// kept checks that the store has all records that remain, once.
func (f *forgetTest) kept() {
	f.t.Helper()
	stored, stays := f.stored(), 0
	for i, record := range stored {
		require.True(f.t, i == 0 || numberOf(stored[i-1]) < numberOf(record))
		if !f.gone[record] {
			stays++
		}
	}
	require.Equal(f.t, len(f.remaining()), stays)
}

// TestKilledBeforeTheSwitch lets a day pass between the new manifest and the database's switch to
// it.
func TestKilledBeforeTheSwitch(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	_, to := f.sealed(12)
	f.deletesRecord(to - 2)
	f.killedAt("forget: manifest stored", func() error { return f.forget(f.store) })
	f.kept()
	f.sweep(25 * time.Hour)
	f.kept()
	f.due()
	require.NoError(t, f.forget(f.store))
	f.complete()
	f.sweep(25 * time.Hour)
	for record := range f.gone {
		require.False(t, f.everywhere()[record])
	}
	f.complete()
}

// TestLateForget has two processes write one version of a segment at once with different lists. The
// one whose manifest is put first counts. The records that only the other one knew are removed with
// the next version.
func TestLateForget(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(12)
	f.deletesRecord(3)
	late := &lateStore{Store: f.store, meanwhile: func() {
		f.deletesRecord(4)
		require.NoError(t, f.forget(f.store))
	}}
	require.NoError(t, f.forget(late))
	require.Equal(t, 1, late.calls)
	f.complete()
	f.sweep(25 * time.Hour)
	require.False(t, f.everywhere()[f.records[4]], "the late version is an orphan")
	f.complete()
}

// lateStore calls a function before the first manifest is put.
type lateStore struct {
	archive.Store
	meanwhile func()
	calls     int
}

func (l *lateStore) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error {
	if archive.IsManifest(name) && l.calls == 0 {
		l.calls++
		l.meanwhile()
	}
	return l.Store.Put(ctx, name, content, size)
}

// TestDeletionsAreRemembered shows that a deletion is kept until every segment and every row that
// was not sealed has been compared with it, and no server can send the records again.
func TestDeletionsAreRemembered(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(12)
	sealed := f.records
	f.deletesRecord(1)
	drop := func() int {
		n, err := catalog.DropDeletedRecords(t.Context(), f.pool, f.archive.Forget, 100)
		require.NoError(t, err)
		return n
	}
	f.exec(`CREATE TABLE aside AS TABLE tombstones`)
	f.exec(`DELETE FROM tombstones`)
	f.exec(`UPDATE deleted_records SET at = at - interval '2 hours'`)
	f.exec(`UPDATE segments SET first_at = first_at - interval '3 hours'`)
	require.Zero(t, drop(), "a segment has the record")
	require.NoError(t, f.forget(f.store))
	f.add(1)
	f.exec(`UPDATE archive_open SET arrived_at = arrived_at - interval '3 hours'`)
	require.Zero(t, drop(), "rows that are not sealed may have the record")
	f.exec(`DELETE FROM archive_open`)
	f.exec(`INSERT INTO tombstones TABLE aside`)
	require.Zero(t, drop(), "a server may send the record again")
	f.add(1)
	// the server sends the record again
	f.exec(`UPDATE archive_open SET blob = $1`, archive.PackRow(archive.AppendRecord(nil, []byte(sealed[1]))))
	f.records = sealed
	require.NoError(t, f.seal())
	require.NoError(t, f.sync(f.store))
	f.due()
	require.NoError(t, f.forget(f.store))
	f.complete()
	f.exec(`UPDATE segments SET first_at = first_at - interval '3 hours', forgotten_at = now()`)
	f.exec(`DELETE FROM tombstones`)
	require.Equal(t, 1, drop())
}
