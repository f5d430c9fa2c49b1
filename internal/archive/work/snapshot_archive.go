package work

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/schema"
)

// SnapshotArchive archives the tables that no event describes.
type SnapshotArchive struct {
	river.WorkerDefaults[SnapshotArchiveArgs]
	pool   *pgxpool.Pool
	tables []schema.SnapshotTable // of features
}

// Work archives the tables that have changed since their last snapshot, in one
// transaction. A second run finds nothing changed.
func (w *SnapshotArchive) Work(ctx context.Context, _ *river.Job[SnapshotArchiveArgs]) error {
	_, err := catalog.ArchiveSnapshots(ctx, w.pool, w.tables...)
	return err
}
