package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
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
	demoSpacing = 10 * time.Millisecond
	demoMeets   = 20 * time.Second
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
			cfg = cfg.forPeople(slog.LevelWarn)
			ctx := cmd.Context()
			defer sayStopping(ctx, cmd.OutOrStdout())()
			network, err := simnet.New(simnet.Config{Seed: uint64(time.Now().UnixNano()), History: demoHistory, Logger: cfg.logger()})
			if err != nil {
				return err
			}
			if err := network.Start("127.0.0.1:0"); err != nil {
				return err
			}
			defer network.Stop()
			cfg.readsFrom(network)
			return withServer(ctx, cfg, devpg.Options{Dir: cfg.demoDir(), Ephemeral: true}, func(pool *pgxpool.Pool) error {
				l, err := listenNear(cmd.OutOrStdout(), cfg.Listen)
				if err != nil {
					return err
				}
				p := newParts(cfg, pool)
				announce(cmd.OutOrStdout(), "Weir follows "+network.Hub().Handle+"'s network, on a small simulated Bluesky. It ends, and forgets, when you stop it.", l)
				g, ctx := errgroup.WithContext(ctx)
				g.Go(func() error {
					return p.operated(ctx, true, func(ctx context.Context) error { return p.everything(ctx, l) })
				})
				g.Go(func() error {
					network.Live(ctx, demoRate)
					return nil
				})
				g.Go(func() error { return meet(ctx, network) })
				return g.Wait()
			})
		},
	}
}

// demoDir is where the demo keeps its Postgres.
func (c config) demoDir() string { return filepath.Join(c.Home, "demo") }

// errDemoNetwork is what a command returns that would ask a demo's network.
var errDemoNetwork = errors.New("only the demo itself reaches its simulated network")

// ofDemo reports whether the configuration leads to the database of a demo that
// runs beside this process: what the demo reads, only the demo knows.
func (c config) ofDemo() bool {
	running, ok := devpg.Running(c.Home)
	demo, is := devpg.RunningIn(c.demoDir())
	return c.DatabaseURL == "" && ok && is && running == demo
}

// readsFrom points the consumer and the workers at a simulated network, of which
// the accounts that its hub follows are followed. Nobody there minds quick calls
// and hourly work done every minute: a person sees more of both.
func (c *config) readsFrom(n *simnet.Net) {
	c.Jetstream, c.Start = []string{n.URL()}, "tip"
	c.DictionaryURL, c.DictionarySHA256 = n.DictionaryURL(), n.DictionarySHA256()
	c.ImageBase = n.ImageBase()
	c.AppView, c.Directory, c.Identifier, c.AppPassword = n.AppViewURL(), n.DirectoryURL(), "", ""
	c.Watch = []string{n.Hub().Handle}
	if !asked("WEIR_CALL_SPACING") {
		c.CallSpacing = demoSpacing
	}
	if !asked("WEIR_SYNC_EVERY") {
		c.SyncEvery = time.Minute
	}
}

// meet has the network's hub follow somebody else every now and then, so that
// there is something to sync.
func meet(ctx context.Context, n *simnet.Net) error {
	followed := n.Follows(n.Hub().DID)
	ticker := time.NewTicker(demoMeets)
	defer ticker.Stop()
	for _, a := range n.Accounts() {
		if a.Status != "" || slices.Contains(followed, a.DID) {
			continue
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := n.Follow(n.Hub().DID, a.DID); err != nil {
			return err
		}
	}
	return nil
}

// forPeople writes a log that is read on a terminal, where nothing else was
// asked for: plain text, from a level on.
func (c config) forPeople(from slog.Level) config {
	if !asked("WEIR_LOG_FORMAT") {
		c.LogFormat = "text"
	}
	if !asked("WEIR_LOG_LEVEL") {
		c.LogLevel = from
	}
	return c
}

// asked answers whether somebody has set a variable.
func asked(variable string) bool {
	_, set := os.LookupEnv(variable)
	return set
}
