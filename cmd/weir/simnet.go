package main

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/testing/simnet"
)

func simnetCommand() *cobra.Command {
	var (
		listen     string
		seed       uint64
		accounts   int
		history    int
		span       time.Duration
		rate       float64
		mix        string
		generation int
	)
	cmd := &cobra.Command{
		Use:   "simnet",
		Short: "Run only a small simulated Bluesky: Jetstream, relay, AppView and directory",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			network := simnet.Config{
				Seed: seed, Accounts: accounts, History: history, HistorySpan: span,
				Serving: simnet.Serving{Events: true, Archive: &simnet.Archive{}}, Logger: cfg.ForTerminal(slog.LevelWarn).Logger(),
			}
			switch mix {
			case "posts":
				network.Mix = simnet.MixPosts
			case "network":
				network.Mix = simnet.MixNetwork
			default:
				return fmt.Errorf("--mix is %q: expected posts or network", mix)
			}
			switch generation {
			case 1:
				network.Generation = simnet.V1
			case 2:
				network.Generation = simnet.V2
			default:
				return fmt.Errorf("--generation is %d: expected 1 or 2", generation)
			}
			if rate < 0 || history < 0 {
				return fmt.Errorf("--rate and --history cannot be negative")
			}
			n, err := simnet.New(network)
			if err != nil {
				return err
			}
			if err := n.Start(listen); err != nil {
				return err
			}
			defer n.Stop()
			fmt.Fprintf(cmd.OutOrStdout(), "export WEIR_JETSTREAM=%s\nexport WEIR_RELAYS=%s\nexport WEIR_IMAGE_BASE='%s'\n"+
				"export WEIR_APPVIEW=%s\nexport WEIR_DIRECTORY=%s\nexport WEIR_WATCH=%s\nexport WEIR_FETCH_CARDS=false\n",
				n.URL(), n.RelayURL(), n.ImageBase(), n.AppViewURL(), n.DirectoryURL(), n.Hub().Handle)
			n.Live(cmd.Context(), rate)
			<-cmd.Context().Done()
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:6008", "the address to listen on")
	cmd.Flags().Uint64Var(&seed, "seed", 1, "the same seed gives the same history")
	cmd.Flags().IntVar(&accounts, "accounts", 2000, "the number of accounts")
	cmd.Flags().IntVar(&history, "history", 20_000, "the number of events before the start")
	cmd.Flags().DurationVar(&span, "span", 24*time.Hour, "the time span of these events")
	cmd.Flags().Float64Var(&rate, "rate", 25, "events per second after the start")
	cmd.Flags().StringVar(&mix, "mix", "posts", "the mix of events: posts (almost only posts) or network (as on the real network)")
	cmd.Flags().IntVar(&generation, "generation", 2, "the generation of the server: 1 (times as cursors) or 2 (sequence numbers too)")
	return cmd
}
