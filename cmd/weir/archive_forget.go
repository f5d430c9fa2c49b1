package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/output"
)

func archiveForgetCommand() *cobra.Command {
	var now, asJSON bool
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Show how many deleted accounts and records may still be in the archive",
		Long: `Every WEIR_ARCHIVE_FORGET, the workers compare each segment with the deletions, and rewrite it without what was deleted.
With --now, all segments are compared as soon as possible. A version that was replaced is deleted a day later.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				if now {
					n, err := catalog.ForgetAgain(ctx, p.Pool())
					if err != nil {
						return err
					}
					fmt.Fprintf(cmd.ErrOrStderr(), "the workers will compare %s\n", output.Count(n, "segment", "segments"))
				}
				progress, err := catalog.ReadForgetProgress(ctx, p.Pool())
				if err != nil {
					return err
				}
				if asJSON {
					return output.JSON(cmd.OutOrStdout(), progress)
				}
				printForgetProgress(cmd.OutOrStdout(), progress)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&now, "now", false, "compare all segments as soon as possible")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printForgetProgress(w io.Writer, p catalog.ForgetProgress) {
	fmt.Fprintf(w, "%s and %s that some segments may still have\n",
		output.Count(p.Accounts, "deleted account", "deleted accounts"), output.Count(p.Records, "deleted record", "deleted records"))
	if p.Unlisted > 0 {
		fmt.Fprintf(w, "%s on no list in the store yet\n", output.Count(p.Unlisted, "deleted account", "deleted accounts"))
	}
	fmt.Fprintf(w, "%s: %d compared, %d written again\n", output.Count(p.Segments, "segment", "segments"), p.Compared, p.Written)
	if p.Failing > 0 {
		fmt.Fprintf(w, "%s could not be compared: weir archive verify names damaged files\n", output.Count(p.Failing, "segment", "segments"))
	}
	if p.Missed > 0 {
		fmt.Fprintf(w, "%s failed for so long that deletions of records were missed: see segments.missed_until\n", output.Count(p.Missed, "segment", "segments"))
	}
	if p.Lists > 0 {
		fmt.Fprintf(w, "%s of forgotten accounts cannot be read: see unreadable_lists\n", output.Count(p.Lists, "list", "lists"))
	}
	if p.Segments > 0 {
		age := time.Duration(p.Age * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(w, "the segment that waits longest was compared or sealed %s ago\n", age)
	}
}
