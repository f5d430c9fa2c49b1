package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/devpg"
	"github.com/weir-social/weir/simnet"
)

const (
	demoHistory = 20_000 // events of the day before the demo starts
	demoRate    = 25     // events a second from then on
)

func demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "Run everything on a throwaway Postgres, against a simulated network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := readConfig()
			if err != nil {
				return err
			}
			cfg = cfg.forPeople()
			ctx := cmd.Context()
			network, err := simnet.New(simnet.Config{Seed: uint64(time.Now().UnixNano()), History: demoHistory, Logger: cfg.logger()})
			if err != nil {
				return err
			}
			if err := network.Start("127.0.0.1:0"); err != nil {
				return err
			}
			defer network.Stop()
			cfg.readsFrom(network)
			return withServer(ctx, cfg, devpg.Options{Dir: filepath.Join(cfg.Home, "demo"), Ephemeral: true}, func(pool *pgxpool.Pool) error {
				l, err := listenNear(cfg.Listen)
				if err != nil {
					return err
				}
				p := newParts(cfg, pool)
				announce(cmd.OutOrStdout(), "Weir reads a small simulated network. It ends, and forgets, when you stop it.", l)
				g, ctx := errgroup.WithContext(ctx)
				g.Go(func() error { return p.everything(ctx, l) })
				g.Go(func() error {
					network.Live(ctx, demoRate)
					return nil
				})
				return g.Wait()
			})
		},
	}
}

// readsFrom points the consumer at a simulated network.
func (c *config) readsFrom(n *simnet.Net) {
	c.Jetstream, c.Start = []string{n.URL()}, "oldest"
	c.DictionaryURL, c.DictionarySHA256 = n.DictionaryURL(), n.DictionarySHA256()
	c.ImageBase = n.ImageBase()
}

// forPeople writes a log that is read on a terminal, where nothing else was
// asked for: plain text, and only what needs attention.
func (c config) forPeople() config {
	if _, asked := os.LookupEnv("WEIR_LOG_FORMAT"); !asked {
		c.LogFormat = "text"
	}
	if _, asked := os.LookupEnv("WEIR_LOG_LEVEL"); !asked {
		c.LogLevel = slog.LevelWarn
	}
	return c
}
