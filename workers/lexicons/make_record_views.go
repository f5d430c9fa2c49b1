package lexicons

import (
	"context"
	"log/slog"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/weir-social/weir/internal/lexicon/records"
	"github.com/weir-social/weir/workers"
)

// MakeRecordViews makes the SQL views of records, according to the schemas that are
// stored when it runs. A second run changes nothing.
type MakeRecordViews struct {
	river.WorkerDefaults[MakeRecordViewsArgs]
	pool *pgxpool.Pool
	log  *slog.Logger
}

// Work makes, changes and drops views.
func (w *MakeRecordViews) Work(ctx context.Context, _ *river.Job[MakeRecordViewsArgs]) error {
	catalog, err := records.ReadCatalog(ctx, w.pool)
	if err != nil {
		return err
	}
	made, err := records.MakeViews(ctx, w.pool, catalog)
	if made > 0 {
		workers.JobLog(ctx, w.log).Info("record_views_made", "views", made)
	}
	return err
}
