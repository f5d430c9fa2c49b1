package dir_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/archivetest"
	"github.com/weir-social/weir/internal/archive/dir"
)

func TestPromises(t *testing.T) {
	t.Parallel()
	s, err := dir.New(t.TempDir())
	require.NoError(t, err)
	archivetest.Promises(t, s)
}

// TestMissingDiskIsNoEmptyArchive checks that nothing is written below a directory that does not
// exist, and that objects do not count as missing then.
func TestMissingDiskIsNoEmptyArchive(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "disk")
	s, err := dir.New(root)
	require.NoError(t, err)
	require.Error(t, archivetest.Put(t.Context(), s, "a/1", []byte("x")))
	_, err = s.Stat(t.Context(), "a/1")
	require.Error(t, err)
	require.NotErrorIs(t, err, archive.ErrNotFound)
	require.NoDirExists(t, root)
	for _, err := range s.List(t.Context(), "") {
		require.Error(t, err)
	}
}

// TestUnfinishedFileIsNoObject checks that a put that fails half-way leaves nothing, and that a
// process that died during one left no object.
func TestUnfinishedFileIsNoObject(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, err := dir.New(root)
	require.NoError(t, err)
	require.Error(t, s.Put(t.Context(), "a/1", bytes.NewReader([]byte("shorter")), 100))
	files, err := os.ReadDir(filepath.Join(root, "a"))
	require.NoError(t, err)
	require.Empty(t, files)
	require.NoError(t, os.WriteFile(filepath.Join(root, "a", ".tmp-1"), []byte("x"), 0o600))
	require.Empty(t, archivetest.Names(t, s, ""))
}

// TestUnfinishedFilesAreSwept covers a process that was killed during a put and left a second name
// of the object. Deleting the object does not free its content until that name is deleted too.
func TestUnfinishedFilesAreSwept(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s, err := dir.New(root)
	require.NoError(t, err)
	require.NoError(t, archivetest.Put(t.Context(), s, "a/2026-01-01/1", []byte("text")))
	old, recent := filepath.Join(root, "a", "2026-01-01", ".tmp-1"), filepath.Join(root, "a", ".tmp-2")
	require.NoError(t, os.Link(filepath.Join(root, "a", "2026-01-01", "1"), old))
	require.NoError(t, os.WriteFile(recent, []byte("x"), 0o600))
	now := time.Now()
	require.NoError(t, os.Chtimes(old, now, now.Add(-time.Hour)))
	deleted, err := s.Sweep(t.Context(), now.Add(-time.Minute))
	require.NoError(t, err)
	require.Equal(t, 1, deleted)
	require.NoFileExists(t, old)
	require.FileExists(t, recent)
	require.Equal(t, []string{"a/2026-01-01/1"}, archivetest.Names(t, s, ""))
}

func TestNamesStayInside(t *testing.T) {
	t.Parallel()
	s, err := dir.New(t.TempDir())
	require.NoError(t, err)
	for _, name := range []string{"../a", "/a", "a/../../b", "", ".", "a//b"} {
		require.Error(t, archivetest.Put(t.Context(), s, name, nil), name)
	}
	_, err = dir.New("relative")
	require.Error(t, err)
}
