package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weir-social/weir/internal/testing/devpg"
)

// DemoDir returns the directory of the demo's Postgres.
func (c Config) DemoDir() string { return filepath.Join(c.Home, "demo") }

// ErrDemoNetwork means that a command would need the network of a demo.
var ErrDemoNetwork = errors.New("only the demo itself reaches its simulated network")

// OfDemo reports whether the configuration leads to the database of a demo that
// runs beside this process. Only the demo's own process can reach the demo's
// network.
func (c Config) OfDemo() bool {
	running, ok := devpg.Running(c.Home)
	demo, is := devpg.RunningIn(c.DemoDir())
	return c.DatabaseURL == "" && ok && is && running == demo
}

// ForTerminal returns the configuration of a process that somebody tries at a terminal: its log is plain text from the
// given level, and the tools for operators need no token on loopback.
func (c Config) ForTerminal(from slog.Level) Config {
	c.terminal = true
	if !IsSet("WEIR_LOG_FORMAT") {
		c.LogFormat = "text"
	}
	if !IsSet("WEIR_LOG_LEVEL") {
		c.LogLevel = from
	}
	return c
}

// IsSet reports whether an environment variable is set.
func IsSet(variable string) bool {
	_, set := os.LookupEnv(variable)
	return set
}
