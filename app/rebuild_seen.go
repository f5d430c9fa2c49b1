package app

import (
	"context"
	"errors"
	"iter"
	"slices"
	"time"

	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/schema"
)

// reach returns since when events were archived that a server may send again. Earlier ones
// need not be known, except those of sources whose servers may send an event at any time.
func (p App) reach(now time.Time) (time.Time, error) {
	keep, err := p.retention()
	return now.Add(-keep.Tombstones - 24*time.Hour), err // see workers.SweepArchive
}

// ensureDays makes the partitions of the known events.
func (p App) ensureDays(ctx context.Context, reach, now time.Time) error {
	return catalog.EnsureDays(ctx, p.pool, reach.Add(24*time.Hour), now)
}

// RebuildSeen records the events of the archive as known, if a server may still send them again.
// Weir may run meanwhile. A second run changes nothing.
func (p App) RebuildSeen(ctx context.Context, how Rebuild) error {
	r, err := p.rebuilding(how)
	if err != nil {
		return err
	}
	now := time.Now()
	reach, err := p.reach(now)
	if err != nil {
		return err
	}
	// A running Weir makes them too. An event of a day without a partition is stored in the
	// default partition.
	if err := p.ensureDays(ctx, reach, now); err != nil && !errors.Is(err, schema.ErrBusy) {
		return err
	}
	// Open rows first: what is sealed meanwhile is in the listing below.
	if err := catalog.EachOpenRow(ctx, p.pool, func(row catalog.OpenRow) error {
		raw, err := archive.UnpackRow(row.Blob)
		if err != nil {
			return err
		}
		return r.remember(ctx, archive.Manifest{Name: "in the database", Stream: row.Stream, Wire: row.Wire}, r.limited(ctx, archive.Records(raw)))
	}); err != nil {
		return err
	}
	manifests, err := segmentsOf(ctx, r.store, "")
	if err != nil {
		return err
	}
	manifests = slices.DeleteFunc(manifests, func(m archive.Manifest) bool {
		s, _ := sourceOf(m.Wire)
		return m.Wire == catalog.WireSnapshot || !s.resends && m.LastAt.Before(reach)
	})
	r.all = len(manifests)
	for _, m := range manifests {
		m, err := r.records(ctx, m, r.remember)
		if err != nil {
			return err
		}
		r.read++
		r.progress(r.read, r.all, m)
	}
	return nil
}

// remember records the events of records as known, some hundred records at a time.
func (r *rebuilding) remember(ctx context.Context, m archive.Manifest, records iter.Seq2[[]byte, error]) error {
	if m.Wire == catalog.WireSnapshot {
		return nil
	}
	wire, err := r.archivedWire(m)
	if err != nil {
		return err
	}
	for some, err := range pages(records) {
		if err != nil {
			return err
		}
		var units []catalog.Unit
		var seen [][16]byte
		if m.Stream == catalog.StreamFetched {
			units, err = catalog.FetchedUnits(ctx, r.pool, some)
		} else {
			units, seen = frames.Units(&wire, some)
		}
		if err == nil {
			err = catalog.RestoreIDs(ctx, r.pool, units, seen)
		}
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// pages yields records, 500 at a time.
func pages(records iter.Seq2[[]byte, error]) iter.Seq2[[][]byte, error] {
	return func(yield func([][]byte, error) bool) {
		const page = 500
		var some [][]byte
		for record, err := range records {
			if err != nil {
				yield(nil, err)
				return
			}
			if some = append(some, record); len(some) == page {
				if !yield(some, nil) {
					return
				}
				some = nil
			}
		}
		if len(some) > 0 {
			yield(some, nil)
		}
	}
}
