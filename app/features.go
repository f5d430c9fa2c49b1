package app

import (
	"context"
	"time"

	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// healthFeatures returns the features that add to the report of Weir's health.
func healthFeatures() []health.Feature { return []health.Feature{ranking.Health()} }

// snapshotTables returns the tables of features that the archive has as snapshots.
func snapshotTables() []schema.SnapshotTable {
	return []schema.SnapshotTable{ranking.MergesSnapshot(), ranking.BlocksSnapshot()}
}

// featureUses returns what the running roles need rights for, besides the core.
func featureUses() []schema.Uses { return []schema.Uses{ranking.Uses()} }

// Health reads the state of Weir from the database.
func (p App) Health(ctx context.Context, now time.Time) (health.Report, error) {
	return health.Read(ctx, p.pool, now, p.cfg.Limits(), healthFeatures()...)
}
