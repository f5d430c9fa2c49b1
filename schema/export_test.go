package schema

import "github.com/jackc/pgx/v5"

// RequireExtension is requireExtension.
var RequireExtension = requireExtension

// QueuedDeletions returns the statements that delete a batch's records and their projected rows.
func QueuedDeletions(b *Batch, tx pgx.Tx) []*pgx.QueuedQuery {
	q := &pgx.Batch{}
	b.queueDeletions(q, tx)
	return q.QueuedQueries
}
