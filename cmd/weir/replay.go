package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/weir-social/weir/consumer"
	"github.com/weir-social/weir/consumer/jetstream"
	"github.com/weir-social/weir/consumer/recording"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/workers"
)

func replayCommand() *cobra.Command {
	work := true
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Feed a recorded stream (JSON lines; - for standard input) through the consumer and the workers",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withParts(cmd.Context(), func(ctx context.Context, p parts) error {
				defer sayStopping(ctx, cmd.ErrOrStderr())()
				file, size, err := openRecording(args[0])
				if err != nil {
					return err
				}
				defer file.Close()
				lines := progress(endsWith(ctx, file), size)
				if err := p.replay(ctx, args[0], lines, work); err != nil && ctx.Err() == nil {
					return err
				}
				if err := p.report(context.WithoutCancel(ctx), cmd.OutOrStdout()); err != nil {
					return err
				}
				if ctx.Err() != nil {
					return errors.New("stopped before the end of the recording: replay it again, what is stored stays as it is")
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&work, "work", true, "work the jobs that come of it too; else they wait for other workers")
	return cmd
}

// replay commits every event of a recording, and works the jobs that come of
// it: then it ends when none is left that could be worked now. Or with ctx.
func (p parts) replay(ctx context.Context, name string, lines io.Reader, work bool) error {
	if !work {
		return p.commitAll(ctx, name, lines)
	}
	g, ctx := errgroup.WithContext(ctx)
	working, stop := context.WithCancel(ctx)
	g.Go(func() error { return p.workers(working, workers.Config{ProcessOnly: true}) })
	g.Go(func() error {
		defer stop()
		if err := p.commitAll(ctx, name, lines); err != nil {
			return err
		}
		return p.drained(ctx)
	})
	return g.Wait()
}

// drained waits until no job is at work or could be.
func (p parts) drained(ctx context.Context) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		left, err := schema.UnfinishedJobs(ctx, p.pool, jobs.ProcessPosts{}.Kind())
		if err != nil && ctx.Err() == nil {
			return err
		}
		if err == nil && left.Ready == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// dropPatience is how long a replay that ends may take to remove its stream.
const dropPatience = 10 * time.Second

// commitAll commits every event of a recording. No stream is left of it, however
// it ends: one that was killed leaves its row to the next.
func (p parts) commitAll(ctx context.Context, name string, lines io.Reader) error {
	stream := p.cfg.Stream + "-replay"
	source := &recording.Source{Name: "recording:" + name, Lines: lines, Wire: jetstream.Wire(p.wanted())}
	c, err := p.consumer(consumer.Config{
		Stream: stream, Wire: schema.WireRecording, Source: source, Afresh: true, Patient: true,
		BatchEvents: p.cfg.BatchEvents, BatchEvery: p.cfg.BatchEvery, BufferBytes: min(p.cfg.BufferBytes, 8<<20), LeaseTTL: p.cfg.LeaseTTL,
		Registerer: p.metrics,
	})
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), dropPatience)
	defer cancel()
	return errors.Join(err, schema.DropRecording(dropping, p.pool, stream))
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
		f.Close() //nolint:errcheck // nothing was written
		return nil, 0, fmt.Errorf("open the recording: %w", err)
	}
	return f, info.Size(), nil
}

// endsWith is r, but ends with ctx even while a read waits: nobody may ever
// write to standard input.
func endsWith(ctx context.Context, r io.Reader) io.Reader {
	out, in := io.Pipe()
	go func() {
		_, err := io.CopyBuffer(in, struct{ io.Reader }{r}, make([]byte, 1<<20))
		in.CloseWithError(err) //nolint:errcheck // never fails
	}()
	context.AfterFunc(ctx, func() { out.CloseWithError(ctx.Err()) }) //nolint:errcheck // never fails
	return out
}

// progress draws a bar on a terminal, and nothing elsewhere.
func progress(r io.Reader, size int64) io.Reader {
	if !term.IsTerminal(int(os.Stderr.Fd())) {
		return r
	}
	bar := progressbar.DefaultBytes(size, "replaying")
	reader := progressbar.NewReader(r, bar)
	return &reader
}

// report says what a replay did, from the process's own counters.
func (p parts) report(ctx context.Context, w io.Writer) error {
	families, err := p.metrics.Gather()
	if err != nil {
		return fmt.Errorf("read the counters: %w", err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				if label.GetName() != "collection" { // summed up
					name += "/" + label.GetValue()
				}
			}
			counts[name] += m.GetCounter().GetValue()
		}
	}
	events := func(kind string) float64 { return counts["weir_consumer_events_total/"+kind] }
	fmt.Fprintf(w, "writes %.0f, deletes %.0f, accounts %.0f, identities %.0f, ignored %.0f, parked %.0f, characters replaced %.0f\n",
		events("write"), events("delete"), events("account"), events("identity"), events("ignored"),
		counts["weir_consumer_parked_total/decode"]+counts["weir_consumer_parked_total/commit"], counts["weir_consumer_replaced_characters_total"])
	left, err := schema.UnfinishedJobs(ctx, p.pool, jobs.ProcessPosts{}.Kind())
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "posts processed %.0f, jobs left %d\n", counts["weir_process_posts_total"], left.Ready+left.Waiting)
	return nil
}
