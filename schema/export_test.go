package schema

import (
	"github.com/jackc/pgx/v5"

	"github.com/weir-social/weir/internal/archive"
)

// RequireExtension is requireExtension.
var RequireExtension = requireExtension

// ParseFetched returns the identity of an archived fetched event, and its day.
func ParseFetched(record []byte) (id archive.ID, day int32, err error) {
	e, err := parseFetched(record)
	if err != nil {
		return id, 0, err
	}
	return e.id(nil), e.day(), nil
}

// QueuedDeletions returns the statements that delete a batch's records and their projected rows.
func QueuedDeletions(b *Batch, tx pgx.Tx) []*pgx.QueuedQuery {
	q := &pgx.Batch{}
	b.queueDeletions(q, tx)
	return q.QueuedQueries
}
