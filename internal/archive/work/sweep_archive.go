package work

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// SweepArchive deletes files and objects that nothing names, and makes and drops the
// partitions of the known events.
type SweepArchive struct {
	worker[SweepArchiveArgs]
	now func() time.Time
}

// Work sweeps. If a part fails, it does the rest.
func (w *SweepArchive) Work(ctx context.Context, _ *river.Job[SweepArchiveArgs]) error {
	return errors.Join(w.days(ctx), w.deletions(ctx), w.spool(), w.unfinished(ctx), w.objects(ctx), w.lists(ctx))
}

// days makes and drops partitions. They follow the clock that is behind.
func (w *SweepArchive) days(ctx context.Context) error {
	now, err := schema.EarliestTime(ctx, w.pool, w.now())
	if err != nil {
		return err
	}
	return workers.WhileBusy(ctx, workers.BusyTries, func() error {
		if err := catalog.EnsureDays(ctx, w.pool, now.Add(-w.archive.Remember), now); err != nil {
			return err
		}
		_, err := catalog.DropDays(ctx, w.pool, now.Add(-w.archive.Remember-24*time.Hour))
		return err
	})
}

// deletions drops the deletions that every segment has been compared with, or has failed to
// be for long.
func (w *SweepArchive) deletions(ctx context.Context) error {
	const page = 5000
	for {
		n, err := catalog.DropDeletedRecords(ctx, w.pool, w.archive.Forget, page)
		if err != nil || n < page {
			return err
		}
	}
}

// spool deletes old files. A segment that still needs one is written again.
func (w *SweepArchive) spool() error {
	files, err := filepath.Glob(filepath.Join(w.archive.Spool, "*"))
	if err != nil {
		return fmt.Errorf("list the folder for segments: %w", err)
	}
	for _, file := range files {
		info, err := os.Stat(file)
		ours := strings.HasSuffix(file, segmentSuffix) || strings.HasPrefix(filepath.Base(file), unfinishedFile)
		if err == nil && ours && w.now().Sub(info.ModTime()) > orphanAge {
			os.Remove(file) // the next sweep tries again
		}
	}
	return nil
}

// unfinished deletes what killed processes left unfinished in the store.
func (w *SweepArchive) unfinished(ctx context.Context) error {
	store, ok := w.archive.Store.(archive.Sweeper)
	if !ok {
		return nil
	}
	deleted, err := store.Sweep(ctx, w.now().Add(-orphanAge))
	if deleted > 0 {
		w.log.Info("unfinished_files_deleted", "files", deleted)
	}
	return err
}

// objects deletes objects in the store that nothing names, and objects of segment versions
// that have been replaced.
func (w *SweepArchive) objects(ctx context.Context) error {
	store := w.archive.Store
	listed := storeListing{manifests: map[string][]archive.Object{}, segments: map[string]bool{}}
	for o, err := range store.List(ctx, "") {
		if err != nil {
			return err
		}
		listed.add(o, w.now().Add(-orphanAge))
	}
	err := errors.Join(w.replaced(ctx, listed), w.orphans(ctx, listed))
	for _, name := range listed.authors {
		if !listed.segments[archive.SegmentName(name)] {
			if failed := w.delete(ctx, "orphan_deleted", name); failed != nil {
				return errors.Join(err, failed)
			}
		}
	}
	return err
}

// damages are the errors of single objects, which do not hold back the others.
type damages []error

// add adds an error, if it is one of the first few. It returns errors of the store.
func (d *damages) add(err error) error {
	const most = 5
	if !errors.Is(err, archive.ErrCorrupt) && !errors.Is(err, archive.ErrNotFound) {
		return err
	}
	if len(*d) < most {
		*d = append(*d, err)
	}
	return nil
}

// lists joins the lists of forgotten accounts, and records which of them cannot be read.
func (w *SweepArchive) lists(ctx context.Context) error {
	const many = 64 // a few kilobytes each
	joined := archive.JoinForgotten(ctx, w.archive.Store, w.now().Add(-orphanAge), many)
	unreadable, err := archive.UnreadableLists(ctx, w.archive.Store)
	if err == nil {
		err = catalog.SetUnreadableLists(ctx, w.pool, unreadable)
	}
	for name, cause := range unreadable {
		w.log.Error("forgotten_list_unreadable", "object", name, "error", cause)
	}
	return errors.Join(joined, err)
}

// storeListing is the content of a store.
type storeListing struct {
	manifests map[string][]archive.Object // by folder and number
	segments  map[string]bool
	old       []string // old segments
	authors   []string // old indexes of authors
}

func (l *storeListing) add(o archive.Object, old time.Time) {
	switch {
	case archive.IsManifest(o.Name):
		l.manifests[numbered(o.Name)] = append(l.manifests[numbered(o.Name)], o)
	case strings.HasSuffix(o.Name, segmentSuffix):
		l.segments[o.Name] = true
		if o.Modified.Before(old) {
			l.old = append(l.old, o.Name)
		}
	case archive.IsAuthors(o.Name) && o.Modified.Before(old):
		l.authors = append(l.authors, o.Name)
	}
}

func (w *SweepArchive) delete(ctx context.Context, message, name string) error {
	err := w.archive.Store.Delete(ctx, name)
	if err == nil {
		w.log.Info(message, "object", name)
	}
	return err
}

// replaced deletes versions of segments whose next version has been in the store for a day.
// That is how long a reader may take for one segment. The manifest is deleted first: a
// reader that does not find the segment then finds the last version. A segment whose last
// version is damaged keeps its other versions, and does not hold back other segments.
func (w *SweepArchive) replaced(ctx context.Context, listed storeListing) error {
	var damaged damages
	for _, manifests := range listed.manifests {
		if len(manifests) == 1 {
			continue
		}
		for _, o := range manifests {
			later := laterVersion(o.Name, manifests)
			if later == nil || w.now().Sub(later.Modified) <= orphanAge {
				continue
			}
			if err := damaged.add(w.deleteVersion(ctx, o.Name, later.Name)); err != nil {
				return err
			}
		}
	}
	return errors.Join(damaged...)
}

// deleteVersion deletes a version of a segment, given by the name of its manifest. First it
// reads back the last version once more.
func (w *SweepArchive) deleteVersion(ctx context.Context, name, later string) error {
	store := w.archive.Store
	last, err := archive.ReadManifest(ctx, store, later)
	if err == nil {
		err = archive.Verify(ctx, store, last)
	}
	if err != nil {
		return err
	}
	m, err := archive.ReadManifest(ctx, store, name)
	if err != nil {
		return err
	}
	for _, object := range []string{name, archive.AuthorsName(m.Name), m.Name} {
		if m.Name == last.Name && object != name {
			continue
		}
		if err := w.delete(ctx, "replaced_version_deleted", object); err != nil {
			return err
		}
	}
	return nil
}

// laterVersion returns the manifest of the last version of a manifest's segment, or nil if
// name is that version.
func laterVersion(name string, manifests []archive.Object) *archive.Object {
	segment, version, _ := archive.VersionOf(name)
	var last *archive.Object
	for i := range manifests {
		if of, n, ok := archive.VersionOf(manifests[i].Name); ok && of == segment && n > version {
			last, version = &manifests[i], n
		}
	}
	return last
}

// orphans deletes old segments in the store that no manifest names. Their job died before
// it stored the manifest, and a later job stored the same records again.
func (w *SweepArchive) orphans(ctx context.Context, listed storeListing) error {
	waiting, err := schema.All(ctx, w.pool, "list the segments", pgx.RowTo[string], `SELECT name FROM segments WHERE synced_at IS NULL`)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, name := range waiting {
		keep[name] = true
	}
	counts := map[string]int{}
	for _, name := range listed.old {
		counts[numbered(name)]++
	}
	var damaged damages
	for _, name := range listed.old {
		named := listed.manifests[numbered(name)]
		if keep[name] || len(named) == 1 && counts[numbered(name)] == 1 {
			continue // usually the manifest need not be read
		}
		orphan, err := w.orphan(ctx, name, named)
		if err == nil && orphan {
			err = w.delete(ctx, "orphan_deleted", name)
		}
		if err := damaged.add(err); err != nil {
			return err
		}
	}
	return errors.Join(damaged...)
}

// orphan reports whether no manifest among these names the segment.
func (w *SweepArchive) orphan(ctx context.Context, name string, manifests []archive.Object) (bool, error) {
	for _, manifest := range manifests {
		m, err := archive.ReadManifest(ctx, w.archive.Store, manifest.Name)
		if errors.Is(err, archive.ErrNotFound) {
			continue // it has just been deleted
		}
		if err != nil || m.Name == name {
			return false, err
		}
	}
	return true, nil
}

// numbered returns the part of an object's name that its manifest's name shares.
func numbered(name string) string {
	number, _, _ := strings.Cut(path.Base(name), "-")
	return path.Dir(name) + "/" + number
}
