package app

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web/feeds"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
	"github.com/weir-social/weir/workers/lexicons"
)

// healthFeatures returns the features that add to the report of Weir's health.
func healthFeatures() []health.Feature { return []health.Feature{ranking.Health()} }

// snapshotTables returns the tables of features that the archive has as snapshots.
func snapshotTables() []schema.SnapshotTable {
	return []schema.SnapshotTable{ranking.MergesSnapshot(), ranking.BlocksSnapshot()}
}

// Features returns Weir's features, with the defaults of their variables.
func Features() []feature.Feature {
	return []feature.Feature{
		lexicons.Feature(),
		feeds.Feature(),
	}
}

// open opens the features, in their order.
func (c Config) open() (all []feature.Parts, err error) {
	core := feature.Core{Projections: schema.Projections{workers.Links()}, Queues: append(jobs.Queues(), jobs.QueueProcess, jobs.QueueArchive, jobs.QueueIndex)}
	for _, e := range c.registry().Entries() {
		core.Collections = append(core.Collections, e.Pattern)
	}
	for _, f := range c.features {
		parts, err := f.Open(core)
		if err != nil {
			return nil, err
		}
		core.Projections = append(core.Projections, parts.Projections...)
		all = append(all, parts)
	}
	return all, nil
}

// hooks returns what features do in transactions of the core.
func (c Config) hooks() []schema.Hook {
	if c.Archive == "" {
		return []schema.Hook{catalog.Hook("")} // what was archived before must still be forgotten
	}
	return []schema.Hook{catalog.Hook(fetchedWire)}
}

// tables returns the parts of the schema that the features have.
func tables(features []feature.Feature) []fs.FS {
	all := []fs.FS{ranking.Tables(), catalog.Tables(), directory.Tables()}
	for _, f := range features {
		if f.Tables != nil {
			all = append(all, f.Tables)
		}
	}
	return all
}

// Migrate brings a database to this binary's schema, like schema.Migrate.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return schema.Migrate(ctx, pool, tables(Features())...)
}

// Migrated returns nil if a database has this binary's schema, like schema.Check.
func Migrated(ctx context.Context, pool *pgxpool.Pool) error {
	return schema.Check(ctx, pool, tables(Features())...)
}

// SchemaVersions returns the versions of this binary's schema, like schema.Versions.
func SchemaVersions() ([]string, error) { return schema.Versions(tables(Features())...) }

// Health reads the state of Weir from the database.
func (p App) Health(ctx context.Context, now time.Time) (health.Report, error) {
	return health.Read(ctx, p.pool, now, p.cfg.Limits(), healthFeatures()...)
}
