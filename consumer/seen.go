package consumer

import (
	"context"

	"github.com/weir-social/weir/schema"
)

// seen returns those IDs of a batch that are already stored. If they cannot be read, the
// events are proven and stored once more, which changes nothing.
func (s *session) seen(ctx context.Context, b *batch) map[ID]bool {
	seen, err := b.seen(ctx, s.cfg.Pool)
	if err != nil {
		s.log.Warn("seen_ids_read_failed", "error", err)
	}
	s.metrics.duplicates.Add(float64(len(seen)))
	return seen
}

// seen returns those IDs of the batch that are already stored.
func (b *batch) seen(ctx context.Context, db schema.DB) (map[ID]bool, error) {
	var ids [][16]byte
	for i := range b.frames {
		if id := b.frames[i].ID; id != (ID{}) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	stored, err := schema.SeenIDs(ctx, db, ids)
	seen := make(map[ID]bool, len(stored))
	for _, id := range stored {
		seen[id] = true
	}
	return seen, err
}

// dropArchived takes out of the archive's units the frames that were seen: they are in the archive
// already, even if its ids of that time have been dropped.
func (b *batch) dropArchived(seen map[ID]bool) {
	for i := range b.frames {
		if seen[b.frames[i].ID] {
			b.frames[i].unit = nil
		}
	}
	if b.units != nil {
		b.units = unitsOf(b.frames)
	}
}
