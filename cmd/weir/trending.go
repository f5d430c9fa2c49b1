package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/web"
)

func trendingCommand() *cobra.Command {
	var (
		named  string
		limit  int
		asJSON bool
		at     string
	)
	cmd := &cobra.Command{
		Use:   "trending",
		Short: "Print the links that the most accounts shared",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			now, err := parseTime(at)
			if err != nil {
				return err
			}
			chosen := slices.IndexFunc(ranking.Windows(), func(w ranking.Window) bool { return w.Name == named })
			if chosen < 0 {
				return fmt.Errorf("--window is %s: expected %s", named, windowNames())
			}
			window := ranking.Windows()[chosen].Length
			if limit < 1 || limit > 1000 {
				return fmt.Errorf("--limit is %d: expected 1 to 1000", limit)
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				page, err := ranking.Trending(ctx, p.Pool(), ranking.Query{At: now, Past: at != "", Window: window, Limit: limit})
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), page.Links)
				}
				printLinks(cmd.OutOrStdout(), page.Links, now, window)
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&named, "window", "6h", "how far back to count: "+windowNames())
	cmd.Flags().IntVar(&limit, "limit", 20, "the maximum number of links")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().StringVar(&at, "at", "", "the end of the window, such as 2026-07-04T15:00:00Z; later shares do not count (default: now)")
	return cmd
}

func parseTime(at string) (time.Time, error) {
	if at == "" {
		return time.Now(), nil
	}
	t, err := time.Parse(time.RFC3339, at)
	if err != nil {
		return time.Time{}, fmt.Errorf("--at is %q: expected a time such as 2026-07-04T15:00:00Z", at)
	}
	return t, nil
}

// windowNames lists the windows in words.
func windowNames() string {
	var names []string
	for _, w := range ranking.Windows() {
		names = append(names, w.Name)
	}
	return orList(names)
}

// printLinks prints two lines for each link. web.Plain makes texts of strangers safe for
// a terminal.
func printLinks(w io.Writer, links []ranking.TrendingLink, now time.Time, window time.Duration) {
	if len(links) == 0 {
		fmt.Fprintf(w, "no link was shared in the %s before %s\n", window, now.UTC().Format(time.RFC3339))
		return
	}
	for i, l := range links {
		url := web.Plain(l.URL)
		fmt.Fprintf(w, "%3d. %4d  %s\n           %s  (%s ago)\n", i+1, l.Sharers, cmp.Or(web.Plain(l.Title), url), url, now.Sub(l.LastShared).Round(time.Second))
	}
}
