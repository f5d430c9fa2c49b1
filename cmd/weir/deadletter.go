package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

func deadletterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "deadletter", Short: "List, show, retry and dismiss dead letters"}
	cmd.AddCommand(deadletterListCommand(), deadletterShowCommand(), deadletterRetryCommand(), deadletterDismissCommand())
	return cmd
}

// filterFlags adds the flags --stage and --class. The function that it returns reads
// them.
func filterFlags(cmd *cobra.Command) func() (schema.DeadLetterFilter, error) {
	var f schema.DeadLetterFilter
	cmd.Flags().StringVar(&f.Stage, "stage", "", "only dead letters of a stage: "+strings.Join(schema.Stages(), ", "))
	cmd.Flags().StringVar(&f.Class, "class", "", "only dead letters of a class: "+strings.Join(schema.Classes(), ", "))
	return func() (schema.DeadLetterFilter, error) {
		if err := oneOf(cmd, "stage", f.Stage, schema.Stages()); err != nil {
			return f, err
		}
		return f, oneOf(cmd, "class", f.Class, schema.Classes())
	}
}

// oneOf returns an error if a flag is set to none of these values.
func oneOf(cmd *cobra.Command, flag, value string, values []string) error {
	if !cmd.Flags().Changed(flag) || slices.Contains(values, value) {
		return nil
	}
	return fmt.Errorf("--%s is %q: expected %s", flag, value, output.Or(values))
}

// deadLetterIDs parses the numbers of dead letters.
func deadLetterIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, fmt.Errorf("%q is not the number of a dead letter: `weir deadletter list` shows them", arg)
		}
		ids[i] = id
	}
	return ids, nil
}

func deadletterListCommand() *cobra.Command {
	var (
		limit  int
		state  string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the open and retrying dead letters, last seen first",
		Args:  cobra.NoArgs,
	}
	filter := filterFlags(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "the maximum number of dead letters")
	cmd.Flags().StringVar(&state, "state", "",
		"only dead letters in a state, instead of open and retrying: "+strings.Join(schema.DeadLetterStates(), ", "))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter()
		if err == nil {
			err = oneOf(cmd, "state", state, schema.DeadLetterStates())
		}
		switch {
		case err != nil:
			return err
		case limit < 1 || limit > 10_000:
			return fmt.Errorf("--limit is %d: expected 1 to 10000", limit)
		}
		f.State = state
		return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
			found, err := schema.ListDeadLetters(ctx, p.Pool(), f, limit)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(found)
			}
			return printDeadLetters(cmd.OutOrStdout(), found, time.Now())
		})
	}
	return cmd
}

func printDeadLetters(w io.Writer, all []schema.StoredDeadLetter, now time.Time) error {
	if len(all) == 0 {
		fmt.Fprintln(w, "no dead letter")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTAGE\tCLASS\tSTATE\tCOUNT\tLAST SEEN\tSUBJECT\tCAUSE")
	for i := range all {
		l := &all[i]
		cause := web.Plain(l.Cause)
		if l.Path != "" {
			cause += " at " + web.Plain(l.Path)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s ago\t%s\t%s\n", l.ID, l.Stage, l.Class, l.State, l.Count,
			now.Sub(l.LastSeen).Round(time.Second), subject(l), shorten(cause, 100))
	}
	return table.Flush()
}

// subject returns the record or the kind of job of a dead letter.
func subject(l *schema.StoredDeadLetter) string {
	switch {
	case l.Kind != "":
		return web.Plain(l.Kind)
	case l.DID != "":
		return web.Plain(l.Subject())
	}
	return "-"
}

// shorten cuts a text to limit characters.
func shorten(s string, limit int) string {
	if runes := []rune(s); len(runes) > limit {
		return string(runes[:limit-1]) + "…"
	}
	return s
}

// maxInput is how many bytes of an input are shown.
const maxInput = 16 << 10

func deadletterShowCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter with its cause and input",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := deadLetterIDs(args)
			if err != nil {
				return err
			}
			limit := maxInput
			if raw {
				limit = 1 << 30
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				l, err := schema.FindDeadLetter(ctx, p.Pool(), ids[0], limit)
				switch {
				case errors.Is(err, schema.ErrNoRows):
					return fmt.Errorf("there is no dead letter %d", ids[0])
				case err != nil:
					return err
				case raw:
					_, err := cmd.OutOrStdout().Write(l.Raw)
					return err
				}
				return printDeadLetter(cmd.OutOrStdout(), &l)
			})
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print only the stored input, byte for byte")
	return cmd
}

func printDeadLetter(w io.Writer, l *schema.StoredDeadLetter) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value = web.Plain(value); value != "" {
			fmt.Fprintf(table, "%s\t%s\n", name, value)
		}
	}
	line("dead letter", strconv.FormatInt(l.ID, 10))
	line("stage", l.Stage)
	line("class", l.Class)
	line("state", l.State)
	if l.StateAt != nil {
		line("since", l.StateAt.UTC().Format(time.RFC3339))
	}
	line("subject", subject(l))
	line("queue", l.Queue)
	line("projection", l.Projection)
	if l.Job != nil {
		line("job", strconv.FormatInt(*l.Job, 10))
	}
	line("stream", l.Stream)
	if l.Position != nil {
		line("position", strconv.FormatInt(*l.Position, 10))
	}
	line("wire", l.Wire)
	line("cause", l.Cause)
	line("path", l.Path)
	line("expected", l.Expected)
	line("received", l.Received)
	line("last cause", l.LastCause)
	line("first seen", l.FirstSeen.UTC().Format(time.RFC3339))
	line("last seen", l.LastSeen.UTC().Format(time.RFC3339))
	line("count", strconv.FormatInt(l.Count, 10))
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", web.Plain(string(l.Raw)))
	if more := l.RawBytes - int64(len(l.Raw)); err == nil && more > 0 {
		_, err = fmt.Fprintf(w, "… and %d more bytes\n", more)
	}
	return err
}

// selecting completes a command that acts on dead letters. It calls one for each number
// among the arguments, or all with the filter of the flags.
func selecting(
	cmd *cobra.Command, one func(ctx context.Context, p app.App, id int64) error,
	all func(context.Context, app.App, schema.DeadLetterFilter) error,
) *cobra.Command {
	every := cmd.Flags().Bool("all", false, "every open dead letter, or those of --stage and --class")
	filter := filterFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := deadLetterIDs(args)
		switch {
		case *every == (len(args) > 0):
			return errors.New("give the numbers of dead letters or --all")
		case !*every && (cmd.Flags().Changed("stage") || cmd.Flags().Changed("class")):
			return errors.New("--stage and --class require --all")
		case err != nil:
			return err
		}
		f, err := filter()
		if err != nil {
			return err
		}
		return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
			if *every {
				return all(ctx, p, f)
			}
			for _, id := range ids {
				if err := one(ctx, p, id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return cmd
}

func deadletterRetryCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "retry ID…", Short: "Have a worker retry dead letters"}
	return selecting(cmd, func(ctx context.Context, p app.App, id int64) error {
		job, err := schema.RetryDeadLetter(ctx, p.Pool(), id)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "job %d retries dead letter %d: `weir deadletter show %d` shows the result\n", job, id, id)
		}
		return err
	}, func(ctx context.Context, p app.App, f schema.DeadLetterFilter) error {
		n, err := schema.RetryDeadLetters(ctx, p.Pool(), f)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s retrying: `weir deadletter list` shows the rest\n",
				output.Count(int64(n), "dead letter", "dead letters"))
		}
		return err
	})
}

func deadletterDismissCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dismiss ID…", Short: "Mark dead letters as dismissed: they need no action"}
	return selecting(cmd, func(ctx context.Context, p app.App, id int64) error {
		err := schema.DismissDeadLetter(ctx, p.Pool(), id)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "dead letter %d dismissed\n", id)
		}
		return err
	}, func(ctx context.Context, p app.App, f schema.DeadLetterFilter) error {
		n, err := schema.DismissDeadLetters(ctx, p.Pool(), f)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s dismissed\n", output.Count(int64(n), "dead letter", "dead letters"))
		}
		return err
	})
}
