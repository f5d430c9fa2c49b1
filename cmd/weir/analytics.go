package main

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/archive/clickhouse"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/web"
)

func analyticsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "analytics",
		Short: "Query the archive's copy in WEIR_CLICKHOUSE; needs no database",
	}
	cmd.AddCommand(topLinksCommand(), linksByDayCommand(), firstSharersCommand())
	return cmd
}

func topLinksCommand() *cobra.Command {
	var days, limit uint32
	cmd := &cobra.Command{
		Use:   "top-links",
		Short: "Print the links that the most accounts shared",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printQuery(cmd, "SHARERS\tPOSTS\tLINK", func(ctx context.Context, x *clickhouse.Index) ([]clickhouse.SharedLink, error) {
				return x.TopLinks(ctx, days, limit)
			}, func(w io.Writer, l clickhouse.SharedLink) {
				fmt.Fprintf(w, "%d\t%d\t%s\n", l.Sharers, l.Posts, web.Plain(l.Link))
			})
		},
	}
	cmd.Flags().Uint32Var(&days, "days", 30, "how far back to count")
	cmd.Flags().Uint32Var(&limit, "limit", 20, "the maximum number of links")
	return cmd
}

func linksByDayCommand() *cobra.Command {
	var days uint32
	cmd := &cobra.Command{
		Use:   "links-by-day",
		Short: "Print how many links were shared on each day, in UTC",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printQuery(cmd, "DAY\tLINKS\tSHARERS\tPOSTS", func(ctx context.Context, x *clickhouse.Index) ([]clickhouse.DayOfLinks, error) {
				return x.LinksByDay(ctx, days)
			}, func(w io.Writer, d clickhouse.DayOfLinks) {
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", d.Day, d.Links, d.Sharers, d.Posts)
			})
		},
	}
	cmd.Flags().Uint32Var(&days, "days", 30, "how far back to count")
	return cmd
}

func firstSharersCommand() *cobra.Command {
	var limit uint32
	cmd := &cobra.Command{
		Use:   "first-sharers URL",
		Short: "Print the accounts that shared a link first",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			of, err := link.Parse(args[0])
			if err != nil {
				return fmt.Errorf("%s is not a link: %w", web.Plain(args[0]), err)
			}
			return printQuery(cmd, "FIRST\tACCOUNT", func(ctx context.Context, x *clickhouse.Index) ([]clickhouse.Sharer, error) {
				return x.FirstSharers(ctx, of.Identity, limit)
			}, func(w io.Writer, s clickhouse.Sharer) { fmt.Fprintf(w, "%s\t%s\n", s.FirstAt, web.Plain(s.Author)) })
		},
	}
	cmd.Flags().Uint32Var(&limit, "limit", 20, "the maximum number of accounts")
	return cmd
}

// printQuery asks the configured ClickHouse and prints the rows as a table.
func printQuery[T any](cmd *cobra.Command, header string, ask func(context.Context, *clickhouse.Index) ([]T, error), row func(io.Writer, T)) error {
	cfg, err := app.ReadConfig()
	if err != nil {
		return err
	}
	index, err := cfg.OpenClickHouse()
	if err != nil {
		return err
	}
	rows, err := ask(cmd.Context(), index)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for _, r := range rows {
		row(w, r)
	}
	return w.Flush()
}
