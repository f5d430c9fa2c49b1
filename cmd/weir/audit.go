package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

func auditCommand() *cobra.Command {
	var (
		auditor workers.Auditor
		all     bool
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Compare stored posts with the accounts' repositories, and optionally repair them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case auditor.Accounts < 1 || all && cmd.Flags().Changed("accounts"):
				return errors.New("--accounts must be 1 or more, and cannot be combined with --all")
			case auditor.Window <= 0 || auditor.Settle < 0:
				return errors.New("--window must be positive, and --settle must not be negative")
			case all:
				auditor.Accounts = 0
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				sum, faults, err := p.Audit(ctx, auditor)
				if err != nil {
					return err
				}
				if asJSON {
					return output.JSON(cmd.OutOrStdout(), map[string]any{"audit": sum, "faults": faults})
				}
				printAudit(cmd.OutOrStdout(), sum, faults)
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&auditor.Accounts, "accounts", 20, "how many accounts to audit, chosen at random")
	cmd.Flags().BoolVar(&all, "all", false, "audit every followed account")
	cmd.Flags().DurationVar(&auditor.Window, "window", 24*time.Hour, "how far back to compare")
	cmd.Flags().DurationVar(&auditor.Settle, "settle", 30*time.Second, "how long a difference must last to count")
	cmd.Flags().BoolVar(&auditor.Repair, "repair", false, "repair the differences")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printAudit prints the compared accounts, the differences and a summary.
func printAudit(w io.Writer, sum schema.Audit, faults []schema.Fault) {
	for _, c := range sum.Compared {
		fmt.Fprintf(w, "compared %s  %s from %s to %s\n", web.Plain(c.DID), output.Count(int64(c.Records), "record", "records"), second(c.From),
			second(c.To))
	}
	for _, f := range faults {
		name := f.DID
		if f.Rkey != "" {
			name = schema.Key{Collection: f.Collection, DID: f.DID, Rkey: f.Rkey}.URI()
		}
		fmt.Fprintf(w, "%-8s %s  %s\n", f.Fault, web.Plain(name), web.Plain(f.Detail))
	}
	if sum.Score == nil {
		fmt.Fprint(w, "no record was compared, so there is no score")
	} else {
		fmt.Fprintf(w, "%s of %s from %s to %s: %.4f of them agree; %d missing, %d extra, %d stale",
			output.Count(int64(sum.Records), "record", "records"), output.Count(int64(len(sum.Compared)), "account", "accounts"), second(*sum.From),
			second(*sum.To), *sum.Score, sum.Missing, sum.Extra, sum.Stale)
	}
	if sum.Repaired && sum.Missing+sum.Extra+sum.Stale > 0 {
		fmt.Fprint(w, "; repaired")
	}
	fmt.Fprintf(w, "; %s could not be read", output.Count(int64(sum.Failures), "account", "accounts"))
	if sum.Pending > 0 {
		const left = " left out, because the first read of "
		fmt.Fprintf(w, "; %s records has not ended", output.Count(int64(sum.Pending), "account was"+left+"its", "accounts were"+left+"their"))
	}
	fmt.Fprintln(w)
}

// second formats a time without fractions of a second.
func second(t time.Time) string { return t.UTC().Format(time.RFC3339) }
