package main

import (
	"context"
	"net"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
)

// appCommand returns a command without arguments that runs on DATABASE_URL.
func appCommand(use, short string, run func(context.Context, app.App) error) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, _ *cobra.Command, _ []string) error {
			defer context.AfterFunc(ctx, func() {
				p.Log().Info("stopping", "waits_for", "commits and running jobs, for 20 s at most", "second_signal", "stops at once")
			})()
			if err := run(ctx, p); err != nil {
				return err
			}
			p.Log().Info("stopped") // a killed process does not log this
			return nil
		}),
	}
}

func serveCommand() *cobra.Command {
	return appCommand("serve", "Run the consumer, the workers and the page on DATABASE_URL",
		app.WithSystemd(func(ctx context.Context, p app.App) error { return p.Run(ctx) }, app.Roles()...))
}

func consumeCommand() *cobra.Command {
	return appCommand("consume", "Run only the consumers; a second process waits until the first one stops",
		app.WithSystemd(func(ctx context.Context, p app.App) error {
			return p.WithOps(ctx, func(ctx context.Context, p app.App) error { return p.Consume(ctx) }, app.RoleConsumer)
		}, app.RoleConsumer))
}

func workCommand() *cobra.Command {
	var queues []string
	cmd := appCommand("work", "Run only the workers; start as many processes as you need",
		app.WithSystemd(func(ctx context.Context, p app.App) error {
			return p.WithOps(ctx, func(ctx context.Context, p app.App) error { return p.Work(ctx, queues...) }, app.RoleWorkers)
		}, app.RoleWorkers))
	cmd.Flags().StringSliceVar(&queues, "queues", nil, "the queues to process, separated by commas: process, network, backfill, resync, "+
		"maintenance, alerts, and those of features (default: all)")
	return cmd
}

func webCommand() *cobra.Command {
	return appCommand("web", "Serve only the page and the API", app.WithSystemd(func(ctx context.Context, p app.App) error {
		return p.WithListener(ctx, func(l net.Listener) error {
			return p.WithOps(ctx, func(ctx context.Context, p app.App) error { return p.Serve(ctx, l) }, app.RolePage)
		})
	}, app.RolePage))
}
