package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/schema"
)

func ingestCommand() *cobra.Command {
	work := true
	cmd := &cobra.Command{
		Use:   "ingest FILE",
		Short: "Feed a recorded stream (JSON lines; - for standard input) through the consumer and the workers",
		Args:  cobra.ExactArgs(1),
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, args []string) error {
			defer output.Stopping(ctx, cmd.ErrOrStderr())()
			file, size, err := openRecording(args[0])
			if err != nil {
				return err
			}
			defer file.Close()
			lines := progress(cancellable(ctx, file), size)
			if err := p.Ingest(ctx, args[0], lines, work); err != nil && ctx.Err() == nil {
				return err
			}
			if err := printIngest(context.WithoutCancel(ctx), p, cmd.OutOrStdout()); err != nil {
				return err
			}
			if ctx.Err() != nil {
				return errors.New("stopped before the end of the recording: ingest it again; stored records stay as they are")
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&work, "work", true, "also process the jobs; otherwise they wait for other workers")
	return cmd
}

func openRecording(name string) (io.ReadCloser, int64, error) {
	if name == "-" {
		return os.Stdin, -1, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, 0, fmt.Errorf("open the recording: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close() // nothing was written
		return nil, 0, fmt.Errorf("open the recording: %w", err)
	}
	return f, info.Size(), nil
}

// cancellable returns a reader of r that ends with ctx, even during a read that never
// returns, such as one of standard input.
func cancellable(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(in, struct{ io.Reader }{r}, make([]byte, 1<<20))
		in.CloseWithError(err) // never fails
	}()
	context.AfterFunc(ctx, func() { out.CloseWithError(ctx.Err()) }) // never fails
	return out
}

// progress draws a progress bar if standard error is a terminal.
func progress(r io.Reader, size int64) io.Reader {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return r
	}
	bar := progressbar.DefaultBytes(size, "ingesting")
	reader := progressbar.NewReader(r, bar)
	return &reader
}

// printIngest prints the results, from the counters of this process.
func printIngest(ctx context.Context, p app.App, w io.Writer) error {
	families, err := p.Metrics().Gather()
	if err != nil {
		return fmt.Errorf("read the counters: %w", err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				if label.GetName() != "collection" && label.GetName() != "projection" { // summed up
					name += "/" + label.GetValue()
				}
			}
			counts[name] += m.GetCounter().GetValue()
		}
	}
	events := func(kind string) float64 { return counts["weir_consumer_events_total/"+kind] }
	fmt.Fprintf(w, "writes %.0f, deletes %.0f, accounts %.0f, identities %.0f, ignored %.0f, dead-lettered %.0f, characters replaced %.0f\n",
		events("write"), events("delete"), events("account"), events("identity"), events("ignored"),
		counts["weir_consumer_dead_lettered_total/decode"]+counts["weir_consumer_dead_lettered_total/commit"],
		counts["weir_consumer_replaced_characters_total"])
	left, err := schema.UnfinishedJobs(ctx, p.Pool(), p.Projections().Kinds()...)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "records projected %.0f, jobs left %d\n", counts["weir_projector_records_total"], left.Ready+left.Waiting)
	return nil
}
