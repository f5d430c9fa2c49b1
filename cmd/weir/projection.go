package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/schema"
)

func projectionCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "projection", Short: "List and remove the projections of the records"}
	cmd.AddCommand(projectionListCommand(), projectionRemoveCommand())
	return cmd
}

func projectionListCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the projections of the database, with their unfinished jobs and dead letters",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			found, err := schema.RegisteredProjections(ctx, p.Pool())
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(cmd.OutOrStdout(), found)
			}
			return printProjections(cmd.OutOrStdout(), found)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func printProjections(w io.Writer, found []schema.RegisteredProjection) error {
	if len(found) == 0 {
		fmt.Fprintln(w, "no projection: `weir serve` registers them at its start")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "NAME\tCOLLECTIONS\tJOBS\tQUEUE\tUNFINISHED\tDEAD LETTERS\t")
	for _, p := range found {
		running := ""
		if p.Running {
			running = "running over every stored record"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%d\t%s\n", p.Name, strings.Join(p.Collections, " "), p.Kind, p.Queue, p.Unfinished, p.DeadLetters,
			running)
	}
	return table.Flush()
}

func projectionRemoveCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "remove NAME",
		Short: "Remove a projection that no program has any more; its tables stay",
		Args:  cobra.ExactArgs(1),
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, args []string) error {
			err := schema.RemoveProjection(ctx, p.Pool(), args[0])
			if errors.Is(err, schema.ErrNoRows) {
				return fmt.Errorf("there is no projection %q: `weir projection list` shows them", args[0])
			}
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "the projection %s is removed; a program that has it registers it again at its start\n", args[0])
			}
			return err
		}),
	}
}
