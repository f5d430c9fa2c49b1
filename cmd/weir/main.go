// Command weir follows a social stream, stores its posts in Postgres and ranks
// the links they share.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/crashpoint"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx); err != nil && (ctx.Err() == nil || !errors.Is(err, context.Canceled)) {
		level := ""
		if app.InJournal() {
			level = app.JournalPriority(slog.LevelError)
		}
		fmt.Fprintln(os.Stderr, level+"weir: "+err.Error())
		os.Exit(1)
	}
}

// run runs the command with tracing.
func run(ctx context.Context) error {
	if len(os.Args) < 2 || os.Args[1] != "demo" { // which must not touch an archive, say, of the settings
		if err := app.ReadSettings(); err != nil {
			return err
		}
	}
	stop, err := app.StartTraces(ctx)
	if err != nil {
		return err
	}
	defer stop()
	if err := app.CheckArguments(os.Args[1:]); err != nil {
		return err
	}
	if ctx, err = crashpoint.FromEnvironment(ctx); err != nil {
		return err
	}
	return root().ExecuteContext(ctx)
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "weir",
		Short:         "Weir ranks the links that your network shares, live, in one Postgres",
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return app.CheckVariables(os.Environ())
		},
	}
	cmd.AddCommand(demoCommand(), initCommand(), devCommand(), serveCommand(), consumeCommand(), workCommand(), webCommand(),
		migrateCommand(), watchCommand(), collectionCommand(), backfillCommand(), deadletterCommand(), projectionCommand(), rebuildCommand(),
		ingestCommand(), statusCommand(), healthcheckCommand(),
		doctorCommand(), configCommand(), auditCommand(), compareCommand(), traceCommand(), simnetCommand(), versionCommand())
	cmd.AddCommand(app.Commands()...)
	return cmd
}

// onDatabase returns the run of a command on the configured database.
func onDatabase(run func(context.Context, app.App, *cobra.Command, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		return app.With(cmd.Context(), func(ctx context.Context, p app.App) error { return run(ctx, p, cmd, args) })
	}
}
