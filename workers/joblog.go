package workers

import (
	"context"
	"io"
	"log/slog"

	"github.com/riverqueue/river/riverlog"
	"github.com/riverqueue/river/rivertype"
)

// Limits of the log in a job's row, in bytes: per attempt and in total. Longer
// logs are truncated, and the oldest attempts are dropped first.
const (
	jobLogAttempt = 16 << 10
	jobLogTotal   = 64 << 10
)

// keepLogs stores each job's log in its row, where River UI shows it.
func keepLogs() []rivertype.Middleware {
	text := func(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }
	return []rivertype.Middleware{riverlog.NewMiddleware(text,
		&riverlog.MiddlewareConfig{MaxSizeBytes: jobLogAttempt, MaxTotalBytes: jobLogTotal})}
}

// JobLog returns the log of the job of ctx. Its messages go to the process's
// log, and into the job's row when the job ends.
func JobLog(ctx context.Context, process *slog.Logger) *slog.Logger {
	own, ok := riverlog.LoggerSafely(ctx)
	if !ok {
		return process // ctx has no job
	}
	return slog.New(slog.NewMultiHandler(process.Handler(), own.Handler()))
}

// RowLog returns the log in the job's row only, for messages that the process's
// log does not need.
func RowLog(ctx context.Context) *slog.Logger {
	if own, ok := riverlog.LoggerSafely(ctx); ok {
		return own
	}
	return slog.New(slog.DiscardHandler)
}
