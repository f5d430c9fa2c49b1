package work

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// SyncSegment copies a segment to the store.
type SyncSegment struct{ worker[SyncSegmentArgs] }

// Work stores the segment, reads it back, stores its manifest, and only then deletes the rows.
// The manifest decides: there is at most one for these records. If two processes do this at
// once, or one wakes up after a long time, all of them finish with the segment that the
// manifest names.
func (w *SyncSegment) Work(ctx context.Context, job *river.Job[SyncSegmentArgs]) error {
	m, after, err := catalog.UnsyncedSegment(ctx, w.pool, job.Args.Segment)
	switch {
	case errors.Is(err, schema.ErrNoRows):
		return nil
	case err != nil:
		return err
	case after:
		return workers.Snooze(time.Second) // a position is valid only with all earlier segments
	}
	if err := w.archive.present(ctx, w.pool); err != nil {
		return err
	}
	sealed := m.SHA256
	store := w.archive.Store
	m, err = w.stored(ctx, m)
	if errors.Is(err, errDamaged) {
		m, err = w.repaired(ctx, m)
	}
	if errors.Is(err, schema.ErrNoRows) {
		return nil // another process has repaired it
	}
	if err != nil {
		return err
	}
	crashpoint.At(ctx, "sync: manifest stored")
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error { return catalog.FinishSegment(ctx, tx, m, store.String()) })
	if err != nil {
		return err
	}
	crashpoint.At(ctx, "sync: rows deleted")
	for _, sha := range []string{sealed, m.SHA256} {
		os.Remove(w.archive.spooled(sha)) // a leftover is swept later
	}
	return nil
}

// present returns an error if the store has none of the last segments that it should have. An
// unmounted disk has an empty directory, and a bucket looks empty under another prefix: a
// segment written there would be missing from the others.
func (a Config) present(ctx context.Context, pool *pgxpool.Pool) error {
	const tries = 3 // one of them may have been damaged or deleted
	last, err := catalog.LastSegments(ctx, pool, a.Store.String(), tries)
	if err != nil || len(last) == 0 {
		return err
	}
	for _, m := range last {
		if _, err := a.Store.Stat(ctx, m.ManifestName()); !errors.Is(err, archive.ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("%s lacks the last segments that were stored there, such as %s: mount its disk, or correct WEIR_ARCHIVE; if they are "+
		"lost, set WEIR_ARCHIVE to a new place", a.Store, last[0].Name)
}

// errDamaged means that a segment or its manifest was damaged in the store, or lost, after the
// manifest was stored.
var errDamaged = errors.New("damaged since it was stored")

// stored returns the manifest in the store after reading back its segment. It puts both into
// the store if they are missing.
func (w *SyncSegment) stored(ctx context.Context, m archive.Manifest) (archive.Manifest, error) {
	store := w.archive.Store
	there, err := archive.ReadManifest(ctx, store, m.ManifestName())
	if err == nil {
		m = there
		if err = archive.Verify(ctx, store, m); errors.Is(err, archive.ErrNotFound) {
			return m, fmt.Errorf("%w: %w", errDamaged, err)
		}
	}
	switch {
	case err == nil:
		return m, nil
	case errors.Is(err, archive.ErrCorrupt):
		return m, fmt.Errorf("%w: %w", errDamaged, err)
	case !errors.Is(err, archive.ErrNotFound):
		return m, err
	}
	if err := w.put(ctx, &m); err != nil {
		return m, err
	}
	there, err = archive.PutManifest(ctx, store, m)
	if err == nil && there.SHA256 != m.SHA256 {
		err = archive.Verify(ctx, store, there)
	}
	return there, err
}

// repaired replaces a segment and its manifest that stored found damaged. This loses nothing:
// the rows are still there and unchanged since they were sealed, and the lock of the segment's
// row keeps other processes from deleting them. It returns ErrNoRows if another process has
// done so before.
func (w *SyncSegment) repaired(ctx context.Context, m archive.Manifest) (there archive.Manifest, err error) {
	err = pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		sealed, err := catalog.LockUnsyncedSegment(ctx, tx, m.Number)
		if err != nil {
			return err
		}
		if there, err = w.stored(ctx, sealed); !errors.Is(err, errDamaged) {
			return err
		}
		damaged := []string{sealed.ManifestName(), there.Name}
		file, err := w.archive.open(ctx, w.pool, &sealed)
		if err != nil {
			return err
		}
		file.Close() // it is read below
		for _, name := range damaged {
			if err := w.archive.Store.Delete(ctx, name); err != nil {
				return err
			}
		}
		there, err = w.stored(ctx, sealed)
		return err
	})
	return there, err
}

// put puts a segment into the store and reads it back. It deletes the object if it differs.
func (w *SyncSegment) put(ctx context.Context, m *archive.Manifest) error {
	file, err := w.archive.open(ctx, w.pool, m)
	if err != nil {
		return err
	}
	defer file.Close() // it was only read
	store := w.archive.Store
	if err := store.Put(ctx, m.Name, file, m.StoredBytes); err != nil && !errors.Is(err, archive.ErrExists) {
		return err
	}
	err = archive.Verify(ctx, store, *m)
	if errors.Is(err, archive.ErrCorrupt) {
		err = errors.Join(err, store.Delete(ctx, m.Name))
	}
	return err
}
