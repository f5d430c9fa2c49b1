package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weir-social/weir/devpg"
)

// DemoDir is where the demo keeps its Postgres.
func (c Config) DemoDir() string { return filepath.Join(c.Home, "demo") }

// ErrDemoNetwork is what a command returns that would ask a demo's network.
var ErrDemoNetwork = errors.New("only the demo itself reaches its simulated network")

// OfDemo reports whether the configuration leads to the database of a demo that
// runs beside this process: what the demo reads, only the demo knows.
func (c Config) OfDemo() bool {
	running, ok := devpg.Running(c.Home)
	demo, is := devpg.RunningIn(c.DemoDir())
	return c.DatabaseURL == "" && ok && is && running == demo
}

// ForTerminal writes a log that is read on a terminal, where nothing else was
// asked for: plain text, from a level on.
func (c Config) ForTerminal(from slog.Level) Config {
	if !IsSet("WEIR_LOG_FORMAT") {
		c.LogFormat = "text"
	}
	if !IsSet("WEIR_LOG_LEVEL") {
		c.LogLevel = from
	}
	return c
}

// IsSet answers whether somebody has set a variable.
func IsSet(variable string) bool {
	_, set := os.LookupEnv(variable)
	return set
}
