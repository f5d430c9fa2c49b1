package app

import (
	"context"
	"net"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/schema"
)

// Connections returns the size of a process's pool: the workers' transactions,
// four for the consumer, the page's queries, and five for River.
func (c Config) Connections() int32 {
	all := c.Workers + c.BackfillWorkers + 20
	for _, p := range c.opened.Projections {
		for _, q := range p.Separate {
			all += q.Workers
		}
	}
	return int32(all)
}

// New returns a process on a database, with Weir's own projections.
func New(cfg Config, pool *pgxpool.Pool) App {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p := App{
		cfg: cfg, pool: pool, log: cfg.Logger(), metrics: metrics, tracer: otel.Tracer("github.com/weir-social/weir"), owner: owner(),
		stored: cfg.registry(), signatures: &signatures{},
	}
	// ReadConfig has checked it
	p.parts, _ = cfg.open(feature.Services{Pool: pool, Log: p.log, Metrics: metrics, UserAgent: userAgent, Limit: p.calls().Take,
		Requested: func(ctx context.Context) (*consumer.Retry, error) { return p.requested(ctx) },
		Wires: func(wanted func(string) bool) (map[string]consumer.Wire, error) {
			return p.wires(feature.Decoding{Archived: true, Wanted: wanted})
		},
		Tombstones: func() (time.Duration, error) {
			keep, err := p.retention()
			return keep.Tombstones, err
		}})
	p.projections = schema.NewProjections(p.parts.Projections...)
	logTraceErrors(p.log)
	return p
}

// register writes the projections to the database. It must run before records are
// stored.
func (p App) register(ctx context.Context) error {
	changed, err := p.projections.Register(ctx, p.pool)
	for _, name := range changed {
		p.log.Info("projection_registered", "projection", name)
	}
	return err
}

// RunAll runs the consumer, the workers and the page, and stops all of them if one
// fails or ctx ends.
func (p App) RunAll(ctx context.Context, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.Consume(ctx) })
	g.Go(func() error { return p.Work(ctx) })
	g.Go(func() error { return p.Serve(ctx, l) })
	return g.Wait()
}

// Run runs everything, with the listeners of the page and of operators.
func (p App) Run(ctx context.Context) error {
	return p.WithListener(ctx, func(l net.Listener) error {
		return p.WithOps(ctx, func(ctx context.Context, p App) error { return p.RunAll(ctx, l) }, Roles()...)
	})
}

// projectionsWatch is how often a process checks that the database has its projections. It
// is much shorter than the time after which River rescues a job and, if its kind is unknown,
// discards it.
const projectionsWatch = 5 * time.Second

// WithOps registers the projections, and runs f with the operators' endpoints until
// f ends, or until another program registers other projections. When the stored
// collections change, it runs f again with them. roles are what f runs.
func (p App) WithOps(ctx context.Context, f func(context.Context, App) error, roles ...string) error {
	p, _, err := p.current(ctx)
	if err != nil {
		return err
	}
	if slices.Contains(roles, RoleConsumer) { // report an invalid source before anything runs
		if err := p.checkSource(); err != nil {
			return err
		}
	}
	l, err := p.listenOps()
	if err != nil {
		return err
	}
	if l != nil {
		defer context.AfterFunc(ctx, func() { l.Close() })() // it has no connections
		defer l.Close()
	}
	for {
		err := p.withOps(ctx, roles, l, f)
		if err == nil || ctx.Err() != nil {
			return err
		}
		// Another process that has noticed a change may have registered other projections.
		now, changed, _ := p.current(ctx)
		if !changed {
			return err
		}
		now.log.Info("collections_changed", "collections", now.cfg.Collections)
		p = now
	}
}

func (p App) withOps(ctx context.Context, roles []string, l net.Listener, f func(context.Context, App) error) error {
	if slices.Equal(roles, []string{RoleConsumer}) {
		p.parts.Tools = nil // a process that only reads streams has none
	}
	if l != nil {
		p.tools = p.servedTools(l.Addr())
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	g.Go(func() error { return p.projections.Watch(ctx, p.pool, projectionsWatch) })
	g.Go(func() error { return p.watchCollections(ctx) })
	if l != nil {
		g.Go(func() error { return p.serveOps(ctx, l, roles) })
	}
	g.Go(func() error {
		defer done()
		return f(ctx, p)
	})
	return g.Wait()
}

// checkSource returns an error if the configuration of a source is invalid.
func (p App) checkSource() error {
	if _, err := p.cfg.stored(); err != nil {
		return err
	}
	for _, one := range p.streams() {
		if _, err := p.open(one, p.log, nil); err != nil {
			return err
		}
	}
	return nil
}

// WithListener runs f with the page's listener, until ctx ends.
func (p App) WithListener(ctx context.Context, f func(net.Listener) error) error {
	l, err := p.cfg.ListenPage()
	if err != nil {
		return err
	}
	defer l.Close() // it has no connections
	defer context.AfterFunc(ctx, func() { l.Close() })()
	p.log.Info("serving", "url", "http://"+l.Addr().String()+"/")
	return f(l)
}

// With runs f on the configured database, which must have this binary's schema. A program
// with more features than Weir has migrates it first.
func With(ctx context.Context, f func(context.Context, App) error, more ...feature.Feature) error {
	cfg, err := ReadConfig(more...)
	if err != nil {
		return err
	}
	return cfg.with(ctx, f)
}

func (c Config) with(ctx context.Context, f func(context.Context, App) error) error {
	pool, err := c.Migrated(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	p, _, err := New(c, pool).current(ctx)
	if err != nil {
		return err
	}
	return f(ctx, p)
}
