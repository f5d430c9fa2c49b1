package main

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/testing/devpg"
	"github.com/weir-social/weir/internal/testing/simnet"
)

const (
	demoHistory        = 20_000 // events of the day before the start
	demoRate           = 25     // events per second from then on
	demoSpacing        = 10 * time.Millisecond
	demoFollowInterval = 20 * time.Second

	demoAuthors = 60  // Nostr authors
	demoNotes   = 600 // their events in the six hours before the start
	demoTalk    = 2.0 // events per second from then on
)

func demoCommand() *cobra.Command {
	source, both := "", false
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Run everything on a throwaway Postgres, against a simulated network",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			if cmd.Flags().Changed("source") {
				if err := cfg.SetSource(source); err != nil {
					return fmt.Errorf("--source: %w", err)
				}
			}
			cfg = cfg.ForTerminal(slog.LevelWarn)
			ctx := cmd.Context()
			defer output.Stopping(ctx, cmd.OutOrStdout())()
			fmt.Fprintln(cmd.OutOrStdout(),
				"Starting a simulated Bluesky and a Postgres of its own. The page's address follows in seconds.")
			network, err := simnet.New(simnet.Config{
				Seed: uint64(time.Now().UnixNano()), History: demoHistory,
				Serving: simnet.Serving{Events: true, Archive: &simnet.Archive{}}, Logger: cfg.Logger(),
			})
			if err != nil {
				return err
			}
			if err := network.Start("127.0.0.1:0"); err != nil {
				return err
			}
			defer network.Stop()
			if err := network.Showcase(); err != nil {
				return err
			}
			useSimnet(&cfg, network)
			what := "Weir follows " + network.Hub().Handle + "'s network, on a small simulated Bluesky."
			var relay *simnet.Nostr
			if both {
				if relay, err = useSimnetNostr(&cfg, network); err != nil {
					return err
				}
				defer relay.Stop()
				what = "Weir reads a small simulated Bluesky and a simulated relay of Nostr."
			}
			return app.WithServer(ctx, cfg, devpg.Options{Dir: cfg.DemoDir(), Ephemeral: true}, func(pool *pgxpool.Pool) error {
				l, err := listenOrFallback(cmd.OutOrStdout(), cfg.Listen)
				if err != nil {
					return err
				}
				defer context.AfterFunc(ctx, func() { l.Close() })()
				p := app.New(cfg, pool)
				g, ctx := errgroup.WithContext(ctx)
				g.Go(func() error {
					return runAnnounced(ctx, p, cmd.OutOrStdout(), what+" All data is deleted when you stop it.", l)
				})
				g.Go(func() error {
					network.Live(ctx, demoRate)
					return nil
				})
				if relay == nil {
					g.Go(func() error { return followMore(ctx, network) })
				} else {
					g.Go(func() error {
						relay.Speak(ctx, demoTalk, network.Articles)
						return nil
					})
				}
				return g.Wait()
			})
		},
	}
	cmd.Flags().BoolVar(&both, "nostr", false, "read a simulated relay of Nostr too, and the whole of both networks")
	cmd.Flags().StringVar(&source, "source", app.SourceJetstream,
		"what the stream is read from: "+app.SourceJetstream+" or "+app.SourceFirehose+"; the default is WEIR_SOURCE")
	return cmd
}

// useSimnet points the consumer and the workers at a simulated network and watches the follows of
// its hub. API calls and syncs are more frequent than usual, so that the demo shows more.
func useSimnet(c *app.Config, n *simnet.Net) {
	c.Jetstream, c.Relays, c.Start = []string{n.URL()}, []string{n.RelayURL()}, "tip"
	c.AppView, c.Directory, c.Identifier, c.AppPassword = n.AppViewURL(), n.DirectoryURL(), "", ""
	c.Watch = []string{n.Hub().Handle}
	c.Simulated, c.Pictures = true, n.ImageBase()
	if !app.IsSet("WEIR_API_INTERVAL") {
		c.APIInterval = demoSpacing
	}
	if !app.IsSet("WEIR_SYNC_INTERVAL") {
		c.SyncInterval = time.Minute
	}
}

// useSimnetNostr starts a relay whose authors share some of the articles of a simulated network,
// and makes Weir read it too. It adds no watch, because the watch of a Bluesky account leads to no
// Nostr author. The history of both networks is read from their servers.
func useSimnetNostr(c *app.Config, n *simnet.Net) (*simnet.Nostr, error) {
	// a seed
	relay, err := simnet.NewNostr(simnet.NostrConfig{
		Seed: uint64(time.Now().UnixNano()), Authors: demoAuthors, Now: time.Now(), Relays: []simnet.NostrRelay{{Page: 500}},
	})
	if err != nil {
		return nil, err
	}
	relay.Populate(demoNotes, 6*time.Hour, n.Articles())
	c.Watch, c.Start, c.Collections = nil, "oldest", append(slices.Clone(c.Collections), "nostr.0", "nostr.1", "nostr.6")
	return relay, c.SetEndpoints("nostr", relay.URLs())
}

// followMore makes the network's hub follow another account at intervals, so that syncs find
// changes.
func followMore(ctx context.Context, n *simnet.Net) error {
	followed := n.Follows(n.Hub().DID)
	ticker := time.NewTicker(demoFollowInterval)
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
