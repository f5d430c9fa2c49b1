package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
)

// InJournal reports whether standard error is systemd's journal (systemd.exec(5)).
func InJournal() bool {
	var s syscall.Stat_t
	return syscall.Fstat(int(os.Stderr.Fd()), &s) == nil && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", s.Dev, s.Ino)
}

// JournalPriority returns the prefix of a line from which the journal reads its
// level (sd-daemon(3)).
func JournalPriority(level slog.Level) string {
	switch {
	case level >= slog.LevelError:
		return "<3>"
	case level >= slog.LevelWarn:
		return "<4>"
	case level >= slog.LevelInfo:
		return "<6>"
	}
	return "<7>"
}

// journal writes the priority before each line, so that journalctl -p warning finds
// problems.
type journal struct {
	slog.Handler // writes to lines
	lines        *prioritized
}

func (j journal) Handle(ctx context.Context, r slog.Record) error {
	j.lines.mu.Lock()
	defer j.lines.mu.Unlock()
	j.lines.priority = JournalPriority(r.Level)
	return j.Handler.Handle(ctx, r)
}

func (j journal) WithAttrs(attrs []slog.Attr) slog.Handler {
	return journal{j.Handler.WithAttrs(attrs), j.lines}
}

func (j journal) WithGroup(name string) slog.Handler {
	return journal{j.Handler.WithGroup(name), j.lines}
}

// prioritized writes a priority before each line.
type prioritized struct {
	out      io.Writer
	mu       sync.Mutex // held from the choice of a priority until its line is written
	priority string
}

func (p *prioritized) Write(line []byte) (int, error) {
	if _, err := p.out.Write(append([]byte(p.priority), line...)); err != nil {
		return 0, err
	}
	return len(line), nil
}
