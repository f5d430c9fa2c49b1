package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/recovery"
	"github.com/weir-social/weir/internal/output"
)

func archiveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Check, export and read back the archive in WEIR_ARCHIVE",
	}
	cmd.AddCommand(archiveVerifyCommand(), archiveExportCommand(), archiveRebuildCommand(), archiveIndexCommand(), archiveForgetCommand())
	return cmd
}

func archiveVerifyCommand() *cobra.Command {
	alone := false
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read every segment and check all hashes and records against the manifests in the store and in the database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !alone {
				return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
					return printArchiveCheck(cmd.OutOrStdout())(p.VerifyArchive(ctx))
				})
			}
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			return printArchiveCheck(cmd.OutOrStdout())(cfg.VerifyStore(cmd.Context()))
		},
	}
	cmd.Flags().BoolVar(&alone, "store", false, "check the store alone; needs no database")
	return cmd
}

func printArchiveCheck(out io.Writer) func(recovery.Check, error) error {
	return func(check recovery.Check, err error) error {
		if err != nil {
			return err
		}
		for _, problem := range check.Problems {
			fmt.Fprintln(out, problem)
		}
		fmt.Fprintf(out, "%s with %s, %.1f MB decompressed\n", output.Count(check.Segments, "segment", "segments"), output.Count(check.Records, "record", "records"), float64(check.RawBytes)/1e6)
		if len(check.Problems) > 0 {
			return errors.New(output.Count(int64(len(check.Problems)), "problem was found", "problems were found"))
		}
		return nil
	}
}

func archiveExportCommand() *cobra.Command {
	stream := ""
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the archived records to standard output as JSON lines; needs no database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			store, err := cfg.OpenArchive()
			if err != nil {
				return err
			}
			out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
			return errors.Join(app.ExportArchive(cmd.Context(), store, stream, out), out.Flush())
		},
	}
	cmd.Flags().StringVar(&stream, "stream", "", "only the records of this stream")
	return cmd
}

func archiveRebuildCommand() *cobra.Command {
	database, seen, perSecond := false, false, 0
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Fill an empty database from the archive, or restore the ids of archived events",
		Long: `With --database, an empty database is filled; its streams then resume where the archive ends.
With --seen, the ids of archived events are restored in a running database, as far back as servers may send events again, so that none is archived twice.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if database == seen {
				return errors.New("say what to rebuild: --database or --seen")
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				defer printStopping(ctx, cmd.ErrOrStderr())()
				rebuild, again := p.RebuildDatabase, "run it again to go on after the last whole segment"
				if seen {
					rebuild, again = p.RebuildSeen, "run it again: the ids that are restored already stay"
				}
				err := rebuild(ctx, app.Rebuild{PerSecond: perSecond, Progress: func(done, all int, m archive.Manifest) {
					fmt.Fprintf(cmd.OutOrStdout(), "%d of %d: %s, %s\n", done, all, m.Name, output.Count(m.Records, "record", "records"))
				}})
				if ctx.Err() != nil {
					return errors.New("stopped: " + again)
				}
				return err
			})
		},
	}
	cmd.Flags().IntVar(&perSecond, "rate", 0, "records per second at most; 0: as fast as possible")
	cmd.Flags().BoolVar(&database, "database", false, "fill the empty database in DATABASE_URL")
	cmd.Flags().BoolVar(&seen, "seen", false, "restore the ids of archived events")
	return cmd
}

func archiveIndexCommand() *cobra.Command {
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
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				n, err := p.IndexAgain(ctx, fresh)
				if err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "the workers will index %s; weir status warns until it is done\n", output.Count(n, "segment", "segments"))
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
		backlog, err := catalog.ReadBacklog(ctx, pool)
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
		case <-time.After(followInterval):
		}
	}
}
