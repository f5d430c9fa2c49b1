package workers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/archive"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// SweepArchive deletes files and objects that nothing names, and makes and drops the
// partitions of the known events.
type SweepArchive struct {
	river.WorkerDefaults[jobs.SweepArchive]
	pool    *pgxpool.Pool
	log     *slog.Logger
	archive Archive
	now     func() time.Time
}

// Timeout bounds a run: a store may list for long.
func (w *SweepArchive) Timeout(*river.Job[jobs.SweepArchive]) time.Duration { return w.archive.timeout }

// Work sweeps. A server that is away is no reason to leave the rest.
func (w *SweepArchive) Work(ctx context.Context, _ *river.Job[jobs.SweepArchive]) error {
	return errors.Join(w.days(ctx), w.spool(), w.objects(ctx))
}

// days makes and drops partitions. They follow the clock that is behind.
func (w *SweepArchive) days(ctx context.Context) error {
	now, err := schema.EarliestTime(ctx, w.pool, w.now())
	if err != nil {
		return err
	}
	if err := schema.EnsureArchivedDays(ctx, w.pool, now.Add(-w.archive.Remember), now); err != nil {
		return err
	}
	_, err = schema.DropArchivedDays(ctx, w.pool, now.Add(-w.archive.Remember-24*time.Hour))
	return err
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
			os.Remove(file) //nolint:errcheck // tried again
		}
	}
	return nil
}

// objects deletes old segments in the store that no manifest names: their job died
// before it stored the manifest, and stored the same records again later.
func (w *SweepArchive) objects(ctx context.Context) error {
	store := w.archive.Store
	var old []string
	manifests := map[string][]string{} // by folder and number
	for o, err := range store.List(ctx, "") {
		switch {
		case err != nil:
			return fmt.Errorf("list %s: %w", store, err)
		case archive.IsManifest(o.Name):
			manifests[numbered(o.Name)] = append(manifests[numbered(o.Name)], o.Name)
		case strings.HasSuffix(o.Name, segmentSuffix) && w.now().Sub(o.Modified) > orphanAge:
			old = append(old, o.Name)
		}
	}
	waiting, err := schema.All(ctx, w.pool, "list the segments", pgx.RowTo[string], `SELECT name FROM segments WHERE synced_at IS NULL`)
	if err != nil {
		return err
	}
	keep := map[string]bool{}
	for _, name := range waiting {
		keep[name] = true
	}
	counts := map[string]int{}
	for _, name := range old {
		counts[numbered(name)]++
	}
	for _, name := range old {
		named := manifests[numbered(name)]
		if keep[name] || len(named) > 0 && counts[numbered(name)] == 1 {
			continue // the usual case needs no look at the manifest
		}
		orphan := true
		for _, manifest := range named {
			m, err := archive.ReadManifest(ctx, store, manifest)
			if err != nil {
				return err
			}
			orphan = orphan && m.Name != name
		}
		if orphan {
			if err := store.Delete(ctx, name); err != nil {
				return err
			}
			w.log.Info("orphan_deleted", "object", name)
		}
	}
	return nil
}

// numbered returns the part of an object's name that its manifest's name has too.
func numbered(name string) string {
	number, _, _ := strings.Cut(path.Base(name), "-")
	return path.Dir(name) + "/" + number
}
