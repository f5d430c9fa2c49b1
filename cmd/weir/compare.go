package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/ops/compare"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
)

// shownDifferences is how many differences of a table are printed.
const shownDifferences = 20

func compareCommand() *cobra.Command {
	var with string
	var tables bool
	cmd := &cobra.Command{
		Use:   "compare --with URL",
		Short: "Compare what the database in DATABASE_URL holds with another one, such as one that was rebuilt from the archive",
		Long: `Named columns of every table are compared row by row; nothing is written.
With --tables, it prints what is compared, and what is left out and why.
Both databases should have read the same stream to the same point, and no job should wait. The exit status is 1 if they differ.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			out := cmd.OutOrStdout()
			if tables {
				return app.With(cmd.Context(), func(ctx context.Context, p app.App) error { return printCompared(ctx, out, p) })
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				shown := map[string]int{}
				results, err := p.Compare(ctx, with, func(d compare.Difference) {
					if shown[d.Table]++; shown[d.Table] <= shownDifferences {
						fmt.Fprintln(out, web.Plain(d.String()))
					}
				})
				if err != nil {
					return err
				}
				different := int64(0)
				for _, r := range results {
					different += r.Different
					fmt.Fprintf(out, "%s: %s and %s, %s\n", r.Table, output.Count(r.First, "row", "rows"), output.Count(r.Second, "row", "rows"),
						output.Count(r.Different, "difference", "differences"))
				}
				if different > 0 {
					return fmt.Errorf("the databases differ in %s", output.Count(different, "row", "rows"))
				}
				return nil
			})
		},
	}
	cmd.Flags().StringVar(&with, "with", "", "the URL of the other database")
	cmd.Flags().BoolVar(&tables, "tables", false, "print what is compared, and what is not")
	cmd.MarkFlagsOneRequired("with", "tables")
	return cmd
}

// printCompared prints what is compared, and what is not.
func printCompared(ctx context.Context, out io.Writer, p app.App) error {
	for _, t := range p.Compared() {
		fmt.Fprintf(out, "%s: %s\n", t.Name, strings.Join(slices.Concat(t.Key, t.Columns), ", "))
		if t.Rows != "" {
			fmt.Fprintf(out, "    without %s\n", t.Rows)
		}
		for _, column := range slices.Sorted(maps.Keys(t.Without)) {
			fmt.Fprintf(out, "    without %s: %s\n", column, t.Without[column])
		}
	}
	left, err := compare.LeftOut(ctx, p.Pool())
	for _, why := range slices.Sorted(maps.Keys(left)) {
		fmt.Fprintf(out, "not compared, %s: %s\n", why, strings.Join(left[why], ", "))
	}
	return err
}
