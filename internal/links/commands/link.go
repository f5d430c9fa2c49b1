package commands

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/links/link"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

func linkCommand(program feature.Program) *cobra.Command {
	cmd := &cobra.Command{Use: "link", Short: "Merge two links into one, or split them again"}
	cmd.AddCommand(linkMergeCommand(program), linkSplitCommand(program))
	return cmd
}

func linkMergeCommand(program feature.Program) *cobra.Command {
	return &cobra.Command{
		Use:   "merge LINK INTO",
		Short: "Count the shares of a link for another one",
		Long: `From now on, the shares of LINK, and of all links that are merged into it, count for the link INTO, future shares too.
Name the links by their ids or URLs. weir link split undoes a merge.`,
		Example: "  weir link merge https://short.example/x https://paper.example/article\n  weir link merge 17 4",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				of, err := findLink(ctx, p, args[0])
				if err != nil {
					return err
				}
				into, err := findLink(ctx, p, args[1])
				if err != nil {
					return err
				}
				err = merging(ctx, p, func(tx pgx.Tx) error {
					return ranking.MergeLinks(ctx, tx, ranking.Merge{Link: of, Into: into, Why: ranking.ByHand, Now: time.Now()})
				})
				if merged, ok := errors.AsType[*ranking.MergedError](err); ok {
					return fmt.Errorf("link %d is merged into link %d already: undo that first with weir link split %d", merged.Link,
						merged.Into, merged.Link)
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "link %d counts as link %d\n", of, into)
				return nil
			})
		},
	}
}

func linkSplitCommand(program feature.Program) *cobra.Command {
	return &cobra.Command{
		Use:     "split LINK",
		Short:   "Count the shares of a merged link for itself again",
		Long:    "The link counts for itself again, with the links that were merged into it. No redirect merges it again.",
		Example: "  weir link split https://short.example/x",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				id, err := findLink(ctx, p, args[0])
				if err != nil {
					return err
				}
				if err := merging(ctx, p, func(tx pgx.Tx) error { return ranking.SplitLink(ctx, tx, id, time.Now()) }); err != nil {
					return fmt.Errorf("link %d: %w", id, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "link %d counts for itself\n", id)
				return nil
			})
		},
	}
}

// merging calls f in a transaction. A merge, and transactions that delete shares of the
// link, lock them in different orders, so Postgres may end one of them. Then merging
// calls f again.
func merging(ctx context.Context, p feature.Process, f func(pgx.Tx) error) error {
	const tries = 5
	err := pgx.BeginFunc(ctx, p.Pool(), f)
	for try := 1; try < tries && schema.Classify(err) == schema.Transient && ctx.Err() == nil; try++ {
		err = pgx.BeginFunc(ctx, p.Pool(), f)
	}
	return err
}

// findLink returns the id of a link, given by its id or URL.
func findLink(ctx context.Context, p feature.Process, named string) (int64, error) {
	if id, err := strconv.ParseInt(named, 10, 64); err == nil {
		return id, nil
	}
	l, err := link.Parse(named)
	if err != nil {
		return 0, fmt.Errorf("%q is neither the id of a link nor its URL: %w", named, err)
	}
	id, err := ranking.LinkID(ctx, p.Pool(), l.Identity)
	if errors.Is(err, schema.ErrNoRows) {
		return 0, fmt.Errorf("there is no link %s: nobody shares it, or the workers have not processed it yet", l.URL)
	}
	return id, err
}
