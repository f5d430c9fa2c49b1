package app

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJournalPriorities checks the priority of every line, also for derived
// loggers.
func TestJournalPriorities(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := Config{LogLevel: slog.LevelDebug, LogFormat: "text"}.loggerTo(&out, true)
	child := log.With("stream", "a").WithGroup("g")
	for _, l := range []*slog.Logger{log, child} {
		out.Reset()
		l.Debug("one")
		l.Info("one")
		l.Warn("one")
		l.Error("one")
		require.Regexp(t, `^<7>time=.* level=DEBUG .*\n<6>time=.* level=INFO .*\n<4>time=.* level=WARN .*\n<3>time=.* level=ERROR .*\n$`,
			out.String())
	}
}
