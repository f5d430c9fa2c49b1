package commands

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
)

func recountCommand(program feature.Program) *cobra.Command {
	var check bool
	cmd := &cobra.Command{
		Use:   "recount",
		Short: "Have the workers count the sharers of every link again, or compare the counts with the shares",
		Long: `Without --check, the workers count every link again from its shares, within seconds or, with millions of shares, a minute.
Until then each ranking is counted for itself, which takes longer.
With --check, nothing is written. Every count that differs from a recount is printed, and the exit status is 1 if there is one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				out := cmd.OutOrStdout()
				if !check {
					if err := ranking.CountEverything(ctx, p.Pool()); err != nil {
						return err
					}
					fmt.Fprintln(out, "a worker will count everything again")
					return nil
				}
				wrong := 0
				done, err := ranking.Check(ctx, p.Pool(), func(d ranking.Difference) {
					wrong++
					fmt.Fprintln(out, web.Plain(d.String()))
				})
				switch {
				case err != nil:
					return err
				case done.Pending:
					return errors.New("a recount was requested, and no worker has finished it yet: start weir serve or weir work, then check again")
				case wrong > 0:
					return fmt.Errorf("%d counts are wrong: run weir recount", wrong)
				}
				fmt.Fprintf(out, "every count equals a recount; %d sharers are pending\n", done.Sharers)
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&check, "check", false, "compare only, and print what differs")
	return cmd
}
