package e2e

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/eventually"
	"github.com/weir-social/weir/internal/testing/schematest"
)

// fillable returns a folder that can be made full, also once more, and writable again, and the error
// of a write to it while it is full. The folder is on a small disk. If none can be mounted, the
// folder's permissions are removed instead.
func fillable(t *testing.T, folders ...string) (root string, fill, free func(), says string) {
	t.Helper()
	d, err := newDisk(t)
	if err != nil {
		t.Log(err)
		root = t.TempDir()
	} else {
		root = d.dir
	}
	mode := func(mode os.FileMode) {
		require.NoError(t, filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
			if err != nil || !entry.IsDir() {
				return err
			}
			return os.Chmod(path, mode)
		}))
	}
	for _, folder := range folders {
		require.NoError(t, os.Mkdir(filepath.Join(root, folder), 0o700))
	}
	if d == nil {
		return root, func() { mode(0o500) }, func() { mode(0o700) }, "permission denied"
	}
	filler := filepath.Join(root, "filler")
	return root, func() {
			d.fill()
			file, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
			require.NoError(t, err)
			for err == nil {
				_, err = file.Write(make([]byte, 4096))
			}
			require.NoError(t, file.Close())
		}, func() {
			require.NoError(t, os.Remove(filler))
			d.free()
		}, "no space left on device"
}

// TestFullDiskOfTheArchive fills the disk of the archive and of its temporary files while a
// process archives. The stream goes on, and everything arrives when there is space again.
func TestFullDiskOfTheArchive(t *testing.T) {
	schematest.Long(t)
	t.Parallel()
	n := busyNetwork(t)
	root, fill, free, says := fillable(t, "archive", "tmp")
	url := schematest.NewURL(t)
	pool := open(t, url)
	env := append(reads(n, url), "WEIR_ARCHIVE=dir:"+filepath.Join(root, "archive"), "WEIR_ARCHIVE_INTERVAL=1s", "WEIR_RESOLVE_LINKS=false",
		"TMPDIR="+filepath.Join(root, "tmp"))
	k := &killing{t: t, net: n, process: start(t, env, "serve")}
	eventually.True(t, func() bool {
		stored, err := tryCount(pool, `SELECT count(*) FROM segments WHERE synced_at IS NOT NULL`)
		return err == nil && stored > 0
	}, 20*time.Millisecond)
	fill()
	n.Play(300)
	k.drain(pool)
	eventually.True(t, func() bool {
		fill() // a temporary file that was deleted meanwhile left space
		if open, err := tryCount(pool, `SELECT count(*) FROM archive_open`); err == nil && open == 0 {
			n.Play(100) // the others fitted into that space
		}
		failed, err := tryCount(pool, `
			SELECT count(*) FROM river_job WHERE queue = 'archive' AND errors[array_upper(errors, 1)] ->> 'error' LIKE '%`+says+`'`)
		return err == nil && failed > 0
	}, 20*time.Millisecond, "no job has met it")
	eventually.True(t, func() bool {
		fill()
		n.Play(100)
		k.drain(pool)
		return count(t, pool, `SELECT count(*) FROM archive_open`) > 0
	}, 20*time.Millisecond, "events must wait in the database while the disk is full")
	free()
	finishes(t, 50*time.Millisecond, func() (int, error) { return tryCount(pool, `SELECT count(*) FROM archive_open`) },
		"not everything is in the store")
	stopServe(t, k.process)
	require.Empty(t, notOnce(onceEach(n), archivedIn(t, filepath.Join(root, "archive"))))
	require.Contains(t, succeed(t, env, "archive", "verify"), " records")
}
