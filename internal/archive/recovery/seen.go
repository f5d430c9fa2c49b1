package recovery

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

// ensureDays makes the partitions of the known events.
func (r *rebuilding) ensureDays(ctx context.Context, now time.Time) error {
	return catalog.EnsureDays(ctx, r.Pool, r.reach.Add(24*time.Hour), now)
}

// Seen records the events of the archive as known, if a server may still send them again. Earlier ones need
// not be known, except those of sources whose servers may send an event at any time. Weir may run meanwhile. A
// second run changes nothing.
func (how Rebuild) Seen(ctx context.Context) error {
	now := time.Now()
	r := how.begin(now)
	// A running Weir makes them too. An event of a day without a partition is stored in the
	// default partition.
	if err := r.ensureDays(ctx, now); err != nil && !errors.Is(err, schema.ErrBusy) {
		return err
	}
	// Open rows first: what is sealed meanwhile is in the listing below.
	if err := catalog.EachOpenRow(ctx, r.Pool, func(row catalog.OpenRow) error {
		raw, err := archive.UnpackRow(row.Blob)
		if err != nil {
			return err
		}
		return r.remember(ctx, archive.Manifest{
			Name: "in the database", Stream: row.Stream, Wire: row.Wire,
		}, r.limited(ctx, archive.Records(raw)))
	}); err != nil {
		return err
	}
	manifests, err := segmentsOf(ctx, r.Store, "")
	if err != nil {
		return err
	}
	wires, err := r.wires()
	if err != nil {
		return err
	}
	manifests = slices.DeleteFunc(manifests, func(m archive.Manifest) bool {
		return m.Wire == catalog.WireSnapshot || !wires[m.Wire].Resends && m.LastAt.Before(r.reach)
	})
	r.all = len(manifests)
	for _, m := range manifests {
		m, err := r.records(ctx, m, r.remember)
		if err != nil {
			return err
		}
		r.read++
		r.Progress(r.read, r.all, m)
	}
	return nil
}

// remember records the events of records as known, some hundred records at a time.
func (r *rebuilding) remember(ctx context.Context, m archive.Manifest, records iter.Seq2[[]byte, error]) error {
	if m.Wire == catalog.WireSnapshot {
		return nil
	}
	wire, err := r.Wire(m)
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
			units, err = catalog.FetchedUnits(ctx, r.Pool, some)
		} else {
			units, seen = frames.Units(&wire, some)
		}
		if err == nil {
			err = catalog.RestoreIDs(ctx, r.Pool, units, seen)
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
