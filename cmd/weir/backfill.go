package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/history"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

func backfillCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "backfill", Short: "Read the older records of accounts and collections"}
	cmd.AddCommand(backfillAddCommand(), backfillNetworkCommand(), backfillStatusCommand(), backfillCancelCommand())
	return cmd
}

func backfillAddCommand() *cobra.Command {
	var (
		back time.Duration
		all  bool
		name string
	)
	cmd := &cobra.Command{
		Use:   "add [ACCOUNT…]",
		Short: "Request backfills of accounts, by handle, DID or npub, of all followed accounts, or of a collection",
		RunE: func(cmd *cobra.Command, args []string) error {
			if chosen := []bool{len(args) > 0, all, name != ""}; count(chosen) != 1 {
				return fmt.Errorf("give accounts, --all or --collection")
			}
			if name != "" && cmd.Flags().Changed("back") {
				return fmt.Errorf("--back is for accounts: a collection is read as far back as it is kept")
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				switch {
				case name != "":
					if !p.Covers(name) {
						return fmt.Errorf("%s is not stored: name it in WEIR_COLLECTIONS first", name)
					}
					id, err := history.Request(ctx, p.Pool(), name)
					if err == nil {
						fmt.Fprintf(cmd.OutOrStdout(), "history of %s requested (job %d)\n", name, id)
					}
					return err
				case all:
					id, err := schema.RequestAllBackfills(ctx, p.Pool(), back)
					if err == nil {
						fmt.Fprintf(cmd.OutOrStdout(), "backfills requested (job %d)\n", id)
					}
					return err
				}
				for _, named := range args {
					account, err := p.AccountToRead(named)
					if err != nil {
						return err
					}
					id, err := schema.RequestBackfill(ctx, p.Pool(), account, back)
					if err != nil {
						return err
					}
					fmt.Fprintf(cmd.OutOrStdout(), "backfill of %s requested (job %d)\n", account, id)
				}
				return nil
			})
		},
	}
	cmd.Flags().DurationVar(&back, "back", 24*time.Hour, "how far back to read")
	cmd.Flags().BoolVar(&all, "all", false, "request a backfill of every followed account")
	cmd.Flags().StringVar(&name, "collection", "", "request the past of a collection, or of a prefix such as pub.layers.*")
	return cmd
}

func backfillNetworkCommand() *cobra.Command {
	var (
		since       time.Duration
		collections []string
	)
	cmd := &cobra.Command{
		Use:   "network",
		Short: "Request what the archive of a Jetstream server has of the stored accounts and collections",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			for _, name := range collections {
				if !p.Covers(name) {
					return fmt.Errorf("%s is not stored: name it in WEIR_COLLECTIONS first", name)
				}
			}
			id, err := schema.RequestNetworkBackfill(ctx, p.Pool(), since, collections)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "backfill of the network requested (job %d)\n", id)
			}
			return err
		}),
	}
	cmd.Flags().DurationVar(&since, "since", 24*time.Hour, "how far back to read")
	cmd.Flags().StringSliceVar(&collections, "collections", nil, "only these of the stored collections, or prefixes such as pub.layers.*")
	return cmd
}

// describeNetworkBackfill describes the progress of a backfill of the network.
func describeNetworkBackfill(b schema.NetworkBackfill) string {
	state := "reading"
	switch {
	case b.Complete:
		state = "complete"
	case b.Cancelled:
		state = "cancelled"
	case b.ReadTo == nil:
		state = "waiting"
	}
	words := []string{state, fmt.Sprintf("%d %% of %s to %s", int(100*(b.Rest().Sub(b.From).Seconds()/b.To.Sub(b.From).Seconds())),
		b.From.UTC().Format(time.RFC3339), b.To.UTC().Format(time.RFC3339)),
		output.Count(b.Events, "event", "events"), output.Count(b.Records, "record", "records") + " changed"}
	if b.Gap != nil {
		words = append(words, fmt.Sprintf("for gap %d", *b.Gap))
	}
	if b.Host != "" {
		words = append(words, "from "+web.Plain(b.Host))
	}
	if b.Problem != "" {
		words = append(words, web.Plain(b.Problem))
	}
	return strings.Join(words, ", ")
}

// count returns how many values are true.
func count(all []bool) (n int) {
	for _, one := range all {
		if one {
			n++
		}
	}
	return n
}

func backfillStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the progress of the backfills",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			b, err := schema.CountBackfills(ctx, p.Pool(), time.Now())
			if err != nil {
				return err
			}
			histories, err := history.Histories(ctx, p.Pool())
			if err != nil {
				return err
			}
			networks, err := schema.NetworkBackfills(ctx, p.Pool())
			if err != nil {
				return err
			}
			if err := printBackfills(cmd.OutOrStdout(), b); err != nil {
				return err
			}
			for _, n := range networks {
				fmt.Fprintf(cmd.OutOrStdout(), "network: %s\n", describeNetworkBackfill(n))
			}
			for _, h := range histories {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", web.Plain(h.Collection), describeHistory(h))
			}
			return nil
		}),
	}
}

// printBackfills draws a progress bar of the backfills of the last hour.
func printBackfills(w io.Writer, b schema.Backfills) error {
	open := b.Waiting + b.Running + b.Failing
	if open+b.Done == 0 {
		_, err := fmt.Fprintln(w, "no backfill was requested in the last hour")
		return err
	}
	bar := progressbar.NewOptions(open+b.Done, progressbar.OptionSetWriter(w), progressbar.OptionSetWidth(40), progressbar.OptionShowCount(),
		progressbar.OptionSetPredictTime(false), progressbar.OptionSetElapsedTime(false), progressbar.OptionSetDescription("accounts"))
	if err := bar.Set(b.Done); err != nil {
		return err
	}
	words := []string{fmt.Sprintf("%d running", b.Running), fmt.Sprintf("%d waiting", b.Waiting),
		fmt.Sprintf("%d waiting for a retry", b.Failing), fmt.Sprintf("%d posts found", b.Posts)}
	if rate := float64(b.LastMinute); rate > 0 {
		words = append(words, fmt.Sprintf("%.0f accounts/min", rate))
		if open > 0 {
			words = append(words, "about "+(time.Duration(float64(open)/rate*float64(time.Minute))).Round(time.Second).String()+" left")
		}
	}
	_, err := fmt.Fprintf(w, "\n%s\n", strings.Join(words, ", "))
	return err
}

// describeHistory describes the progress of a history.
func describeHistory(h history.History) string {
	of := ""
	if h.State == history.StateListing {
		of = " listed so far"
	}
	words := []string{h.State, fmt.Sprintf("%d of %s%s", h.Done, output.Count(h.Accounts, "account", "accounts"), of), output.Count(h.Records,
		"record", "records")}
	if h.Limited > 0 {
		words = append(words, output.Count(h.Limited, "account", "accounts")+" at the limit")
	}
	if h.Unread > 0 {
		words = append(words, fmt.Sprintf("%d cannot be read for now", h.Unread))
	}
	if h.Problem != "" {
		words = append(words, web.Plain(h.Problem))
	}
	return strings.Join(words, ", ")
}

func backfillCancelCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "cancel",
		Short: "Cancel every backfill that has not started, and the histories of collections",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			queue, err := workers.Queue(p.Pool(), p.Log())
			if err != nil {
				return err
			}
			histories, err := history.Cancel(ctx, p.Pool())
			if err != nil {
				return err
			}
			networks, err := schema.CancelNetworkBackfills(ctx, p.Pool())
			if err != nil {
				return err
			}
			n, err := workers.CancelBackfills(ctx, queue)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s cancelled; running ones continue\n", output.Count(int64(n), "backfill", "backfills"))
			}
			if networks > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s of the network cancelled\n", output.Count(networks, "backfill", "backfills"))
			}
			if histories > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%s cancelled: weir backfill add --collection continues one\n",
					output.Count(int64(histories), "history", "histories"))
			}
			return err
		}),
	}
}
