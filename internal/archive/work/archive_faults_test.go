package work

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/ops/health"
)

// fullDisk is a directory on a disk with little room. An object that does not fit is written in
// part.
type fullDisk struct {
	archive.Store
	room int64
}

// cut is a reader that returns ENOSPC where the disk is full.
type cut struct {
	io.ReadSeeker
	room int64
}

func (c *cut) Read(b []byte) (int, error) {
	if c.room == 0 {
		return 0, syscall.ENOSPC
	}
	n, err := c.ReadSeeker.Read(b[:min(int64(len(b)), c.room)])
	c.room -= int64(n)
	return n, err
}

func (d *fullDisk) Put(ctx context.Context, name string, content io.ReadSeeker, size int64) error {
	err := d.Store.Put(ctx, name, &cut{content, d.room}, size)
	if err == nil {
		d.room -= size
	}
	return err
}

// TestFullDiskLosesNothing fills the store's disk during each segment and each manifest in turn. A
// partly written file is no object, and everything arrives when there is room again.
func TestFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	refused := 0
	for room := int64(0); ; room += 300 {
		a.add(12)
		require.NoError(t, a.seal())
		before := len(a.stored())
		if err := a.sync(&fullDisk{a.store, room}); err == nil {
			break
		} else {
			require.ErrorIs(t, err, syscall.ENOSPC)
			refused++
		}
		require.Equal(t, before, len(a.stored()), "a manifest names an object that did not fit")
		require.NotZero(t, a.count(`SELECT count(*) FROM archive_open WHERE segment IS NOT NULL`))
		require.NoError(t, filepath.WalkDir(strings.TrimPrefix(a.store.String(), "dir:"), func(path string, _ os.DirEntry, err error) error {
			require.NotContains(t, path, ".tmp-")
			return err
		}))
		require.NoError(t, a.sync(a.store))
	}
	require.Greater(t, refused, 2)
	a.complete()
}

// away is a store that cannot be reached.
type away struct{ archive.Store }

var errAway = errors.New("no route to the store")

func (away) Put(context.Context, string, io.ReadSeeker, int64) error { return errAway }
func (away) Get(context.Context, string) (io.ReadCloser, error)      { return nil, errAway }

// TestUnwritableStoreIsReported shows that health reports a store that has not taken a segment for five minutes.
func TestUnwritableStoreIsReported(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(12)
	require.NoError(t, a.seal())
	require.ErrorIs(t, a.sync(away{a.store}), errAway)
	behind := func() (messages []string) {
		report, err := health.Read(t.Context(), a.pool, time.Now(), health.Limits{}, Health(a.archive.Forget))
		require.NoError(t, err)
		for _, c := range report.Conditions {
			if c.Name == "WeirArchiveBehind" {
				messages = append(messages, c.Message)
			}
		}
		return messages
	}
	require.Empty(t, behind())
	a.exec(`UPDATE segments SET sealed_at = sealed_at - interval '6 minutes'`)
	require.Len(t, behind(), 1)
	require.Contains(t, behind()[0], "has not taken a segment for 6m")
	require.NoError(t, a.sync(a.store))
	require.Empty(t, behind())
}

// TestHourWithoutTheStore adds records in every minute of an hour while the store is away. They
// wait, health reports this after half an hour, and all of them arrive.
func TestHourWithoutTheStore(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.archive.Age = 10 * time.Minute
	behind := func() bool {
		t.Helper()
		report, err := health.Read(t.Context(), a.pool, time.Now(), health.Limits{}, Health(a.archive.Forget))
		require.NoError(t, err)
		for _, c := range report.Conditions {
			if c.Name == "WeirArchiveBehind" {
				return true
			}
		}
		return false
	}
	for minute := range 60 {
		a.exec(`UPDATE archive_open SET arrived_at = arrived_at - interval '1 minute'`)
		a.add(1)
		due, err := catalog.DueStreams(t.Context(), a.pool, a.archive.Bytes, a.archive.Age)
		require.NoError(t, err)
		if len(due) > 0 {
			require.NoError(t, a.seal())
		}
		if minute%10 == 9 {
			require.Equal(t, minute >= 31, behind(), "after %d minutes", minute)
		}
		if numbers, err := catalog.UnsyncedSegments(t.Context(), a.pool); err == nil && len(numbers) > 0 {
			require.ErrorIs(t, a.sync(away{a.store}), errAway)
		}
	}
	require.Equal(t, 60, a.count(`SELECT count(*) FROM archive_open`))
	require.Greater(t, a.count(`SELECT count(*) FROM segments WHERE synced_at IS NULL`), 4)
	require.Empty(t, a.stored())
	a.complete()
	require.False(t, behind())
}

// TestManifestNamesDates checks that a manifest has the earliest and the latest date at which its
// segment's records were created, also if the segment was rewritten. The manifest's folder is the
// day on which the first of them arrived, however late the segment was sealed.
func TestManifestNamesDates(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(3)
	a.exec(`
UPDATE archive_open
SET created_from = '2026-01-01Z'::timestamptz + number * interval '1 day',
    created_to = '2026-02-01Z'::timestamptz - number * interval '1 day'
WHERE number > 1`)
	a.exec(`UPDATE archive_open SET arrived_at = '2026-03-03T23:59:59Z'::timestamptz + number * interval '1 minute'`)
	a.archive.Age = time.Nanosecond
	require.NoError(t, a.seal())
	require.NoError(t, os.RemoveAll(a.archive.Spool))
	require.NoError(t, a.sync(a.store))
	manifests, err := archive.Manifests(t.Context(), a.store)
	require.NoError(t, err)
	require.Len(t, manifests, 1)
	require.Equal(t, "2026-01-03 2026-01-30",
		fmt.Sprint(manifests[0].CreatedFrom.Format(time.DateOnly), " ", manifests[0].CreatedTo.Format(time.DateOnly)))
	require.Contains(t, manifests[0].Name, "s/2026-03-04/", "the first row arrived a minute after that")
	rows, err := catalog.Segments(t.Context(), a.pool)
	require.NoError(t, err)
	require.Equal(t, manifests, rows)
}

// TestMountPointIsNoEmptyArchive covers a disk that is not mounted, so its directory exists and is
// empty. Nothing is written to it and no row is deleted until the disk is back.
func TestMountPointIsNoEmptyArchive(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	a.add(12)
	a.complete()
	root := strings.TrimPrefix(a.store.String(), "dir:")
	require.NoError(t, os.Rename(root, root+"-disk"))
	require.NoError(t, os.Mkdir(root, 0o700))
	a.add(12)
	require.NoError(t, a.seal())
	open := a.count(`SELECT count(*) FROM archive_open`)
	a.exec(`INSERT INTO forgotten (did, until, reason) VALUES ('did:plc:a', now(), 'deleted')`)
	list := func() error {
		return runJob(a, &ListForgotten{quiet[ListForgottenArgs](a, a.archive)}, ListForgottenArgs{})
	}
	require.ErrorContains(t, a.sync(a.store), "mount its disk")
	require.ErrorContains(t, list(), "mount its disk")
	require.Equal(t, open, a.count(`SELECT count(*) FROM archive_open`))
	require.Zero(t, a.count(`SELECT count(*) FROM forgotten WHERE listed_at IS NOT NULL`))
	files, err := os.ReadDir(root)
	require.NoError(t, err)
	require.Empty(t, files)
	require.NoError(t, os.Remove(root))
	require.NoError(t, os.Rename(root+"-disk", root))
	a.complete()
	require.NoError(t, list())
}

// TestDamagedBeforeItsRowsAreDeleted kills a process after it has stored a manifest. Then the
// segment or the manifest is damaged or lost. The rows still exist, so the segment is stored again.
func TestDamagedBeforeItsRowsAreDeleted(t *testing.T) {
	t.Parallel()
	a := newArchiveTest(t)
	root := strings.TrimPrefix(a.store.String(), "dir:")
	damage := func(file string) { require.NoError(t, os.WriteFile(file, []byte("damaged"), 0o600)) }
	remove := func(file string) { require.NoError(t, os.Remove(file)) }
	stores := func() {
		a.killedAt("sync: manifest stored", func() error { return a.sync(a.store) })
	}
	for _, c := range []struct {
		suffix string
		does   func(file string)
	}{{segmentSuffix, damage}, {segmentSuffix, remove}, {".json", damage}} {
		a.add(12)
		require.NoError(t, a.seal())
		stores()
		files, err := filepath.Glob(filepath.Join(root, "s", "*", "*"+c.suffix))
		require.NoError(t, err)
		c.does(files[len(files)-1]) // the file with the highest number
		a.complete()
	}
	a.add(12)
	require.NoError(t, a.seal())
	stores()
	files, err := filepath.Glob(filepath.Join(root, "s", "*", "*"+segmentSuffix))
	require.NoError(t, err)
	damage(files[len(files)-1])
	a.exec(`UPDATE archive_open SET blob = $1`, archive.PackRow(archive.AppendRecord(nil, []byte("other"))))
	require.NoError(t, os.RemoveAll(a.archive.Spool))
	require.ErrorContains(t, a.sync(a.store), "are not those that were sealed")
	require.FileExists(t, files[len(files)-1], "the damaged file must be kept")
}
