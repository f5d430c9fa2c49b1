package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/weir-social/weir/app"
	"github.com/weir-social/weir/internal/ops/health"
	"github.com/weir-social/weir/internal/output"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

func statusCommand() *cobra.Command {
	asJSON := false
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of Weir: streams, queues, gaps, dead letters, and what to do",
		Args:  cobra.NoArgs,
		RunE: onDatabase(func(ctx context.Context, p app.App, cmd *cobra.Command, _ []string) error {
			now := time.Now()
			report, err := p.Health(ctx, now)
			if err != nil {
				return err
			}
			if asJSON {
				return output.JSON(cmd.OutOrStdout(), report)
			}
			return printStatus(cmd.OutOrStdout(), report, now)
		}),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON, as /health does")
	return cmd
}

// printStatus prints the verdict, the conditions with their hints, and the figures.
func printStatus(w io.Writer, r health.Report, now time.Time) error {
	fmt.Fprintln(w, r.Summary())
	for _, c := range r.Conditions {
		fmt.Fprintf(w, "  %-8s %s %s. Look at: %s\n", c.Severity, c.Name, web.Plain(c.Message), web.Plain(c.Do))
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STREAM\tSTATE\tFOR\tLAST EVENT\tBEHIND\tWIRE\tHOST\tHELD BY")
	for _, s := range r.Streams {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", web.Plain(s.Name), s.State, span(&s.StateSince), ago(s.LastEvent), span(s.Lag),
			web.Plain(s.Wire), cmp.Or(web.Plain(s.Host), "-"), cmp.Or(web.Plain(s.Holder), "-"))
	}
	fmt.Fprintln(table, "\nQUEUE\tWAITING\tRUNNING\tTO RETRY\tSCHEDULED\tOLDEST\t")
	for _, q := range r.Queues {
		oldest := "-"
		if q.Oldest != nil {
			oldest = now.Sub(*q.Oldest).Round(time.Second).String()
		}
		paused := ""
		if q.Paused {
			paused = "paused"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", web.Plain(q.Name), counted(q.Available, schema.CountedJobs),
			counted(q.Running, schema.CountedOthers), counted(q.Retryable, schema.CountedJobs), counted(q.Scheduled, schema.CountedOthers), oldest,
			paused)
	}
	follows := "the whole network"
	if r.FollowsCount > 0 {
		follows = output.Count(r.FollowsCount, "account", "accounts")
	}
	if r.UnreadWatches > 0 {
		follows += fmt.Sprintf("; %s not be read: weir watch list", output.Count(r.UnreadWatches, "watch could", "watches could"))
	}
	gaps := fmt.Sprint(r.OpenGaps)
	if r.GapAccounts > 0 {
		gaps += fmt.Sprintf(", %d of %d accounts are compared", r.GapAccounts-r.GapWaiting, r.GapAccounts)
	}
	if r.Unclosable > 0 {
		gaps += fmt.Sprintf("; %d cannot be closed: %s", r.Unclosable, web.Plain(r.GapProblem))
	}
	fmt.Fprintf(table, "\nfollowing\t%s\nopen gaps\t%s\ndead letters\t%d\n", follows, gaps, r.DeadLetters)
	if r.Desynchronized > 0 {
		fmt.Fprintf(table, "desynchronized\t%s to be compared with their repositories\n", output.Count(r.Desynchronized, "account", "accounts"))
	}
	for _, h := range r.Histories {
		fmt.Fprintf(table, "history of %s\t%s\n", web.Plain(h.Collection), describeHistory(h))
	}
	fmt.Fprintf(table, "database\t%.1f MB\n", float64(r.DatabaseBytes)/(1<<20))
	return table.Flush()
}

// span formats a number of seconds.
func span(s *float64) string {
	if s == nil {
		return "-"
	}
	return time.Duration(*s * float64(time.Second)).Round(time.Second).String()
}

func ago(s *float64) string {
	if s == nil {
		return "never"
	}
	return span(s) + " ago"
}

// counted formats a count that stops above limit.
func counted(n, limit int64) string {
	if n > limit {
		return fmt.Sprintf("%d+", n)
	}
	return fmt.Sprint(n)
}

func healthcheckCommand() *cobra.Command {
	ready := false
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Check that the process at WEIR_OPS_LISTEN is alive; for containers",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := app.ReadConfig()
			if err != nil {
				return err
			}
			path := "/livez"
			if ready {
				path = "/readyz"
			}
			return probe(cmd.Context(), cfg.OpsListen, path)
		},
	}
	cmd.Flags().BoolVar(&ready, "ready", false, "check that it is ready, too")
	return cmd
}

// probe requests a path from the process that listens on an address. It returns nil if
// the status is 200.
func probe(ctx context.Context, listen, path string) error {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("WEIR_OPS_LISTEN is %q: the check needs an address such as 127.0.0.1:8081", listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	ctx, cancel := context.WithTimeout(ctx, 2*checkTimeout)
	defer cancel()
	url := "http://" + net.JoinHostPort(host, port) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return fmt.Errorf("request %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("no response: %w", err)
	}
	defer response.Body.Close() // read only
	body, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	if response.StatusCode != http.StatusOK {
		return errors.New(strings.ReplaceAll(strings.TrimSpace(string(body)), "\n", "; "))
	}
	return nil
}

// checkTimeout is how long a process may take for its checks; probe waits twice as long.
const checkTimeout = 3 * time.Second
