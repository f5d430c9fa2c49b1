package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/schema"
)

func rebuildCommand() *cobra.Command {
	var name string
	var detach bool
	cmd := &cobra.Command{
		Use:   "rebuild --projection NAME",
		Short: "Have the workers rebuild a projection from the stored records, while the stream runs",
		Long: "The workers project every stored record of the projection's collections again, behind the records of the stream, " +
			"and delete rows that should not exist. " +
			"This command shows how far they are. Ending it does not stop them.",
		Args: cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			id, err := schema.RunProjection(ctx, p.Pool(), name)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "job %d rebuilds %s: `weir projection list` shows whether it is finished\n", id, name)
			if detach {
				return nil
			}
			return followRun(ctx, cmd.OutOrStdout(), p.Pool(), id)
		}),
	}
	cmd.Flags().StringVar(&name, "projection", "", "the projection: `weir projection list` shows them")
	cmd.Flags().BoolVar(&detach, "detach", false, "do not wait for the end")
	cmd.MarkFlagRequired("projection") // the flag exists
	return cmd
}

// followInterval is how often the progress is read.
const followInterval = time.Second

// followRun prints the progress of a run_projection job, whenever it changes, until the
// job and the jobs that it added have ended.
func followRun(ctx context.Context, out io.Writer, pool *pgxpool.Pool, job int64) error {
	var last schema.ProjectionRun
	for {
		run, err := schema.FindProjectionRun(ctx, pool, job)
		if err != nil {
			return err
		}
		if run != last {
			fmt.Fprintf(out, "%s: %d records enqueued, %d jobs unfinished\n", run.State, run.Records, run.Unfinished)
		}
		switch last = run; {
		case run.State == "completed" && run.Unfinished == 0:
			return nil
		case run.State == "cancelled", run.State == "discarded":
			return fmt.Errorf("job %d has failed: %s", job, run.Problem)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(followInterval):
		}
	}
}
