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

// dropKept keeps nothing of the frames that were seen: the feature has them already, even if it no
// longer knows their ids.
func (b *batch) dropKept(seen map[ID]bool) {
	for i := range b.frames {
		if seen[b.frames[i].ID] {
			b.frames[i].kept = nil
		}
	}
	if b.kept != nil {
		b.kept = keptOf(b.frames)
	}
}
