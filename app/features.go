package app

import (
	"context"
	"io/fs"
	"slices"
	"time"

	"github.com/caarlos0/env/v11"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	archive "github.com/weir-social/weir/internal/archive/work"
	"github.com/weir-social/weir/internal/clickhouse"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/internal/web/feeds"
	"github.com/weir-social/weir/internal/web/riverui"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
	"github.com/weir-social/weir/workers/cards"
	"github.com/weir-social/weir/workers/lexicons"
	"github.com/weir-social/weir/workers/links"
	"github.com/weir-social/weir/workers/nostr"
)

// Features returns Weir's features, with the defaults of their variables.
func Features() []feature.Feature {
	all := []feature.Feature{
		links.Feature(),
		cards.Feature(),
		lexicons.Feature(),
		feeds.Feature(),
		archive.Feature(),
		clickhouse.Feature(),
		nostr.Feature(),
		riverui.Feature(),
	}
	for _, f := range all {
		if f.Config != nil {
			env.ParseWithOptions(f.Config, env.Options{Environment: map[string]string{}}) // a default can be read
		}
	}
	return all
}

// parts are what the features of a process bring, together.
type parts struct {
	feature.Parts
	workers  []func(workers.Bundle) error
	networks workers.Networks
	rebuilt  []func(context.Context, workers.Bundle) error
	core     feature.Core
}

// open opens the features, in their order.
func (c Config) open(s feature.Services) (parts, error) {
	all := &parts{}
	core := feature.Core{Simulated: c.Simulated, Pictures: c.Pictures, Services: s, Registry: c.registry(),
		Queues: append(jobs.Queues(), jobs.QueueProcess), Snapshots: func() []schema.SnapshotTable { return all.Snapshots }}
	for _, f := range c.features {
		core.Queues = append(core.Queues, f.Queues...)
	}
	for _, f := range c.features {
		core.Projections, core.Unstored = all.Projections, all.unstored()
		one, err := f.Open(core)
		if err != nil {
			return *all, err
		}
		all.add(one)
	}
	all.core = core
	return *all, nil
}

// add adds what a feature brings.
func (p *parts) add(one feature.Parts) {
	p.Projections, p.Pages, p.Hooks = append(p.Projections, one.Projections...), append(p.Pages, one.Pages...), append(p.Hooks, one.Hooks...)
	p.Snapshots, p.Health, p.Checks = append(p.Snapshots, one.Snapshots...), append(p.Health, one.Health...), append(p.Checks, one.Checks...)
	p.Compared, p.Uncompared = append(p.Compared, one.Compared...), append(p.Uncompared, one.Uncompared...)
	p.Tools = append(p.Tools, one.Tools...)
	p.Sources = append(p.Sources, one.Sources...)
	if one.Network != nil {
		p.networks = append(p.networks, one.Network)
	}
	p.Keeps, p.Relations = max(p.Keeps, one.Keeps), p.Relations+one.Relations
	if one.Workers != nil {
		p.workers = append(p.workers, one.Workers)
	}
	if one.Rebuilt != nil {
		p.rebuilt = append(p.rebuilt, one.Rebuilt)
	}
	if one.Frames != nil {
		p.Frames = one.Frames
	}
	if one.Widen != nil {
		p.Widen = one.Widen
	}
}

// frames returns what keeps the frames of a stream that follows these accounts; nil: no frame is kept.
func (p *parts) frames(follows func(did string) bool) consumer.FrameHook {
	if p.Frames == nil {
		return nil
	}
	return p.Frames(follows)
}

// widen returns the filter of a stream that also covers what features keep of it.
func (p *parts) widen(f consumer.Filter) consumer.Filter {
	if p.Widen == nil {
		return f
	}
	return p.Widen(f)
}

// unstored reports whether features keep events that are not stored.
func (p *parts) unstored() bool {
	return len(p.widen(consumer.Filter{Collections: []string{schema.PostCollection}}).Collections) == 0
}

// program runs the commands of features.
type program struct{ features []feature.Feature }

// Commands returns the commands of the features. A feature can add to the command of another.
func Commands() (all []*cobra.Command) {
	p := program{Features()}
	for _, f := range p.features {
		if f.Commands == nil {
			continue
		}
		for _, cmd := range f.Commands(p) {
			if i := slices.IndexFunc(all, func(c *cobra.Command) bool { return c.Name() == cmd.Name() }); i >= 0 {
				all[i].AddCommand(cmd.Commands()...)
			} else {
				all = append(all, cmd)
			}
		}
	}
	return all
}

// TraceFeatures returns what the features add to weir trace.
func TraceFeatures() (all []trace.Feature) {
	for _, f := range Features() {
		all = append(all, f.Trace)
	}
	return all
}

func (p program) With(ctx context.Context, f func(context.Context, feature.Process) error) error {
	cfg, err := readConfig(Config{features: p.features})
	if err != nil {
		return err
	}
	return cfg.with(ctx, func(ctx context.Context, a App) error { return f(ctx, a) })
}

func (p program) Without(ctx context.Context, f func(context.Context, feature.Process) error) error {
	cfg, err := readConfig(Config{features: p.features})
	if err != nil {
		return err
	}
	return f(ctx, New(cfg, nil))
}

// tables returns the parts of the schema that the features have.
func tables(features []feature.Feature) []fs.FS {
	var all []fs.FS
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

// PlanMigration returns what Migrate would do, like schema.Plan.
func PlanMigration(ctx context.Context, pool *pgxpool.Pool) ([]schema.Step, error) {
	return schema.Plan(ctx, pool, tables(Features())...)
}

// Migrated returns nil if a database has this binary's schema, like schema.Check.
func Migrated(ctx context.Context, pool *pgxpool.Pool) error {
	return schema.Check(ctx, pool, tables(Features())...)
}

// SchemaVersions returns the versions of this binary's schema, like schema.Versions.
func SchemaVersions() ([]string, error) { return schema.Versions(tables(Features())...) }

// Health reads the state of Weir from the database.
func (p App) Health(ctx context.Context, now time.Time) (health.Report, error) {
	return health.Read(ctx, p.pool, now, p.cfg.Limits(), p.parts.Health...)
}
