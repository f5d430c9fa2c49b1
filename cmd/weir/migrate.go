package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
)

func migrateCommand() *cobra.Command {
	dryRun := false
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Migrate the database at DATABASE_URL to this binary's schema",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, w := cmd.Context(), cmd.OutOrStdout()
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			pool, err := cfg.Database(ctx, 4)
			if err != nil {
				return err
			}
			defer pool.Close()
			steps, err := app.PlanMigration(ctx, pool)
			if err != nil {
				return err
			}
			pending := 0
			for _, step := range steps {
				state := "applied"
				if !step.Applied {
					state = "pending"
					pending++
				}
				fmt.Fprintf(w, "%s  %s\n", state, step.Name)
			}
			if dryRun {
				fmt.Fprintf(w, "weir migrate would apply %d of %d migrations; nothing was changed\n", pending, len(steps))
				return nil
			}
			if err := app.Migrate(ctx, pool); err != nil {
				return err
			}
			fmt.Fprintln(w, "the database has this binary's schema")
			return nil
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be applied, and change nothing")
	return cmd
}
