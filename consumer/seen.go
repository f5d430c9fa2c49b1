package consumer

import (
	"context"

	"github.com/weir-social/weir/schema"
)

// seen returns those IDs of a batch that are already stored. If they cannot be read, the
// events are proven and stored once more, which changes nothing.
func (s *session) seen(ctx context.Context, b *batch) map[ID]bool {
	var ids [][16]byte
	for i := range b.frames {
		if id := b.frames[i].ID; id != (ID{}) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	stored, err := schema.SeenIDs(ctx, s.cfg.Pool, ids)
	if err != nil {
		s.log.Warn("seen_ids_read_failed", "error", err)
	}
	seen := make(map[ID]bool, len(stored))
	for _, id := range stored {
		seen[id] = true
	}
	s.metrics.duplicates.Add(float64(len(stored)))
	return seen
}
