package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
)

// commands returns weir analytics, and weir archive index.
func (v *Variables) commands(program feature.Program) []*cobra.Command {
	archive := &cobra.Command{Use: "archive"}
	archive.AddCommand(v.indexCommand(program))
	return []*cobra.Command{archive, v.analyticsCommand(program)}
}

func (v *Variables) analyticsCommand(program feature.Program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "analytics",
		Short: "Query the archive's copy in WEIR_CLICKHOUSE; needs no database",
	}
	q := queries{program, v}
	cmd.AddCommand(topLinksCommand(q), linksByDayCommand(q), firstSharersCommand(q))
	return cmd
}

func topLinksCommand(q queries) *cobra.Command {
	var days, limit uint32
	cmd := &cobra.Command{
		Use:   "top-links",
		Short: "Print the links that the most accounts shared",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printQuery(cmd, q, "SHARERS\tPOSTS\tLINK", func(ctx context.Context, x *Index) ([]SharedLink, error) {
				return x.TopLinks(ctx, days, limit)
			}, func(w io.Writer, l SharedLink) {
				fmt.Fprintf(w, "%d\t%d\t%s\n", l.Sharers, l.Posts, web.Plain(l.Link))
			})
		},
	}
	cmd.Flags().Uint32Var(&days, "days", 30, "how far back to count")
	cmd.Flags().Uint32Var(&limit, "limit", 20, "the maximum number of links")
	return cmd
}

func linksByDayCommand(q queries) *cobra.Command {
	var days uint32
	cmd := &cobra.Command{
		Use:   "links-by-day",
		Short: "Print how many links were shared on each day, in UTC",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printQuery(cmd, q, "DAY\tLINKS\tSHARERS\tPOSTS", func(ctx context.Context, x *Index) ([]DayOfLinks, error) {
				return x.LinksByDay(ctx, days)
			}, func(w io.Writer, d DayOfLinks) {
				fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", d.Day, d.Links, d.Sharers, d.Posts)
			})
		},
	}
	cmd.Flags().Uint32Var(&days, "days", 30, "how far back to count")
	return cmd
}

func firstSharersCommand(q queries) *cobra.Command {
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
			return printQuery(cmd, q, "FIRST\tACCOUNT", func(ctx context.Context, x *Index) ([]Sharer, error) {
				return x.FirstSharers(ctx, of.Identity, limit)
			}, func(w io.Writer, s Sharer) { fmt.Fprintf(w, "%s\t%s\n", s.FirstAt, web.Plain(s.Author)) })
		},
	}
	cmd.Flags().Uint32Var(&limit, "limit", 20, "the maximum number of accounts")
	return cmd
}

// queries runs queries on the configured ClickHouse.
type queries struct {
	feature.Program
	v *Variables
}

// printQuery asks the configured ClickHouse and prints the rows as a table.
func printQuery[T any](cmd *cobra.Command, q queries, header string, ask func(context.Context, *Index) ([]T, error), row func(io.Writer, T)) error {
	return q.Without(cmd.Context(), func(ctx context.Context, _ feature.Process) error {
		index, err := q.v.index()
		if err != nil {
			return err
		}
		rows, err := ask(ctx, index)
		if err != nil {
			return err
		}
		w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, header)
		for _, r := range rows {
			row(w, r)
		}
		return w.Flush()
	})
}

func (v *Variables) indexCommand(program feature.Program) *cobra.Command {
	var again, fresh, detach bool
	cmd := &cobra.Command{
		Use:   "index",
		Short: "Have the workers compare ClickHouse with every segment and insert what it lacks",
		Long: `With --again, the workers count the rows of every segment in ClickHouse and insert those that are missing.
With --fresh, the table of events is emptied first, so that all rows are inserted; views keep what they counted: empty them too.
The workers begin two and a half minutes later, when no insert from before can arrive any more.
This command shows how many segments are left. Ending it does not stop them.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if again == fresh {
				return errors.New("say what to do: --again or --fresh")
			}
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				n, err := v.again(ctx, p, fresh)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "the workers will index %s; weir status warns until it is done\n", output.Count(n, "segment", "segments"))
				if detach {
					return nil
				}
				return followIndex(ctx, cmd.OutOrStdout(), p.Pool())
			})
		},
	}
	cmd.Flags().BoolVar(&again, "again", false, "insert the rows that ClickHouse lacks")
	cmd.Flags().BoolVar(&fresh, "fresh", false, "empty the table first")
	cmd.Flags().BoolVar(&detach, "detach", false, "do not wait for the end")
	return cmd
}

// followIndex prints how many segments ClickHouse lacks, whenever that changes, until it has
// all.
func followIndex(ctx context.Context, out io.Writer, pool *pgxpool.Pool) error {
	last := int64(-1)
	for {
		backlog, err := readBacklog(ctx, pool)
		if err != nil {
			return err
		}
		if backlog.Unindexed != last {
			fmt.Fprintf(out, "%d of %s left\n", backlog.Unindexed, output.Count(backlog.Segments, "segment", "segments"))
		}
		if last = backlog.Unindexed; last == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}
