package workers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertest"
	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
	"github.com/weir-social/weir/internal/testing/schematest"
	"github.com/weir-social/weir/jobs"
	"github.com/weir-social/weir/schema"
)

// TestEveryErrorHasOneClass shows that each error has its class, however it is
// wrapped.
func TestEveryErrorHasOneClass(t *testing.T) {
	t.Parallel()
	const cancel, retry = "cancel", "retry"
	snoozed := func(d time.Duration) string { return "snooze " + d.String() }
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"the account is gone":         {&bluesky.Error{Class: bluesky.Permanent, Status: 400, Name: "AccountTakedown"}, cancel},
		"the server is busy":          {&bluesky.Error{Class: bluesky.RateLimited, Status: 429, RetryAfter: time.Minute}, snoozed(time.Minute)},
		"busy, and does not say when": {&bluesky.Error{Class: bluesky.RateLimited}, snoozed(time.Second)},
		"the server is broken":        {&bluesky.Error{Class: bluesky.Transient, Status: 500}, retry},
		"the login is refused":        {errors.Join(&bluesky.Error{Class: bluesky.Permanent, Status: 401}, bluesky.ErrLogin), retry},
		"the database refuses a row":  {&pgconn.PgError{Code: "22003"}, cancel},
		"the database restarts":       {&pgconn.PgError{Code: "57P01"}, retry},
		"a deadlock":                  {&pgconn.PgError{Code: "40P01"}, retry},
		"a table is missing":          {&pgconn.PgError{Code: "42P01"}, retry},
		"the job took too long":       {context.DeadlineExceeded, retry},
		"a bug":                       {errors.New("a bug"), retry},
		"the worker gives up":         {NonRetryable(errors.New("x")), cancel},
		"the worker waits":            {Snooze(time.Hour), snoozed(time.Hour)},
		"an operator cancels the job": {river.JobCancel(errors.New("x")), cancel},
		"the webhook is busy":         {&webhookError{status: 429, retryAfter: time.Minute}, snoozed(time.Minute)},
		"the webhook is gone":         {&webhookError{status: 404}, cancel},
		"the webhook has moved":       {&webhookError{status: 302}, cancel},
		"the webhook is broken":       {&webhookError{status: 503}, retry},
		"the webhook is slow":         {&webhookError{status: 408}, retry},
		"the webhook is early":        {&webhookError{status: 425}, retry},
	} {
		for _, err := range []error{c.err, fmt.Errorf("read a page: %w", c.err)} {
			var cancelled *river.JobCancelError
			var snooze *river.JobSnoozeError
			got, ended := retry, riverError(err)
			switch {
			case errors.As(ended, &snooze):
				got = snoozed(snooze.Duration)
			case errors.As(ended, &cancelled):
				got = cancel
			}
			require.Equal(t, c.want, got, name)
			if snooze == nil {
				require.ErrorContains(t, ended, err.Error(), "the cause must be kept")
			}
		}
	}
	require.NoError(t, riverError(nil))
}

// TestJobsAreCancelledAndSnoozedInOnePlace shows that only errors.go uses
// River's cancel and snooze errors.
func TestJobsAreCancelledAndSnoozedInOnePlace(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	made := map[string][]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		require.NoError(t, err)
		river := map[string]bool{} // the names of River's packages that the file imports
		for _, imported := range file.Imports {
			if path := strings.Trim(imported.Path.Value, `"`); strings.HasPrefix(path, "github.com/riverqueue/river") {
				river[filepath.Base(path)] = true
				require.Nil(t, imported.Name, "%s renames %s", name, path)
			}
		}
		ends := func(e ast.Expr) {
			if s, ok := e.(*ast.SelectorExpr); ok {
				if pkg, ok := s.X.(*ast.Ident); ok && river[pkg.Name] && (strings.HasPrefix(s.Sel.Name, "JobCancel") || strings.HasPrefix(s.Sel.Name,
					"JobSnooze")) {
					made[name] = append(made[name], s.Sel.Name)
				}
			}
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				ends(n.Fun)
			case *ast.CompositeLit:
				ends(n.Type)
			}
			return true
		})
	}
	require.Equal(t, map[string][]string{"errors.go": {"JobSnooze", "JobSnooze", "JobCancel"}}, made)
}

// ender returns its error.
type ender struct {
	river.WorkerDefaults[jobs.CloseGap]
	err error
}

func (w *ender) Work(context.Context, *river.Job[jobs.CloseGap]) error { return w.err }

// TestDeadLettersOfJobsHaveTheClassOfTheirErrors shows that the database, which
// writes the dead letters, classifies errors in the same way.
func TestDeadLettersOfJobsHaveTheClassOfTheirErrors(t *testing.T) {
	t.Parallel()
	pool := schematest.New(t)
	for _, c := range []struct {
		err    error
		class  class
		letter []string
	}{
		{errors.New("a bug"), retryable, []string{schema.ClassRetryable}},
		{NonRetryable(errors.New("x")), permanent, []string{schema.ClassPermanent}},
		{&webhookError{status: 404}, permanent, []string{schema.ClassPermanent}},
		{&pgconn.PgError{Code: "22003"}, permanent, []string{schema.ClassPermanent}},
		{&bluesky.Error{Class: bluesky.RateLimited}, postponed, nil},
	} {
		t.Run(c.err.Error(), func(t *testing.T) {
			require.Equal(t, c.class, classify(c.err))
			tx, err := pool.Begin(t.Context())
			require.NoError(t, err)
			defer tx.Rollback(t.Context()) // read only
			var log bytes.Buffer
			worker := rivertest.NewWorker[jobs.CloseGap](t, &riverDriver{}, &river.Config{},
				classifiedWorker[jobs.CloseGap]{&ender{err: c.err}, slog.New(slog.NewTextHandler(&log, nil)), nil})
			_, err = worker.Work(t.Context(), t, tx, jobs.CloseGap{}, &river.InsertOpts{MaxAttempts: 1})
			require.Equal(t, c.class == retryable, err != nil, "River treats a cancellation or a snooze as no error: %v", err)
			rows, err := tx.Query(t.Context(), `SELECT class FROM dead_letters`)
			require.NoError(t, err)
			classes, err := pgx.CollectRows(rows, pgx.RowTo[string])
			require.NoError(t, err)
			require.ElementsMatch(t, c.letter, classes, "%v", c.err)
			require.Equal(t, len(c.letter) > 0, strings.Contains(log.String(), "msg=job_given_up kind=close_gap"),
				"the process logs a job that is given up: %s", log.String())
		})
	}
}
