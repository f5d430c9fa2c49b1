package app

import (
	"context"
	"io/fs"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/lexicon"
	"github.com/weir-social/weir/internal/nostr/directory"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ranking"
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

// tables returns the parts of the schema that the features have.
func tables() []fs.FS {
	return []fs.FS{ranking.Tables(), lexicon.Tables(), catalog.Tables(), directory.Tables()}
}

// Migrate brings a database to this binary's schema, like schema.Migrate.
func Migrate(ctx context.Context, pool *pgxpool.Pool) error {
	return schema.Migrate(ctx, pool, tables()...)
}

// Migrated returns nil if a database has this binary's schema, like schema.Check.
func Migrated(ctx context.Context, pool *pgxpool.Pool) error {
	return schema.Check(ctx, pool, tables()...)
}

// SchemaVersions returns the versions of this binary's schema, like schema.Versions.
func SchemaVersions() ([]string, error) { return schema.Versions(tables()...) }

// features returns the features' workers.
func (p App) features(api *bluesky.Client) []func(workers.Bundle) error {
	return []func(workers.Bundle) error{
		func(b workers.Bundle) error { lexicons.Add(b, p.cfg.lexicons(api)); return nil },
	}
}

// Health reads the state of Weir from the database.
func (p App) Health(ctx context.Context, now time.Time) (health.Report, error) {
	return health.Read(ctx, p.pool, now, p.cfg.Limits(), healthFeatures()...)
}
