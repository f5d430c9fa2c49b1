package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/ops/trace"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

func traceCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "trace AT-URI|DID|URL",
		Short: "Show everything known about a record, account or link, and why it counts or does not",
		Example: "  weir trace did:plc:…\n  weir trace at://did:plc:…/app.bsky.feed.post/3k…\n  weir trace " +
			"https://bsky.app/profile/alice.example/post/3k…\n  weir trace https://news.example/story",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			features := app.TraceFeatures()
			target, err := trace.Parse(args[0], features)
			if err != nil {
				return err
			}
			return app.With(cmd.Context(), func(ctx context.Context, p app.App) error {
				out := cmd.OutOrStdout()
				now := time.Now()
				if target.Other != nil {
					found, lines, err := target.Other(ctx, p.Pool(), now)
					return printFound(out, asJSON, found, err, func() { printLines(out, lines) })
				}
				did, err := p.DID(ctx, target.Actor)
				if err != nil {
					return err
				}
				if target.Collection == "" {
					a, err := trace.OfAccount(ctx, p.Pool(), did, features)
					return printFound(out, asJSON, a, err, func() { printAccountTrace(out, a) })
				}
				var rule trace.Rule
				rule.Retention, rule.Stored = p.Retention(target.Collection)
				r, err := trace.OfRecord(ctx, p.Pool(), schema.Key{Collection: target.Collection, DID: did, Rkey: target.Rkey}, now, rule, features)
				return printFound(out, asJSON, r, err, func() { printRecordTrace(out, r) })
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printFound prints a result as JSON, or with print.
func printFound(w io.Writer, asJSON bool, found any, err error, print func()) error {
	if err != nil || !asJSON {
		if err == nil {
			print()
		}
		return err
	}
	return output.JSON(w, found)
}

// printLines prints what features know.
func printLines(w io.Writer, lines []trace.Line) {
	for _, l := range lines {
		if l.What == "" {
			fmt.Fprintln(w, web.Plain(l.Text))
			continue
		}
		fmt.Fprintf(w, "%-11s %s\n", l.What, web.Plain(l.Text))
	}
}

// at formats a time.
func at(t time.Time) string { return t.UTC().Format(time.RFC3339) }

func printRecordTrace(w io.Writer, r trace.Record) {
	say := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%-11s %s\n", what, web.Plain(fmt.Sprintf(format, args...)))
	}
	say("record", "%s", r.URI)
	fmt.Fprintln(w, r.Message)
	switch {
	case r.Stored != nil:
		say("stored", "rev %s, cid %s, created %s, indexed %s", r.Stored.Rev, r.Stored.CID, at(r.Stored.CreatedAt), at(r.Stored.IndexedAt))
	default:
		say("stored", "no")
	}
	if r.Tombstone != nil {
		deleted := "it stays"
		if r.Tombstone.DeletedAt != nil {
			deleted = "deleted " + at(*r.Tombstone.DeletedAt)
		}
		say("tombstone", "rev %s, %s", r.Tombstone.Rev, deleted)
	}
	followed := "followed"
	if !r.Account.Followed {
		followed = "not followed"
	}
	say("account", "%s %s, %s, %s %s %s", r.Account.DID, r.Account.Handle, r.Account.Status, followed, strings.Join(r.Account.Watches, ", "),
		r.Account.Problem)
	for _, s := range r.Streams {
		last := "no event yet"
		if s.LastEvent != nil {
			last = "last event " + at(*s.LastEvent)
		}
		say("stream", "%s at %s %d of %s: %s, %s", s.Name, cmp.Or(s.CursorKind, "no cursor"), s.Cursor, cmp.Or(s.Host, "no host"), last,
			s.Current())
	}
	printLines(w, r.Lines)
	for _, j := range r.Jobs {
		say("job", "%d %s, %s, attempt %d of %d, batch of %d, created %s by %s %s", j.ID, j.Kind, j.State, j.Attempt, j.MaxAttempts, j.Records,
			at(j.CreatedAt), strings.Join(j.By, ", "), j.Metadata)
		for _, e := range j.Errors {
			say("  error", "%s", e)
		}
	}
	if !slices.ContainsFunc(r.Jobs, func(j trace.Job) bool { return j.Records > 0 }) {
		say("job", "none of the newest %d jobs processes it: completed jobs are removed after an hour", trace.SearchedJobs)
	}
	for _, l := range r.DeadLetters {
		say("dead letter", "%d at %s, %s: %s", l.ID, l.Stage, at(l.LastSeen), l.Cause)
	}
	for _, g := range r.Gaps {
		say("gap", "of stream %s, %s to %s: %s; %s", g.Stream, at(g.From), at(g.To), g.Reason, cmp.Or(g.HowClosed, "open"))
	}
	for _, f := range r.Faults {
		say("audit", "%s: %s %s", at(f.At), f.Fault, f.Detail)
	}
}

func printAccountTrace(w io.Writer, a trace.AccountTrace) {
	say := func(what, format string, args ...any) {
		fmt.Fprintf(w, "%-11s %s\n", what, web.Plain(fmt.Sprintf(format, args...)))
	}
	moment := func(t *time.Time) string {
		if t == nil {
			return "never"
		}
		return at(*t)
	}
	say("account", "%s %s", a.DID, a.Handle)
	fmt.Fprintln(w, web.Plain(a.Message))
	say("status", "%s, since %s", a.Status, moment(a.Since))
	say("watches", "%s", cmp.Or(strings.Join(a.Watches, ", "), "none"))
	say("feed", "read %s, complete since %s", moment(a.FeedRead), moment(a.ReadSince))
	if a.Problem != "" {
		say("  problem", "%s", a.Problem)
	}
	for _, c := range a.Stored {
		say("stored", "%s of %s, created from %s to %s", output.Count(c.Records, "record", "records"), c.Name, at(c.Oldest), at(c.Newest))
	}
	if len(a.Stored) == 0 {
		say("stored", "no record")
	}
	printLines(w, a.Lines)
	if a.DeadLetters > 0 {
		say("dead letters", "%d", a.DeadLetters)
	}
	if a.Resync != "" {
		say("resync", "%s", a.Resync)
	}
	for _, one := range a.Said {
		say(one.Label, one.Format, one.Text)
	}
}
