// Package archivetest checks the promises that every store of an archive makes.
package archivetest

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/archive"
)

// Put stores an object.
func Put(ctx context.Context, s archive.Store, name string, content []byte) error {
	return s.Put(ctx, name, bytes.NewReader(content), int64(len(content)))
}

// Names returns the names of the objects that begin with prefix.
func Names(t *testing.T, s archive.Store, prefix string) []string {
	t.Helper()
	var names []string
	for o, err := range s.List(t.Context(), prefix) {
		require.NoError(t, err)
		names = append(names, o.Name)
	}
	return names
}

// Promises checks an empty store: objects are whole, are never replaced, and are found
// by name and by prefix.
func Promises(t *testing.T, s archive.Store) {
	t.Helper()
	ctx := t.Context()
	large := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	require.Empty(t, Names(t, s, ""))
	require.NoError(t, Put(ctx, s, "a/2026-01-01/1.seg", []byte("first")))
	require.NoError(t, Put(ctx, s, "a/2026-01-02/2.seg", large))
	require.NoError(t, Put(ctx, s, "b/3.seg", []byte("x")))
	require.ErrorIs(t, Put(ctx, s, "a/2026-01-01/1.seg", []byte("other")), archive.ErrExists)
	got, err := archive.Fetch(ctx, s, "a/2026-01-01/1.seg", 100)
	require.NoError(t, err)
	require.Equal(t, "first", string(got), "an object is not replaced")
	_, err = archive.Fetch(ctx, s, "a/2026-01-01/1.seg", 4)
	require.ErrorIs(t, err, archive.ErrCorrupt)
	got, err = archive.Fetch(ctx, s, "a/2026-01-02/2.seg", 1<<30)
	require.NoError(t, err)
	require.True(t, bytes.Equal(large, got))
	info, err := s.Stat(ctx, "a/2026-01-02/2.seg")
	require.NoError(t, err)
	require.Equal(t, int64(len(large)), info.Size)
	require.False(t, info.Modified.IsZero())
	require.Equal(t, []string{"a/2026-01-01/1.seg", "a/2026-01-02/2.seg", "b/3.seg"}, Names(t, s, ""))
	require.Equal(t, []string{"a/2026-01-02/2.seg"}, Names(t, s, "a/2026-01-02/"))
	_, err = s.Get(ctx, "a/9.seg")
	require.ErrorIs(t, err, archive.ErrNotFound)
	_, err = s.Stat(ctx, "a/9.seg")
	require.ErrorIs(t, err, archive.ErrNotFound)
	require.NoError(t, s.Delete(ctx, "a/2026-01-01/1.seg"))
	require.NoError(t, s.Delete(ctx, "a/2026-01-01/1.seg"), "there may be none")
	require.Equal(t, []string{"a/2026-01-02/2.seg", "b/3.seg"}, Names(t, s, ""))
}
