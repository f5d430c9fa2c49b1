package schema

import (
	"io/fs"

	"github.com/jackc/pgx/v5"
)

// RequireExtension is requireExtension.
var RequireExtension = requireExtension

// QueuedDeletions returns the statements that delete a batch's records and their projected rows.
func QueuedDeletions(b *Batch, tx pgx.Tx) []*pgx.QueuedQuery {
	q := &pgx.Batch{}
	b.queueDeletions(q, tx)
	return q.QueuedQueries
}

// Sums returns the checksums of the core's and the features' migrations.
func Sums(features ...fs.FS) (map[string]string, error) {
	all, err := readMigrations(features)
	sums := map[string]string{}
	for _, m := range all {
		sums[m.String()] = m.sum()
	}
	return sums, err
}
