package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// SettingsFile is the file in the current folder from which every command reads variables that the
// environment does not set.
const SettingsFile = "weir.env"

// ReadSettings sets the variables of SettingsFile, if there is one, in the environment.
func ReadSettings() error {
	settings, err := readSettings()
	if err != nil {
		return err
	}
	for name, value := range settings {
		if _, set := os.LookupEnv(name); set {
			continue
		}
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("set %s from %s: %w", name, SettingsFile, err)
		}
	}
	return nil
}

func readSettings() (map[string]string, error) {
	text, err := os.ReadFile(SettingsFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the settings: %w", err)
	}
	return parseSettings(string(text))
}

// parseSettings returns the variables of a file of lines NAME=value. systemd and Compose, which read the
// same file, understand these lines alike. Lines that begin with # and empty ones have no meaning.
func parseSettings(text string) (map[string]string, error) {
	settings := map[string]string{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, value, found := strings.Cut(line, "=")
		switch {
		case !found:
			return nil, fmt.Errorf("%s, line %d: expected NAME=value, or # before a comment", SettingsFile, number)
		case !isSetting(name):
			return nil, fmt.Errorf("%s, line %d: %q is not a variable of weir (docs/configuration.md lists them all)", SettingsFile, number, name)
		}
		for _, quote := range []string{`'`, `"`} {
			if len(value) >= 2 && strings.HasPrefix(value, quote) && strings.HasSuffix(value, quote) {
				value = value[1 : len(value)-1]
				break
			}
		}
		settings[name] = value
	}
	return settings, nil
}

// isSetting reports whether a file of settings may set a variable: Weir's, whose names CheckVariables
// compares, and those of Postgres's clients, S3, traces and Go. A file that happens to lie in the current
// folder cannot choose the programs that Weir starts.
func isSetting(name string) bool {
	return name == "DATABASE_URL" || slices.ContainsFunc([]string{"WEIR_", "PG", "AWS_", "OTEL_", "GO"}, func(prefix string) bool {
		return strings.HasPrefix(name, prefix)
	})
}
