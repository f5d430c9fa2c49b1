package work

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/crashpoint"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// ForgetSegment rewrites segments without the data to forget.
type ForgetSegment struct{ worker[ForgetSegmentArgs] }

// Work compares a segment with the data to forget. If the segment contains some of it,
// Work stores the segment's next version, reads it back, stores its manifest, and only
// then switches the database to it. The manifest decides, as in SyncSegment: there is at
// most one for each version, so several processes, and one that wakes up after a long
// time, all end with the same version. The previous version stays in the store until its
// readers have finished: see SweepArchive.
//
// A failure is recorded: the segment waits for an hour, and health shows it.
func (w *ForgetSegment) Work(ctx context.Context, job *river.Job[ForgetSegmentArgs]) error {
	err := w.compare(ctx, job.Args.Segment)
	if _, snoozed := errors.AsType[*river.JobSnoozeError](err); err == nil || snoozed || errors.Is(ctx.Err(), context.Canceled) {
		return err
	}
	recording, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout) // the comparison may have taken too long
	defer cancel()
	return errors.Join(err, catalog.ForgetFailed(recording, w.pool, job.Args.Segment))
}

// recordTimeout limits the statement that records a failure.
const recordTimeout = 10 * time.Second

// compare compares a segment if it is due.
func (w *ForgetSegment) compare(ctx context.Context, number int64) error {
	m, now, err := catalog.SegmentToForget(ctx, w.pool, number, w.archive.Forget)
	if errors.Is(err, schema.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	next, err := w.stored(ctx, m)
	if errors.Is(err, archive.ErrNotFound) {
		next, err = w.forget(ctx, m, now)
	}
	if err != nil {
		return err
	}
	if next.Rewritten == m.Rewritten {
		return catalog.MarkCompared(ctx, w.pool, m, now)
	}
	crashpoint.At(ctx, "forget: manifest stored")
	if err := catalog.ReplaceSegment(ctx, w.pool, next); err != nil {
		return err
	}
	w.log.Info("segment_rewritten", "segment", next.Number, "records", next.Records, "forgotten", m.Records-next.Records)
	return nil
}

// stored returns the manifest of the segment's next version after reading it back. If
// there is none, it returns ErrNotFound. There is one if an earlier job stored it and died
// before the switch.
func (w *ForgetSegment) stored(ctx context.Context, m archive.Manifest) (archive.Manifest, error) {
	next, err := archive.ReadManifest(ctx, w.archive.Store, m.Rewrite(m.Sum(), time.Time{}).ManifestName())
	if err != nil {
		return m, err
	}
	err = archive.Verify(ctx, w.archive.Store, next)
	if errors.Is(err, archive.ErrNotFound) {
		err = fmt.Errorf("the segment of a manifest is missing: %w", archive.ErrCorrupt)
	}
	return next, err
}

// forget returns the manifest of the next version, which is in the store. If nothing must
// be forgotten, it returns m.
func (w *ForgetSegment) forget(ctx context.Context, m archive.Manifest, now time.Time) (archive.Manifest, error) {
	store := w.archive.Store
	strip, err := w.archive.Strip(m)
	if err != nil {
		return m, err
	}
	authors, err := w.authors(ctx, m, strip)
	if err != nil {
		return m, err
	}
	forget, err := catalog.ToForget(ctx, w.pool, authors)
	if err != nil || forget.Empty() {
		return m, err
	}
	segment, err := archive.FetchSegment(ctx, store, m)
	if err != nil {
		return m, err
	}
	path, sum, err := w.archive.spool(func(file io.Writer) (archive.Sum, error) {
		out, err := archive.NewWriter(file)
		if err != nil {
			return archive.Sum{}, err
		}
		for record, err := range archive.Remaining(m, segment.Records(), strip, forget.Goes) {
			if err == nil {
				err = out.Add(record)
			}
			if err != nil {
				return archive.Sum{}, err
			}
		}
		return out.Close()
	})
	if err != nil {
		return m, err
	}
	defer os.Remove(path) // a leftover is swept later
	if sum.Content == m.Content && sum.Records == m.Records {
		return m, nil
	}
	return w.put(ctx, path, m.Rewrite(sum, now), strip)
}

// authors returns the index of a segment's authors. The first comparison makes the index,
// including for segments older than this feature; so does the first one after the index
// was damaged.
func (w *ForgetSegment) authors(ctx context.Context, m archive.Manifest, strip archive.Strip) ([]int64, error) {
	store := w.archive.Store
	authors, err := archive.ReadAuthors(ctx, store, m)
	if errors.Is(err, archive.ErrCorrupt) {
		if err := store.Delete(ctx, archive.AuthorsName(m.Name)); err != nil {
			return nil, err
		}
	} else if !errors.Is(err, archive.ErrNotFound) {
		return authors, err
	}
	segment, err := archive.FetchSegment(ctx, store, m)
	if err != nil {
		return nil, err
	}
	if authors, err = archive.AuthorsOf(m, segment.Records(), strip); err != nil {
		return nil, err
	}
	return authors, archive.PutAuthors(ctx, store, m, authors)
}

// put stores a version of a segment and its manifest. It returns the manifest in the store.
func (w *ForgetSegment) put(ctx context.Context, path string, m archive.Manifest, strip archive.Strip) (archive.Manifest, error) {
	store := w.archive.Store
	file, err := os.Open(path)
	if err != nil {
		return m, fmt.Errorf("write a segment: %w", err)
	}
	defer file.Close() // it was only read
	err = store.Put(ctx, m.Name, file, m.StoredBytes)
	if errors.Is(err, archive.ErrExists) {
		var left archive.Object
		if left, err = store.Stat(ctx, m.Name); err == nil && time.Since(left.Modified) > orphanAge/2 {
			return m, workers.Snooze(time.Hour) // left by a job that died: a sweep may be about to delete it
		}
	}
	if err != nil {
		return m, err
	}
	if err := archive.Verify(ctx, store, m); err != nil {
		if errors.Is(err, archive.ErrCorrupt) {
			err = errors.Join(err, store.Delete(ctx, m.Name))
		}
		return m, err
	}
	if _, err := w.authors(ctx, m, strip); err != nil {
		return m, err
	}
	there, err := archive.PutManifest(ctx, store, m)
	if err == nil && there.SHA256 != m.SHA256 {
		err = archive.Verify(ctx, store, there)
	}
	return there, err
}
