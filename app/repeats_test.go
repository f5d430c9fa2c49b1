package app

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRepeatedErrorsAreSaidOnce shows that an error that repeats is logged every ten minutes, and that others are not held back by it.
func TestRepeatedErrorsAreSaidOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := Config{LogFormat: "text"}.loggerTo(&out, true).With("stream", "s")
	now := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	lines := func(level slog.Level, after time.Duration, attrs ...any) int {
		before := strings.Count(out.String(), "\n")
		r := slog.NewRecord(now.Add(after), level, "fetch_failed", 0)
		r.Add(attrs...)
		require.NoError(t, log.Handler().Handle(context.Background(), r))
		return strings.Count(out.String(), "\n") - before
	}
	refused := errors.New("connection refused")
	require.Equal(t, 1, lines(slog.LevelError, 0, "error", refused, "queue", "a", "try", 1))
	require.Zero(t, lines(slog.LevelError, time.Second, "error", refused, "queue", "b", "try", 2, "wait", time.Second))
	require.Zero(t, lines(slog.LevelError, 9*time.Minute, "error", refused))
	require.Equal(t, 1, lines(slog.LevelError, time.Second, "error", errors.New("too many connections")))
	require.Equal(t, 1, lines(slog.LevelError, time.Second, "error", refused, "from", now))
	require.Equal(t, 1, lines(slog.LevelWarn, time.Second, "error", refused))
	require.Equal(t, 1, lines(slog.LevelWarn, time.Second, "error", refused))
	log = log.With("stream", "other")
	require.Equal(t, 1, lines(slog.LevelError, time.Second, "error", refused))
	log = Config{LogFormat: "text"}.loggerTo(&out, false)
	require.Equal(t, 1, lines(slog.LevelError, 0, "error", refused))
	require.Zero(t, lines(slog.LevelError, time.Minute, "error", refused))
	require.Equal(t, 1, lines(slog.LevelError, 11*time.Minute, "error", refused))
	require.Contains(t, out.String(), `error="connection refused" repeated=1`)
	require.Equal(t, 1, lines(slog.LevelError, 30*time.Minute, "error", refused))
	require.Equal(t, 1, strings.Count(out.String(), "repeated="))
}
