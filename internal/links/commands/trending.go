package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/internal/web/links"
)

// trendingJSON is the output of weir trending --json.
type trendingJSON struct {
	GeneratedAt time.Time              `json:"generated_at"`
	Complete    *time.Time             `json:"complete_since,omitempty"` // all shares are stored; absent: since the window began
	Links       []ranking.TrendingLink `json:"links"`
	Next        ranking.Cursor         `json:"next,omitempty"` // --cursor of the next page
}

func trendingCommand(program feature.Program) *cobra.Command {
	var (
		asJSON bool
		at     string
	)
	cmd := &cobra.Command{
		Use:   "trending",
		Short: "Print the links that the most accounts shared",
		Long:  "The flags have the names of the API's parameters. docs/api.md explains them.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, err := parseQuery(cmd)
			if err != nil {
				return err
			}
			if q.At, err = parseTime(at); err != nil {
				return err
			}
			q.Past = at != ""
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				page, err := ranking.Trending(ctx, p.Pool(), q)
				switch {
				case errors.Is(err, ranking.ErrWatch):
					return fmt.Errorf("--watch is %s: no watch has this target. `weir watch list` prints them", web.Plain(q.Watch))
				case errors.Is(err, ranking.ErrCursor):
					return fmt.Errorf("--cursor is invalid, more than an hour old, or of other flags: leave it out for the first page")
				case err != nil:
					return err
				}
				complete, err := ranking.CompleteAfter(ctx, p.Pool(), page.At.Add(-q.Window))
				if err != nil {
					return err
				}
				if asJSON {
					return output.JSON(cmd.OutOrStdout(), trendingJSON{page.At.UTC(), complete, page.Links, page.Next})
				}
				if complete != nil {
					fmt.Fprintf(cmd.OutOrStdout(), "the counts may be too low: all shares are stored only since %s\n", complete.Format(time.RFC3339))
				}
				printLinks(cmd.OutOrStdout(), page, q)
				return nil
			})
		},
	}
	flags := cmd.Flags()
	flags.String("window", ranking.DefaultWindow, "how far back to count: "+windowNames())
	flags.String("sort", string(ranking.Sharers), "sharers, speed (sharers per hour, the latest hours weigh more) or newest")
	flags.String("at-least", "1", "leave out links with fewer sharers in the window")
	flags.String("ways", "post,quote,repost", "count only shares of these ways")
	flags.String("network", "both", "count only the accounts of bluesky or of nostr")
	flags.String("domain", "", "only links of this host, such as news.example")
	flags.String("text", "", "only links with these words in a title, a description, the address or a sharer's post")
	flags.String("by", "", "only links that this account (handle, DID or npub) shared in the window")
	flags.String("watch", "", "count only the accounts that the watches of this target include")
	flags.String("degree", "both",
		"which accounts of --watch count: first (the target follows or lists them), second (its follows do) or both")
	flags.String("limit", "20", "the maximum number of links, up to 1000")
	flags.String("cursor", "", "continue after a page: the next that it printed")
	flags.BoolVar(&asJSON, "json", false, "print JSON")
	flags.StringVar(&at, "at", "", "the end of the window, such as 2026-07-04T15:00:00Z; later shares do not count (default: now)")
	return cmd
}

// parseQuery reads the flags that are parameters of the ranking.
func parseQuery(cmd *cobra.Command) (ranking.Query, error) {
	q, err := ranking.ParseQuery(func(name string) (string, bool) {
		flag := cmd.Flags().Lookup(flagOf(name))
		return flag.Value.String(), flag.Changed
	}, ranking.Limits{Default: 20, Most: 1000})
	if wrong, ok := errors.AsType[*ranking.ParameterError](err); ok {
		return q, fmt.Errorf("--%s is %s: expected %s", flagOf(wrong.Name), wrong.Value, links.Expected(wrong))
	}
	return q, err
}

// flagOf returns the flag of a parameter.
func flagOf(parameter string) string { return strings.ReplaceAll(parameter, "_", "-") }

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

// windowNames lists the names of the windows.
func windowNames() string {
	var names []string
	for _, w := range ranking.Windows() {
		names = append(names, w.Name)
	}
	return output.Or(names)
}

// printLinks prints two lines for each link. web.Plain makes texts of strangers safe for
// a terminal.
func printLinks(w io.Writer, page ranking.Page, q ranking.Query) {
	if len(page.Links) == 0 {
		fmt.Fprintf(w, "no link was shared in the %s before %s, or none matches\n", q.Window, page.At.UTC().Format(time.RFC3339))
		return
	}
	for i, l := range page.Links {
		url, speed := web.Plain(l.URL), ""
		if q.Sort == ranking.Speed {
			speed = fmt.Sprintf("%.1f sharers per hour, ", l.Speed)
		}
		fmt.Fprintf(w, "%3d. %4d  %s\n           %s  (%s%s ago)\n", page.Before+i+1, l.Sharers, cmp.Or(web.Plain(l.Title), url),
			url, speed, page.At.Sub(l.LastShared).Round(time.Second))
	}
	if page.Next != "" {
		fmt.Fprintf(w, "more: --cursor %s\n", page.Next)
	}
}
