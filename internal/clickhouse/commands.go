package clickhouse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
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
	var days, limit uint32
	type query func(args []string) (string, error)
	add := func(use, short string, args cobra.PositionalArgs, sql query, header string, columns ...string) *cobra.Command {
		sub := &cobra.Command{Use: use, Short: short, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			text, err := sql(args)
			if err != nil {
				return err
			}
			return program.Without(cmd.Context(), func(ctx context.Context, _ feature.Process) error {
				return v.print(ctx, cmd.OutOrStdout(), text, header, columns)
			})
		}}
		cmd.AddCommand(sub)
		return sub
	}
	top := add("top-links", "Print the links that the most accounts shared", cobra.NoArgs, func([]string) (string, error) {
		return topLinks(days, limit), nil
	}, "SHARERS\tPOSTS\tLINK", "sharers", "posts", "link")
	top.Flags().Uint32Var(&days, "days", 30, "how far back to count")
	top.Flags().Uint32Var(&limit, "limit", 20, "the maximum number of links")
	byDay := add("links-by-day", "Print how many links were shared on each day, in UTC", cobra.NoArgs, func([]string) (string, error) {
		return linksByDay(days), nil
	}, "DAY\tLINKS\tSHARERS\tPOSTS", "day", "links", "sharers", "posts")
	byDay.Flags().Uint32Var(&days, "days", 30, "how far back to count")
	first := add("first-sharers URL", "Print the accounts that shared a link first", cobra.ExactArgs(1), func(args []string) (string, error) {
		of, err := link.Parse(args[0])
		if err != nil {
			return "", fmt.Errorf("%s is not a link: %w", web.Plain(args[0]), err)
		}
		return firstSharers(of.Identity, limit), nil
	}, "FIRST\tACCOUNT", "first_at", "author")
	first.Flags().Uint32Var(&limit, "limit", 20, "the maximum number of accounts")
	return cmd
}

// print asks the configured ClickHouse and prints these columns of the rows as a table.
func (v *Variables) print(ctx context.Context, out io.Writer, sql, header string, columns []string) error {
	index, err := v.index()
	if err != nil {
		return err
	}
	rows, err := index.read(ctx, sql)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, header)
	for _, row := range rows {
		cells := make([]string, len(columns))
		for i, name := range columns {
			cells[i] = web.Plain(fmt.Sprint(row[name]))
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
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
				fmt.Fprintf(cmd.OutOrStdout(), "the workers will index %s; weir status warns until it is done\n",
					output.Count(n, "segment", "segments"))
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
