package schema

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// CollectionChange is a row of collections: what it says of a collection, or of a prefix such as pub.layers.*,
// takes the place of what WEIR_COLLECTIONS says.
type CollectionChange struct {
	Collection string
	Retention  *time.Duration // how long its records are kept, 0: for ever; nil: the standard time
	Stored     bool           // false: it is not stored
}

// CollectionChanges lists the rows of collections.
func CollectionChanges(ctx context.Context, db DB) ([]CollectionChange, error) {
	return All(ctx, db, "read the changed collections", pgx.RowToStructByPos[CollectionChange],
		`SELECT c.collection, c.retention, c.stored FROM collections AS c ORDER BY c.collection`)
}

// ChangeCollection writes a row of collections. Every process follows within seconds.
func ChangeCollection(ctx context.Context, db DB, c CollectionChange) error {
	const sql = `
INSERT INTO collections (collection, retention, stored) VALUES ($1, $2, $3)
ON CONFLICT (collection) DO UPDATE SET retention = excluded.retention, stored = excluded.stored`
	return Exec(ctx, db, "change the stored collections", sql, c.Collection, c.Retention, c.Stored)
}
