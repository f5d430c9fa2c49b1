package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/devpg"
)

func devCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dev",
		Short: "Run everything on a Postgres of its own, against the public Jetstream",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			cfg = cfg.ForTerminal(slog.LevelInfo)
			l, err := cfg.ListenPage() // before Postgres starts: the address may be a demo's
			if err != nil {
				return fmt.Errorf("%w; set WEIR_LISTEN to another address", err)
			}
			defer l.Close() //nolint:errcheck // the page's server has closed it, or nobody has connected
			ctx := cmd.Context()
			defer sayStopping(ctx, cmd.OutOrStdout())()
			return app.WithServer(ctx, cfg, devpg.Options{Dir: filepath.Join(cfg.Home, "dev"), Fsync: true}, func(pool *pgxpool.Pool) error {
				p := app.New(cfg, pool)
				announce(cmd.OutOrStdout(), "Weir reads the public Jetstream.", l)
				return p.WithOps(ctx, true, func(ctx context.Context) error { return p.RunAll(ctx, l) })
			})
		},
	}
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
