package work

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/ops/health"
)

// file returns the path of an object.
func (f *forgetTest) file(name string) string {
	return filepath.Join(strings.TrimPrefix(f.store.String(), "dir:"), name)
}

// damaged flips a byte of an object. It returns a function that repairs it.
func (f *forgetTest) damaged(name string) (repair func()) {
	f.t.Helper()
	whole, err := os.ReadFile(f.file(name))
	require.NoError(f.t, err)
	flipped := slices.Clone(whole)
	flipped[len(flipped)/3] ^= 4
	require.NoError(f.t, os.WriteFile(f.file(name), flipped, 0o600))
	return func() { require.NoError(f.t, os.WriteFile(f.file(name), whole, 0o600)) }
}

// forgets runs the job that compares one segment with the deletions.
func (f *forgetTest) forgets(number int64) error {
	return runJob(f.archiveTest, &ForgetSegment{quiet[ForgetSegmentArgs](f.archiveTest, f.archive)}, ForgetSegmentArgs{Segment: number})
}

func (f *forgetTest) sweeps(after time.Duration) error {
	return runJob(f.archiveTest, f.sweepWorker(after), SweepArchiveArgs{})
}

// fires reports whether a condition holds.
func (f *forgetTest) fires(condition string) bool {
	f.t.Helper()
	report, err := health.Read(f.t.Context(), f.pool, time.Now(), health.Limits{}, Health(f.archive.Forget))
	require.NoError(f.t, err)
	return slices.ContainsFunc(report.Conditions, func(c health.Condition) bool { return c.Name == condition })
}

func (f *forgetTest) manifests() []archive.Manifest {
	f.t.Helper()
	all, err := archive.Manifests(f.t.Context(), f.store)
	require.NoError(f.t, err)
	return all
}

// TestBadSegmentHoldsNothingBack damages one of two segments. The other one forgets. Deletions are
// kept for the damaged one for two intervals, and not for ever. It is retried after an hour, health
// reports it a day after it was due, and it forgets when it is repaired.
func TestBadSegmentHoldsNothingBack(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(12)
	other, _ := f.sealed(12)
	manifests := f.manifests()
	bad, good := manifests[0], manifests[len(manifests)-1]
	repair := f.damaged(bad.Name)
	f.deletesRecord(2)
	f.deletesRecord(other + 40)
	require.ErrorIs(t, f.forgets(bad.Number), archive.ErrCorrupt)
	first, err := catalog.SegmentsToForget(t.Context(), f.pool, f.archive.Forget, 1000)
	require.NoError(t, err)
	require.NotContains(t, first, bad.Number, "a segment that has just failed must not be due")
	require.NoError(t, f.forget(f.store))
	require.NotContains(t, f.everywhereIn(f.manifests()[len(manifests)-1]), f.records[other+40], good.Name)

	f.exec(`DELETE FROM tombstones`)
	f.exec(`UPDATE deleted_records SET at = at - interval '2 hours'`)
	f.exec(`UPDATE segments SET first_at = first_at - interval '3 hours'`)
	require.NoError(t, f.sweeps(0))
	require.Equal(t, 2, f.count(`SELECT count(*) FROM deleted_records`), "deletions that the damaged segment may need must be kept")
	require.False(t, f.fires("WeirForgetBehind"))
	f.exec(`UPDATE segments SET sealed_at = sealed_at - interval '24 hours' WHERE number = $1`, bad.Number)
	require.False(t, f.fires("WeirForgetBehind"), "a segment that a rebuild has just added must not be overdue")
	f.exec(`UPDATE segments SET synced_at = synced_at - interval '25 hours'`)
	require.True(t, f.fires("WeirForgetBehind"))
	f.exec(`UPDATE segments SET forget_failing_since = forget_failing_since - 2 * interval '1 hour' WHERE forget_failing_since IS NOT NULL`)
	require.NoError(t, f.sweeps(0))
	require.Zero(t, f.count(`SELECT count(*) FROM deleted_records`))
	require.Equal(t, int(bad.Number), f.count(`SELECT number FROM segments WHERE missed_until IS NOT NULL`))
	progress, err := catalog.ReadForgetProgress(t.Context(), f.pool)
	require.NoError(t, err)
	require.Equal(t, [2]int64{1, 1}, [2]int64{progress.Failing, progress.Missed})

	f.due()
	last, err := catalog.SegmentsToForget(t.Context(), f.pool, f.archive.Forget, 1000)
	require.NoError(t, err)
	require.Greater(t, len(last), 1)
	require.Equal(t, bad.Number, last[len(last)-1], "the other segments must come first")
	repair()
	f.deletesRecord(3)
	require.NoError(t, f.forget(f.store))
	require.NotContains(t, f.everywhereIn(f.manifests()[0]), f.records[3])
	require.Zero(t, f.count(`SELECT count(*) FROM segments WHERE forget_failing_since IS NOT NULL OR forget_failed_at IS NOT NULL`))
	require.False(t, f.fires("WeirForgetBehind"))
}

// slowStore is a store whose objects take longer to read than any job may take: a read begins when
// time is left, and ends when none is.
type slowStore struct {
	archive.Store
	expire func()
}

func (s slowStore) Get(ctx context.Context, _ string) (io.ReadCloser, error) {
	s.expire()
	<-ctx.Done()
	return nil, ctx.Err()
}

// outOfTime is a context whose deadline passes when the test says so.
type outOfTime struct {
	context.Context
	over chan struct{}
}

func (e outOfTime) Done() <-chan struct{} { return e.over }

func (e outOfTime) Err() error {
	select {
	case <-e.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// TestSlowSegmentIsAFailure compares a segment for longer than a job may take, which is recorded as
// a failure. It then stops the process during a comparison, which is not.
func TestSlowSegmentIsAFailure(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(3)
	compares := func(ctx context.Context, expire func()) error {
		in := f.archive
		in.Store = slowStore{f.store, expire}
		return (&ForgetSegment{quiet[ForgetSegmentArgs](f.archiveTest, in)}).Work(rivertest.WorkContext(ctx, f.queue),
			&river.Job[ForgetSegmentArgs]{JobRow: &rivertype.JobRow{}, Args: ForgetSegmentArgs{Segment: f.manifests()[0].Number}})
	}
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, compares(stopped, cancel), context.Canceled)
	require.Zero(t, f.count(`SELECT count(*) FROM segments WHERE forget_failing_since IS NOT NULL`))
	slow := outOfTime{t.Context(), make(chan struct{})}
	require.ErrorIs(t, compares(slow, sync.OnceFunc(func() { close(slow.over) })), context.DeadlineExceeded)
	require.Equal(t, 1, f.count(`SELECT count(*) FROM segments WHERE forget_failing_since IS NOT NULL`))
}

// TestForgetAgain has all segments compared at once, including those that failed. None of them
// counts as overdue because of that.
func TestForgetAgain(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(40)
	require.NoError(t, f.forget(f.store))
	f.deletesRecord(3)
	f.exec(`UPDATE segments SET sealed_at = sealed_at - interval '1 year', synced_at = synced_at - interval '1 year'`)
	f.exec(`UPDATE segments SET forget_failing_since = now(), forget_failed_at = now() WHERE number = (SELECT min(number) FROM segments)`)
	none, err := catalog.SegmentsToForget(t.Context(), f.pool, f.archive.Forget, 1000)
	require.NoError(t, err)
	require.Empty(t, none)
	n, err := catalog.ForgetAgain(t.Context(), f.pool)
	require.NoError(t, err)
	require.Equal(t, int(n), len(f.manifests()))
	require.False(t, f.fires("WeirForgetBehind"))
	require.NoError(t, f.forget(f.store))
	f.complete()
	require.Zero(t, f.count(`SELECT count(*) FROM segments WHERE forget_again OR forget_failing_since IS NOT NULL`))
}

// TestForgettingNeverBeginsByItself compares no segment if the interval is a century, as for
// WEIR_ARCHIVE_FORGET=never. The deletions are remembered, also without their tombstones, until all
// segments are compared on demand.
func TestForgettingNeverBeginsByItself(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.archive.Forget = 100 * 365 * day
	f.sealed(40)
	f.deletesRecord(3)
	f.exec(`
UPDATE segments
SET sealed_at = sealed_at - interval '1 year', first_at = first_at - interval '1 year', synced_at = synced_at - interval '1 year'`)
	f.exec(`UPDATE deleted_records SET at = at - interval '300 days'`)
	f.exec(`DELETE FROM tombstones`)
	none, err := catalog.SegmentsToForget(t.Context(), f.pool, f.archive.Forget, 1000)
	require.NoError(t, err)
	require.Empty(t, none)
	require.False(t, f.fires("WeirForgetBehind"))
	dropped, err := catalog.DropDeletedRecords(t.Context(), f.pool, f.archive.Forget, 1000)
	require.NoError(t, err)
	require.Zero(t, dropped)

	_, err = catalog.ForgetAgain(t.Context(), f.pool)
	require.NoError(t, err)
	require.NoError(t, f.forget(f.store))
	f.complete()
}

// everywhereIn returns the records of a segment.
func (f *forgetTest) everywhereIn(m archive.Manifest) map[string]bool {
	f.t.Helper()
	found := map[string]bool{}
	segment, err := archive.FetchSegment(f.t.Context(), f.store, m)
	require.NoError(f.t, err)
	for record, err := range segment.Records() {
		require.NoError(f.t, err)
		found[string(record)] = true
	}
	return found
}

// TestDamagedVersionHoldsNothingBack damages the last version of one segment. Its earlier version
// is kept, and those of the others are deleted.
func TestDamagedVersionHoldsNothingBack(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(40)
	for n := range 7 {
		f.deletes(authorOf(n), 200)
	}
	f.gone = map[string]bool{}
	old := f.manifests()
	require.Greater(t, len(old), 2)
	require.NoError(t, f.forget(f.store))
	f.damaged(f.manifests()[1].Name)
	require.ErrorIs(t, f.sweeps(25*time.Hour), archive.ErrCorrupt)
	for i, m := range old {
		_, err := f.store.Stat(t.Context(), m.Name)
		if i == 1 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, archive.ErrNotFound)
	}
}

// damaging is a store that flips a byte of the next segment that it stores.
type damaging struct {
	archive.Store
	left int
}

func (d *damaging) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error {
	if d.left == 0 || !strings.HasSuffix(name, ".seg.zst") {
		return d.Store.Put(ctx, name, content, size)
	}
	d.left--
	b, err := io.ReadAll(content)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 8
	return d.Store.Put(ctx, name, bytes.NewReader(b), size)
}

// TestDamagedOnTheWay damages a new version of a segment while it is stored, and another one before
// the database switches to it. Neither counts: the segment stays as it was, and the first version
// is stored again.
func TestDamagedOnTheWay(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(3)
	f.deletesRecord(1)
	require.ErrorIs(t, f.forget(&damaging{f.store, 1}), archive.ErrCorrupt)
	f.kept()
	require.Zero(t, f.count(`SELECT max(rewritten) FROM segments`))
	f.due()
	require.NoError(t, f.forget(f.store))
	f.complete()

	f.deletesRecord(2)
	f.due()
	f.killedAt("forget: manifest stored", func() error { return f.forget(f.store) })
	repair := f.damaged(f.manifests()[0].Name)
	f.due()
	require.ErrorIs(t, f.forget(f.store), archive.ErrCorrupt)
	require.Equal(t, 1, f.count(`SELECT max(rewritten) FROM segments`))
	repair()
	f.due()
	require.NoError(t, f.forget(f.store))
	f.complete()
}

// TestDamagedIndexOfAuthors damages the index of a compared segment in several ways. The next
// comparison writes the index again, and deleted records are forgotten.
func TestDamagedIndexOfAuthors(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	f.sealed(3)
	require.NoError(t, f.forget(f.store))
	for n, damage := range []func(index []byte) []byte{
		func(index []byte) []byte { index[2] ^= 1; return index },              // a hash is damaged
		func(index []byte) []byte { index[len(index)-1] ^= 1; return index },   // the checksum is damaged
		func(index []byte) []byte { return index[:len(index)-5] },              // a hash is missing
		func([]byte) []byte { return nil },                                     // empty
		func(index []byte) []byte { return append(index, make([]byte, 5)...) }, // trailing bytes
	} {
		name := f.file(archive.AuthorsName(f.manifests()[0].Name))
		index, err := os.ReadFile(name)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(name, damage(index), 0o600))
		f.deletesRecord(n)
		f.due()
		require.NoError(t, f.forget(f.store))
		f.complete()
		authors, err := archive.ReadAuthors(t.Context(), f.store, f.manifests()[0])
		require.NoError(t, err)
		require.Len(t, authors, 7)
	}
	// If the segment is damaged as well, no index is written.
	m := f.manifests()[0]
	index := f.damaged(archive.AuthorsName(m.Name))
	repair := f.damaged(m.Name)
	f.deletesRecord(6)
	f.due()
	require.ErrorIs(t, f.forget(f.store), archive.ErrCorrupt)
	_, err := f.store.Stat(t.Context(), archive.AuthorsName(m.Name))
	require.ErrorIs(t, err, archive.ErrNotFound)
	repair()
	index()
	f.due()
	require.NoError(t, f.forget(f.store))
	f.complete()
}

// lists stores n lists with an account each, and one account that two of them name.
func (f *forgetTest) lists(n int) archive.Forgetting {
	f.t.Helper()
	want := archive.Forgetting{}
	for i := range n {
		one := archive.Forgotten{DID: fmt.Sprintf("did:plc:%d", i), Until: minute(i), Reason: archive.ReasonDeleted}
		twice := archive.Forgotten{DID: "did:plc:twice", Until: minute((i + 3) % n), Reason: archive.ReasonErased}
		_, err := archive.PutForgotten(f.t.Context(), f.store, []archive.Forgotten{one, twice})
		require.NoError(f.t, err)
		want[one.DID] = one
		if twice.Until.After(want[twice.DID].Until) {
			want[twice.DID] = twice
		}
	}
	return want
}

// TestKilledInJoin fails each call of the store while lists are joined. At any time the lists name
// every account up to its latest time. A reader that listed them before reads the same.
func TestKilledInJoin(t *testing.T) {
	t.Parallel()
	for failAt := 1; ; failAt++ {
		failed := false
		for _, after := range []bool{false, true} {
			f := newForgetTest(t)
			want := f.lists(5)
			later := time.Now().Add(time.Hour)
			require.NoError(t, archive.JoinForgotten(t.Context(), f.store, later, 6))
			require.NoError(t, archive.JoinForgotten(t.Context(), f.store, time.Now().Add(-time.Hour), 5))
			lists, err := archive.ForgottenLists(t.Context(), f.store)
			require.NoError(t, err)
			require.Len(t, lists, 5, "the lists are neither many nor old enough to be joined")
			err = archive.JoinForgotten(t.Context(), &faulty{Store: f.store, failAt: failAt, after: after}, later, 5)
			if err != nil {
				failed = true
				require.ErrorIs(t, err, errKilled)
			}
			got, err := archive.ReadForgotten(t.Context(), f.store)
			require.NoError(t, err)
			require.Equal(t, want, got)
			late := &lateReader{Store: f.store, meanwhile: func() {
				require.NoError(t, archive.JoinForgotten(t.Context(), f.store, later, 1))
			}}
			got, err = archive.ReadForgotten(t.Context(), late)
			require.NoError(t, err)
			require.Equal(t, want, got)
			lists, err = archive.ForgottenLists(t.Context(), f.store)
			require.NoError(t, err)
			require.Len(t, lists, 1)
		}
		if !failed {
			require.Greater(t, failAt, 11, "five are read, one is written and read, five are deleted")
			return
		}
	}
}

// TestUnreadableList damages one of many lists. Health reports it, nothing is read in its place,
// and the others are joined. It counts again when it is repaired.
func TestUnreadableList(t *testing.T) {
	t.Parallel()
	f := newForgetTest(t)
	want := f.lists(65)
	require.NoError(t, f.sweeps(0))
	require.False(t, f.fires("WeirForgottenLists"))
	lists, err := archive.ForgottenLists(t.Context(), f.store)
	require.NoError(t, err)
	require.Len(t, lists, 65)
	repair := f.damaged(lists[7].Name)
	require.ErrorIs(t, f.sweeps(25*time.Hour), archive.ErrCorrupt)
	require.True(t, f.fires("WeirForgottenLists"))
	require.Equal(t, 1, f.count(`SELECT count(*) FROM unreadable_lists WHERE name = '`+lists[7].Name+`' AND error LIKE '%hash%'`))
	_, err = archive.ReadForgotten(t.Context(), f.store)
	require.ErrorIs(t, err, archive.ErrCorrupt, "reading must fail, or the accounts on the list would be shown")
	lists, err = archive.ForgottenLists(t.Context(), f.store)
	require.NoError(t, err)
	require.Len(t, lists, 2)
	repair()
	require.NoError(t, f.sweeps(25*time.Hour))
	require.False(t, f.fires("WeirForgottenLists"))
	got, err := archive.ReadForgotten(t.Context(), f.store)
	require.NoError(t, err)
	require.Equal(t, want, got)

	f.deletes("did:plc:1", 1)
	f.exec(`INSERT INTO forgotten (did, until, reason, at) VALUES ('did:plc:8', now(), 'deleted', now() - interval '2 hours')`)
	require.True(t, f.fires("WeirForgottenLists"), "the condition must hold while a deletion is on no list")
	require.NoError(t, runJob(f.archiveTest, &ListForgotten{quiet[ListForgottenArgs](f.archiveTest, f.archive)}, ListForgottenArgs{}))
	require.False(t, f.fires("WeirForgottenLists"))
}

// lateReader calls a function between its listing and its first read.
type lateReader struct {
	archive.Store
	meanwhile func()
}

func (l *lateReader) Get(ctx context.Context, name string) (io.ReadCloser, error) {
	if l.meanwhile != nil {
		l.meanwhile()
		l.meanwhile = nil
	}
	return l.Store.Get(ctx, name)
}
