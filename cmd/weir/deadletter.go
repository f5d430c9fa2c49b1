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
	"github.com/weir-social/weir/schema"
	"github.com/weir-social/weir/web"
)

func deadletterCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "deadletter", Short: "See and replay what could not be processed"}
	cmd.AddCommand(deadletterListCommand(), deadletterShowCommand(), deadletterReplayCommand(), deadletterDismissCommand())
	return cmd
}

// letterFilter adds the flags that choose letters, and answers the choice.
func letterFilter(cmd *cobra.Command) func() (schema.LetterFilter, error) {
	var f schema.LetterFilter
	cmd.Flags().StringVar(&f.Stage, "stage", "", "only those of a stage: "+strings.Join(schema.Stages(), ", "))
	cmd.Flags().StringVar(&f.Class, "class", "", "only those of a class: "+strings.Join(schema.Classes(), ", "))
	return func() (schema.LetterFilter, error) {
		if err := oneOf(cmd, "stage", f.Stage, schema.Stages()); err != nil {
			return f, err
		}
		return f, oneOf(cmd, "class", f.Class, schema.Classes())
	}
}

// oneOf refuses the value of a flag that is none of those known.
func oneOf(cmd *cobra.Command, flag, value string, known []string) error {
	if !cmd.Flags().Changed(flag) || slices.Contains(known, value) {
		return nil
	}
	return fmt.Errorf("--%s is %q: expected %s", flag, value, oneOfMany(known))
}

// letterIDs reads the numbers of letters.
func letterIDs(args []string) ([]int64, error) {
	ids := make([]int64, len(args))
	for i, arg := range args {
		id, err := strconv.ParseInt(arg, 10, 64)
		if err != nil || id < 1 {
			return nil, fmt.Errorf("%q is no dead letter's number: `weir deadletter list` shows them", arg)
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
		Short: "List the dead letters that need somebody, last seen first",
		Args:  cobra.NoArgs,
	}
	filter := letterFilter(cmd)
	cmd.Flags().IntVar(&limit, "limit", 50, "how many at most")
	cmd.Flags().StringVar(&state, "state", "", "those in a state, instead of open and replaying: "+strings.Join(schema.LetterStates(), ", "))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		f, err := filter()
		if err == nil {
			err = oneOf(cmd, "state", state, schema.LetterStates())
		}
		switch {
		case err != nil:
			return err
		case limit < 1 || limit > 10_000:
			return fmt.Errorf("--limit is %d: expected 1 to 10000", limit)
		}
		f.State = state
		return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
			letters, err := schema.Letters(ctx, p.Pool(), f, limit)
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(letters)
			}
			return printLetters(cmd.OutOrStdout(), letters, time.Now())
		})
	}
	return cmd
}

func printLetters(w io.Writer, letters []schema.Letter, now time.Time) error {
	if len(letters) == 0 {
		fmt.Fprintln(w, "no dead letter")
		return nil
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tSTAGE\tCLASS\tSTATE\tCOUNT\tLAST SEEN\tABOUT\tCAUSE")
	for i := range letters {
		l := &letters[i]
		cause := web.Plain(l.Cause)
		if l.Path != "" {
			cause += " at " + web.Plain(l.Path)
		}
		fmt.Fprintf(table, "%d\t%s\t%s\t%s\t%d\t%s ago\t%s\t%s\n", l.ID, l.Stage, l.Class, l.State, l.Count,
			now.Sub(l.LastSeen).Round(time.Second), about(l), cut(cause, 100))
	}
	return table.Flush()
}

// about is the record or the kind of job that a letter is about.
func about(l *schema.Letter) string {
	switch {
	case l.Kind != "":
		return web.Plain(l.Kind)
	case l.DID != "":
		return web.Plain(l.Subject())
	}
	return "-"
}

// cut is a text of so many characters at most.
func cut(s string, most int) string {
	if runes := []rune(s); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return s
}

// shownRaw is how much of an input is shown, in bytes.
const shownRaw = 16 << 10

func deadletterShowCommand() *cobra.Command {
	var raw bool
	cmd := &cobra.Command{
		Use:   "show ID",
		Short: "Show a dead letter with its causes and its input",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := letterIDs(args)
			if err != nil {
				return err
			}
			most := shownRaw
			if raw {
				most = 1 << 30
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				l, err := schema.FindLetter(ctx, p.Pool(), ids[0], most)
				switch {
				case errors.Is(err, schema.ErrNoRows):
					return fmt.Errorf("there is no dead letter %d", ids[0])
				case err != nil:
					return err
				case raw:
					_, err := cmd.OutOrStdout().Write(l.Raw)
					return err
				}
				return printLetter(cmd.OutOrStdout(), &l)
			})
		},
	}
	cmd.Flags().BoolVar(&raw, "raw", false, "print what is kept of the input and nothing else, byte for byte")
	return cmd
}

func printLetter(w io.Writer, l *schema.Letter) error {
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
	line("about", about(l))
	line("queue", l.Queue)
	line("projection", l.Projection)
	if l.Job != nil {
		line("job", strconv.FormatInt(*l.Job, 10))
	}
	line("stream", l.Stream)
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
		_, err = fmt.Fprintf(w, "… and %d bytes more\n", more)
	}
	return err
}

// chosen runs one on each letter that is named, or all on those that the flags
// choose.
func chosen(cmd *cobra.Command, one func(ctx context.Context, p app.App, id int64) error, all func(context.Context, app.App, schema.LetterFilter) error) *cobra.Command {
	every := cmd.Flags().Bool("all", false, "every open one, of a stage or class where they are given")
	filter := letterFilter(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		ids, err := letterIDs(args)
		switch {
		case *every == (len(args) > 0):
			return errors.New("name dead letters by their numbers, or --all")
		case !*every && (cmd.Flags().Changed("stage") || cmd.Flags().Changed("class")):
			return errors.New("--stage and --class belong to --all")
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

func deadletterReplayCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "replay ID…", Short: "Have dead letters tried again, by a worker"}
	return chosen(cmd, func(ctx context.Context, p app.App, id int64) error {
		job, err := schema.ReplayLetter(ctx, p.Pool(), id)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "dead letter %d is tried again by job %d: `weir deadletter show %d` says how it ends\n", id, job, id)
		}
		return err
	}, func(ctx context.Context, p app.App, f schema.LetterFilter) error {
		n, err := schema.ReplayLetters(ctx, p.Pool(), f)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s tried again: `weir deadletter list` shows what is left\n", counts(int64(n), "dead letter is", "dead letters are"))
		}
		return err
	})
}

func deadletterDismissCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "dismiss ID…", Short: "Say that dead letters need nothing"}
	return chosen(cmd, func(ctx context.Context, p app.App, id int64) error {
		err := schema.DismissLetter(ctx, p.Pool(), id)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "dead letter %d is dismissed\n", id)
		}
		return err
	}, func(ctx context.Context, p app.App, f schema.LetterFilter) error {
		n, err := schema.DismissLetters(ctx, p.Pool(), f)
		if err == nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%s dismissed\n", counts(int64(n), "dead letter is", "dead letters are"))
		}
		return err
	})
}
