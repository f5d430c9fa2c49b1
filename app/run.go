package app

import (
	"context"
	"net"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// Connections is the size of a process's pool: the workers' transactions, those
// of the consumers of every shard, the page's queries, and River's own five.
func (c Config) Connections() int32 {
	return int32(c.Workers+c.BackfillWorkers) + 16 + schema.AutoShards
}

func New(cfg Config, pool *pgxpool.Pool) App {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p := App{cfg: cfg, pool: pool, projections: standard(), log: cfg.Logger(), metrics: metrics, tracer: otel.Tracer("github.com/weir-social/weir"), owner: owner(), stored: cfg.registry()}
	sayTraceErrors(p.log)
	return p
}

// standard are the projections of Weir itself.
func standard() *workers.Projections { return workers.NewProjections(jobs.Links()) }

// WithProjection is the app with one more projection. add gives it the worker of
// the projection's jobs.
func (p App) WithProjection(projection jobs.Projection, add func(workers.Bundle)) App {
	p.projections = p.projections.With(projection)
	p.more = append(slices.Clip(p.more), add)
	return p
}

// register writes the projections down in the database. Whoever stores records
// does it first.
func (p App) register(ctx context.Context) error {
	return p.projections.Register(ctx, p.pool, p.log)
}

// RunAll runs the consumer, the workers and the page, and stops them all
// when one fails or ctx ends.
func (p App) RunAll(ctx context.Context, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.Consume(ctx) })
	g.Go(func() error { return p.Work(ctx) })
	g.Go(func() error { return p.Serve(ctx, l) })
	return g.Wait()
}

// Run runs everything, with a listener for the page and one for operators.
func (p App) Run(ctx context.Context) error {
	return p.WithListener(func(l net.Listener) error {
		return p.WithOps(ctx, true, func(ctx context.Context) error { return p.RunAll(ctx, l) })
	})
}

// WithOps registers the projections, and runs f with the endpoints for operators
// beside it until f ends, or another program registers other projections. reads
// says whether f runs a consumer.
func (p App) WithOps(ctx context.Context, reads bool, f func(context.Context) error) error {
	if reads { // a mistake in what to read is said alone, before anything runs
		if err := p.checkSource(); err != nil {
			return err
		}
	}
	if err := p.register(ctx); err != nil {
		return err
	}
	l, err := p.listenForOperators()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	g.Go(func() error { return p.projections.Watch(ctx, p.pool) })
	if l != nil {
		g.Go(func() error { return p.operate(ctx, l, reads) })
	}
	g.Go(func() error {
		defer done()
		return f(ctx)
	})
	return g.Wait()
}

// checkSource reports a mistake in what to read.
func (p App) checkSource() error {
	if _, err := p.cfg.stored(); err != nil {
		return err
	}
	_, err := p.source(consumer.Filter{Everyone: true, Collections: p.stored.Filter()}, p.log, nil)
	return err
}

// WithListener runs f with the listener of the page.
func (p App) WithListener(f func(net.Listener) error) error {
	l, err := p.cfg.ListenPage()
	if err != nil {
		return err
	}
	p.log.Info("serving", "url", "http://"+l.Addr().String()+"/")
	return f(l)
}

// With runs f on the database that the environment names.
func With(ctx context.Context, f func(context.Context, App) error) error {
	cfg, err := ReadConfig()
	if err != nil {
		return err
	}
	pool, err := cfg.Migrated(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(ctx, New(cfg, pool))
}
