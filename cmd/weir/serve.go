package main

import (
	"context"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/schema"
)

// connections is the size of a process's pool: the workers' transactions, those
// of the consumers of every shard, the page's queries, and River's own five.
func (c config) connections() int32 {
	return int32(c.Workers+c.BackfillWorkers) + 16 + schema.AutoShards
}

func newParts(cfg config, pool *pgxpool.Pool) parts {
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	p := parts{cfg: cfg, pool: pool, log: cfg.logger(), metrics: metrics, tracer: otel.Tracer("github.com/weir-social/weir"), owner: owner()}
	sayTraceErrors(p.log)
	return p
}

// everything runs the consumer, the workers and the page, and stops them all
// when one fails or ctx ends.
func (p parts) everything(ctx context.Context, l net.Listener) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.consume(ctx) })
	g.Go(func() error { return p.work(ctx) })
	g.Go(func() error { return p.serve(ctx, l) })
	return g.Wait()
}

// operated runs f with the endpoints for operators beside it, and ends them
// when f ends. reads says whether f runs a consumer.
func (p parts) operated(ctx context.Context, reads bool, f func(context.Context) error) error {
	if reads { // a mistake in what to read is said alone, before anything runs
		if err := p.checkSource(); err != nil {
			return err
		}
	}
	l, err := p.listenForOperators()
	if err != nil {
		return err
	}
	if l == nil {
		return f(ctx)
	}
	g, ctx := errgroup.WithContext(ctx)
	ctx, done := context.WithCancel(ctx)
	g.Go(func() error { return p.operate(ctx, l, reads) })
	g.Go(func() error {
		defer done()
		return f(ctx)
	})
	return g.Wait()
}

// checkSource reports a mistake in what to read.
func (p parts) checkSource() error {
	_, err := p.source(consumer.Filter{Everyone: true, Collections: p.cfg.Collections}, p.log, nil)
	return err
}

// partsCommand is a command that runs on the database that the environment
// names, with nothing on its command line.
func partsCommand(use, short string, run func(context.Context, parts) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withParts(cmd.Context(), func(ctx context.Context, p parts) error {
				defer context.AfterFunc(ctx, func() {
					p.log.Info("stopping", "waits_for", "commits and running jobs, 20 s at most", "second_signal", "ends at once")
				})()
				if err := run(ctx, p); err != nil {
					return err
				}
				p.log.Info("stopped") // a process that was killed does not say it
				return nil
			})
		},
	}
}

func serveCommand() *cobra.Command {
	return partsCommand("serve", "Run the consumer, the workers and the page on DATABASE_URL", notifying(func(ctx context.Context, p parts) error {
		return p.listening(func(l net.Listener) error {
			return p.operated(ctx, true, func(ctx context.Context) error { return p.everything(ctx, l) })
		})
	}, partConsumer, partWorkers, partPage))
}

func consumeCommand() *cobra.Command {
	return partsCommand("consume", "Run the consumers alone; a second process waits for the end of the first one's",
		notifying(func(ctx context.Context, p parts) error { return p.operated(ctx, true, p.consume) }, partConsumer))
}

func workCommand() *cobra.Command {
	var queues []string
	cmd := partsCommand("work", "Run workers alone; start as many processes as there is work",
		notifying(func(ctx context.Context, p parts) error {
			return p.operated(ctx, false, func(ctx context.Context) error { return p.work(ctx, queues...) })
		}, partWorkers))
	cmd.Flags().StringSliceVar(&queues, "queues", nil, "the queues to work, separated by commas: process, network, backfill, maintenance, alerts (default: all)")
	return cmd
}

func webCommand() *cobra.Command {
	return partsCommand("web", "Serve the page and the API alone", notifying(func(ctx context.Context, p parts) error {
		return p.listening(func(l net.Listener) error {
			return p.operated(ctx, false, func(ctx context.Context) error { return p.serve(ctx, l) })
		})
	}, partPage))
}

// listening runs f with the listener of the page.
func (p parts) listening(f func(net.Listener) error) error {
	l, err := p.cfg.listen()
	if err != nil {
		return err
	}
	p.log.Info("serving", "url", "http://"+l.Addr().String()+"/")
	return f(l)
}

// withParts runs f on the database that the environment names.
func withParts(ctx context.Context, f func(context.Context, parts) error) error {
	cfg, err := readConfig()
	if err != nil {
		return err
	}
	pool, err := cfg.migrated(ctx)
	if err != nil {
		return err
	}
	defer pool.Close()
	return f(ctx, newParts(cfg, pool))
}

func migrateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "migrate",
		Short: "Bring DATABASE_URL to this binary's schema",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig()
			if err != nil {
				return err
			}
			pool, err := cfg.database(cmd.Context(), 4)
			if err != nil {
				return err
			}
			defer pool.Close()
			if err := schema.Migrate(cmd.Context(), pool); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "the database has this binary's schema")
			return nil
		},
	}
}
