// Package dir stores an archive in a directory.
package dir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/weir-social/weir/internal/archive"
)

// temporary begins the names of files that are being written. Listings omit them. A
// killed process leaves such a file: a second name of the object, or a part of it.
const temporary = ".tmp-"

// Store is a directory. The directory must exist, because an unmounted disk must not look
// like an empty archive.
type Store struct{ root string }

// New returns the store in a directory.
func New(root string) (*Store, error) {
	if !filepath.IsAbs(root) {
		return nil, fmt.Errorf("%q is not an absolute path", root)
	}
	return &Store{filepath.Clean(root)}, nil
}

// String returns the directory.
func (s *Store) String() string { return "dir:" + s.root }

// path returns the path of an object.
func (s *Store) path(name string) (string, error) {
	if !fs.ValidPath(name) || name == "." {
		return "", fmt.Errorf("%q cannot be the name of an object", name)
	}
	return filepath.Join(s.root, filepath.FromSlash(name)), nil
}

// Put writes a temporary file, syncs it, gives it its name, and syncs the folder.
func (s *Store) Put(_ context.Context, name string, content io.ReadSeeker, size int64) (err error) {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(s.root); err != nil {
		return fmt.Errorf("the archive's directory: %w", err)
	}
	if err := makeFolders(filepath.Dir(path)); err != nil {
		return err
	}
	file, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer os.Remove(file.Name()) // a leftover is swept later
	n, err := io.Copy(file, content)
	if err == nil && n != size {
		err = fmt.Errorf("%d bytes instead of %d", n, size)
	}
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	if err := os.Link(file.Name(), path); errors.Is(err, fs.ErrExist) {
		return archive.ErrExists
	} else if err != nil { // unlike a rename, it replaces nothing
		return fmt.Errorf("write %s: %w", name, err)
	}
	return syncFolder(filepath.Dir(path))
}

// makeFolders makes a folder and those above it, and syncs what is new.
func makeFolders(folder string) error {
	err := os.Mkdir(folder, 0o755) // as readable as other files of its owner
	if errors.Is(err, fs.ErrNotExist) {
		if err := makeFolders(filepath.Dir(folder)); err != nil {
			return err
		}
		err = os.Mkdir(folder, 0o755) // likewise
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return fmt.Errorf("make a folder: %w", err)
	}
	return syncFolder(filepath.Dir(folder))
}

func syncFolder(folder string) error {
	f, err := os.Open(folder)
	if err != nil {
		return fmt.Errorf("sync a folder: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", folder, err)
	}
	return nil
}

// Get opens an object.
func (s *Store) Get(_ context.Context, name string) (io.ReadCloser, error) {
	path, err := s.path(name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, s.failed("read", name, err)
	}
	return f, nil
}

// failed returns the error of an operation. A missing object counts as ErrNotFound only
// if the directory exists.
func (s *Store) failed(what, name string, err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		if _, root := os.Stat(s.root); root != nil {
			return fmt.Errorf("the archive's directory: %w", root)
		}
		return fmt.Errorf("%s %s: %w", what, name, archive.ErrNotFound)
	}
	return fmt.Errorf("%s %s: %w", what, name, err)
}

// Stat returns the size of an object.
func (s *Store) Stat(_ context.Context, name string) (archive.Object, error) {
	path, err := s.path(name)
	if err != nil {
		return archive.Object{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return archive.Object{}, s.failed("look up", name, err)
	}
	return archive.Object{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil
}

// List yields the objects in the order of their names.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[archive.Object, error] {
	return func(yield func(archive.Object, error) bool) {
		stopped := errors.New("stopped")
		err := filepath.WalkDir(s.root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case ctx.Err() != nil:
				return ctx.Err()
			case entry.IsDir():
				return nil
			}
			relative, err := filepath.Rel(s.root, path)
			if err != nil {
				return err
			}
			name := filepath.ToSlash(relative)
			if !entry.Type().IsRegular() || strings.HasPrefix(entry.Name(), temporary) || !strings.HasPrefix(name, prefix) {
				return nil
			}
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // deleted meanwhile
			}
			if err == nil && !yield(archive.Object{Name: name, Size: info.Size(), Modified: info.ModTime()}, nil) {
				err = stopped
			}
			return err
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(archive.Object{}, fmt.Errorf("list %s: %w", s, err))
		}
	}
}

// Delete deletes an object.
func (s *Store) Delete(_ context.Context, name string) error {
	path, err := s.path(name)
	if err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// Sweep deletes the files that killed processes left unfinished before a time. Otherwise
// the content of a deleted object could remain under such a name.
func (s *Store) Sweep(ctx context.Context, before time.Time) (deleted int, err error) {
	err = filepath.WalkDir(s.root, func(path string, entry fs.DirEntry, err error) error {
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if !entry.Type().IsRegular() || !strings.HasPrefix(entry.Name(), temporary) {
			return nil
		}
		info, err := entry.Info()
		if err == nil && info.ModTime().Before(before) {
			if err = os.Remove(path); err == nil {
				deleted++
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // deleted meanwhile
		}
		return err
	})
	if err != nil {
		return deleted, fmt.Errorf("sweep %s: %w", s, err)
	}
	return deleted, nil
}
