package work

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/feature"
	"github.com/weir-social/weir/internal/archive"
	"github.com/weir-social/weir/internal/archive/catalog"
	"github.com/weir-social/weir/internal/archive/frames"
	"github.com/weir-social/weir/internal/archive/recovery"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

// commands returns weir archive.
func (v *Variables) commands(program feature.Program) []*cobra.Command {
	cmd := &cobra.Command{
		Use:   "archive",
		Short: "Check, export and read back the archive in WEIR_ARCHIVE",
	}
	cmd.AddCommand(v.verifyCommand(program), v.exportCommand(program), v.rebuildCommand(program), forgetCommand(program))
	return []*cobra.Command{cmd}
}

// source returns the configured archive.
func (v *Variables) source(p feature.Process) (recovery.Source, error) {
	store, err := v.store()
	if err == nil && store == nil {
		err = errors.New("WEIR_ARCHIVE is empty: set it to the archive, such as dir:/path or s3://bucket/prefix")
	}
	return source(p.Core(), store), err
}

func (v *Variables) verifyCommand(program feature.Program) *cobra.Command {
	alone := false
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Read every segment and check all hashes and records against the manifests in the store and in the database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			run := program.With
			if alone {
				run = program.Without
			}
			return run(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				from, err := v.source(p)
				if err != nil {
					return err
				}
				var db schema.DB
				if !alone {
					db = p.Pool()
				}
				check, err := from.Verify(ctx, db)
				if err != nil {
					return err
				}
				return printCheck(cmd.OutOrStdout(), check)
			})
		},
	}
	cmd.Flags().BoolVar(&alone, "store", false, "check the store alone; needs no database")
	return cmd
}

func printCheck(out io.Writer, check recovery.Check) error {
	for _, problem := range check.Problems {
		fmt.Fprintln(out, problem)
	}
	fmt.Fprintf(out, "%s with %s, %.1f MB decompressed\n", output.Count(check.Segments, "segment", "segments"),
		output.Count(check.Records, "record", "records"), float64(check.RawBytes)/1e6)
	if len(check.Problems) > 0 {
		return errors.New(output.Count(int64(len(check.Problems)), "problem was found", "problems were found"))
	}
	return nil
}

func (v *Variables) exportCommand(program feature.Program) *cobra.Command {
	stream := ""
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write the archived records to standard output as JSON lines; needs no database",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return program.Without(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				from, err := v.source(p)
				if err != nil {
					return err
				}
				out := bufio.NewWriterSize(cmd.OutOrStdout(), 1<<20)
				return errors.Join(from.Export(ctx, stream, out), out.Flush())
			})
		},
	}
	cmd.Flags().StringVar(&stream, "stream", "", "only the records of this stream")
	return cmd
}

func (v *Variables) rebuildCommand(program feature.Program) *cobra.Command {
	database, seen, perSecond := false, false, 0
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Fill an empty database from the archive, or restore the ids of archived events",
		Long: `With --database, an empty database is filled; its streams then resume where the archive ends.
With --seen, the ids of archived events are restored in a running database, as far back as servers may send events again,
so that none is archived twice.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if database == seen {
				return errors.New("say what to rebuild: --database or --seen")
			}
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
				defer output.Stopping(ctx, cmd.ErrOrStderr())()
				r, err := v.rebuild(p)
				if err != nil {
					return err
				}
				r.PerSecond, r.Progress = perSecond, func(done, all int, m archive.Manifest) {
					fmt.Fprintf(cmd.OutOrStdout(), "%d of %d: %s, %s\n", done, all, m.Name, output.Count(m.Records, "record", "records"))
				}
				again := "run it again: the ids that are restored already stay"
				if seen {
					err = r.Seen(ctx)
				} else {
					again, err = "run it again to go on after the last whole segment", rebuildDatabase(ctx, p, r)
				}
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

// rebuild returns how the archive is read into the database.
func (v *Variables) rebuild(p feature.Process) (r recovery.Rebuild, err error) {
	core := p.Core()
	remember, err := core.Tombstones()
	if err != nil {
		return r, err
	}
	from, err := v.source(p)
	return recovery.Rebuild{
		Source: from, Pool: p.Pool(), Scope: frames.Scope(v.Scope), Remember: remember, Projections: p.Projections(),
		Consume: func(ctx context.Context, cfg consumer.Config) error { return p.Commit(ctx, "rebuild", cfg) },
		Finish: func(ctx context.Context, rows func(table string) []json.RawMessage) error {
			err := p.Rebuilt(ctx)
			for _, table := range core.Snapshots() {
				if err == nil {
					err = table.Restore(ctx, p.Pool(), rows(table.Name))
				}
			}
			return err
		},
	}, err
}

// rebuildDatabase reads the archive into an empty database, and processes the jobs that result.
func rebuildDatabase(ctx context.Context, p feature.Process, r recovery.Rebuild) error {
	queue, err := workers.Queue(p.Pool(), p.Log())
	if err == nil {
		r.Enqueue = p.Projections().Enqueue(queue, "")
		err = r.Prepare(ctx)
	}
	// There is no leader during a rebuild, so only this releases jobs that a killed
	// rebuild left running.
	if err == nil {
		err = schema.ReleaseJobs(ctx, p.Pool(), 0, p.Projections().Kinds()...)
	}
	if err != nil {
		return err
	}
	return p.Processing(ctx, r.Database)
}

func forgetCommand(program feature.Program) *cobra.Command {
	var now, asJSON bool
	cmd := &cobra.Command{
		Use:   "forget",
		Short: "Show how many deleted accounts and records may still be in the archive",
		Long: `Every WEIR_ARCHIVE_FORGET, the workers compare each segment with the deletions, and rewrite it without what was deleted.
With --now, all segments are compared as soon as possible. A version that was replaced is deleted a day later.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return program.With(cmd.Context(), func(ctx context.Context, p feature.Process) error {
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
		fmt.Fprintf(w, "%s failed for so long that deletions of records were missed: see segments.missed_until\n",
			output.Count(p.Missed, "segment", "segments"))
	}
	if p.Lists > 0 {
		fmt.Fprintf(w, "%s of forgotten accounts cannot be read: see unreadable_lists\n", output.Count(p.Lists, "list", "lists"))
	}
	if p.Segments > 0 {
		age := time.Duration(p.Age * float64(time.Second)).Round(time.Second)
		fmt.Fprintf(w, "the segment that waits longest was compared or sealed %s ago\n", age)
	}
}
