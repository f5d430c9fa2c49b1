package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/devpg"
	"github.com/weir-social/weir/schema"
)

func devCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dev",
		Short: "Run everything on a Postgres of its own, against the public Jetstream",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig()
			if err != nil {
				return err
			}
			cfg = cfg.forPeople(slog.LevelInfo)
			l, err := cfg.listen() // before Postgres starts: the address may be a demo's
			if err != nil {
				return fmt.Errorf("%w; set WEIR_LISTEN to another address", err)
			}
			defer l.Close() //nolint:errcheck // the page's server has closed it, or nobody has connected
			ctx := cmd.Context()
			defer sayStopping(ctx, cmd.OutOrStdout())()
			return withServer(ctx, cfg, devpg.Options{Dir: filepath.Join(cfg.Home, "dev"), Fsync: true}, func(pool *pgxpool.Pool) error {
				p := newParts(cfg, pool)
				announce(cmd.OutOrStdout(), "Weir reads the public Jetstream.", l)
				return p.operated(ctx, true, func(ctx context.Context) error { return p.everything(ctx, l) })
			})
		},
	}
}

// withServer runs f on a Postgres that lives as long as f does, migrated.
func withServer(ctx context.Context, cfg config, options devpg.Options, f func(*pgxpool.Pool) error) error {
	options.Logger = cfg.logger()
	server, err := devpg.Start(ctx, options)
	if err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := server.Stop(stop); err != nil {
			options.Logger.Error("postgres_not_stopped", "cause", err)
		}
	}()
	pool, err := openPool(ctx, server.URL("weir"), cfg.connections(), false)
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := schema.Migrate(ctx, pool); err != nil {
		return err
	}
	return f(pool)
}

// listenNear listens on the address, or on any free port where that one is
// taken, and says so: a demo should not fail because something else runs.
func listenNear(w io.Writer, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", address, err)
	}
	l, anyErr := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if anyErr != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", address, err)
	}
	fmt.Fprintf(w, "%s (WEIR_LISTEN) is taken: the page is at %s\n", address, l.Addr())
	return l, nil
}

// sayStopping tells a person at once that a signal has come, and what the process
// still waits for.
func sayStopping(ctx context.Context, w io.Writer) (done func() bool) {
	return context.AfterFunc(ctx, func() {
		fmt.Fprintln(w, "\nstopping: what was read is committed and running jobs end, within 20 seconds; Ctrl-C again ends at once")
	})
}

// announce tells a person where to look.
func announce(w io.Writer, what string, l net.Listener) {
	fmt.Fprintf(w, "\n  %s\n\n    the page      http://%s/\n    the ranking   bin/weir trending   (in another terminal)\n    stop          Ctrl-C\n\n", what, l.Addr())
}
