package workers

import (
	"context"
	"io"
	"log/slog"

	"github.com/riverqueue/river/riverlog"
	"github.com/riverqueue/river/rivertype"
)

// What a job's row may hold of its log, in bytes: of one attempt, and of all of
// them. What is longer is cut off, and the oldest attempts go first.
const (
	jobLogAttempt = 16 << 10
	jobLogTotal   = 64 << 10
)

// keepLogs has each job's log stored in its row, where River UI shows it.
func keepLogs() []rivertype.Middleware {
	text := func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }
	return []rivertype.Middleware{riverlog.NewMiddleware(text, &riverlog.MiddlewareConfig{MaxSizeBytes: jobLogAttempt, MaxTotalBytes: jobLogTotal})}
}

// jobLog is the log of the job that ctx belongs to: what it is told goes to the
// process's log, and into the job's row when the job ends. A job that says
// nothing costs its row nothing.
func jobLog(ctx context.Context, process *slog.Logger) *slog.Logger {
	own, ok := riverlog.LoggerSafely(ctx)
	if !ok {
		return process // no job
	}
	return slog.New(slog.NewMultiHandler(process.Handler(), own.Handler()))
}

// rowLog is the log in the job's row alone: for what the process's log has
// already, or has no need of.
func rowLog(ctx context.Context) *slog.Logger {
	if own, ok := riverlog.LoggerSafely(ctx); ok {
		return own
	}
	return slog.New(slog.DiscardHandler)
}
