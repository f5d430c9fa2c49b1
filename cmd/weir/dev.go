package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/testing/devpg"
)

func devCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "dev",
		Short: "Run everything on its own Postgres server, against the public network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			cfg = cfg.ForTerminal(slog.LevelInfo)
			l, err := cfg.ListenPage() // before Postgres starts: a running demo may use the address
			if err != nil {
				return fmt.Errorf("%w; set WEIR_LISTEN to another address", err)
			}
			defer l.Close() // the page's server may have closed it
			ctx := cmd.Context()
			defer context.AfterFunc(ctx, func() { l.Close() })()
			defer output.Stopping(ctx, cmd.OutOrStdout())()
			return app.WithServer(ctx, cfg, devpg.Options{Dir: filepath.Join(cfg.Home, "dev"), Fsync: true}, func(pool *pgxpool.Pool) error {
				p := app.New(cfg, pool)
				return runAnnounced(ctx, p, cmd.OutOrStdout(), "Weir reads "+cfg.Reads()+".", l)
			})
		},
	}
}

// listenOrFallback listens on an address or, if it is in use, on a free port, and
// prints which one: a demo should not fail because another program is running.
func listenOrFallback(w io.Writer, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	host, _, splitErr := net.SplitHostPort(address)
	if splitErr != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", address, err)
	}
	l, fallbackErr := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if fallbackErr != nil {
		return nil, fmt.Errorf("listen on WEIR_LISTEN=%s: %w", address, err)
	}
	fmt.Fprintf(w, "%s (WEIR_LISTEN) is in use: the page is at %s\n", address, l.Addr())
	return l, nil
}

// runAnnounced runs everything, and prints the addresses of the page, the tools for operators, the ranking and the database.
func runAnnounced(ctx context.Context, p app.App, w io.Writer, title string, l net.Listener) error {
	var once sync.Once
	return p.WithOps(ctx, func(ctx context.Context, p app.App) error {
		once.Do(func() {
			fmt.Fprintf(w, "\n  %s\n\n    the page      http://%s/\n", title, l.Addr())
			for _, tool := range p.Tools() {
				fmt.Fprintf(w, "    %-13s %s\n", tool.Name, tool.URL)
			}
			fmt.Fprintf(w, "    the ranking   %s trending   (in another terminal)\n    SQL           psql %s\n    stop          Ctrl-C\n\n",
				os.Args[0], p.Pool().Config().ConnString())
		})
		return p.RunAll(ctx, l)
	}, app.Roles()...)
}
