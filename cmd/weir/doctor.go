package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/ops/doctor"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
)

func doctorCommand() *cobra.Command {
	var (
		asJSON bool
		within time.Duration
	)
	cmd := &cobra.Command{
		Use:               "doctor",
		Short:             "Check everything that Weir depends on: configuration, Postgres, clocks, network, relays, archive, ClickHouse",
		Args:              cobra.NoArgs,
		PersistentPreRunE: func(*cobra.Command, []string) error { return nil }, // the doctor reports a misspelt variable as a finding
		RunE: func(cmd *cobra.Command, _ []string) error {
			if within < time.Second {
				return fmt.Errorf("--within is %s: expected 1s or more", within)
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			defer cancel()
			found := app.Examine(ctx, within)
			if err := printFindings(cmd.OutOrStdout(), found, asJSON); err != nil {
				return err
			}
			if doctor.Worst(found) == doctor.Fail {
				return errors.New("a check failed: see the lines that begin with fail")
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().DurationVar(&within, "within", 20*time.Second, "the time limit of a check")
	return cmd
}

// printFindings prints one line for each finding, or all as JSON.
func printFindings(w io.Writer, found []doctor.Finding, asJSON bool) error {
	if asJSON {
		return output.JSON(w, map[string]any{"level": doctor.Worst(found), "findings": found})
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range found {
		message := web.Plain(f.Message)
		if f.Do != "" {
			message += ". Do: " + web.Plain(f.Do)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\n", f.Level, web.Plain(f.Check), message)
	}
	return table.Flush()
}
