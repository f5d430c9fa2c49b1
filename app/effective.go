package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"reflect"
	"strings"
	"syscall"

	"github.com/weir-social/weir/internal/testing/devpg"
)

// Check returns the errors that `weir serve` would return when it starts. It runs
// the same code. An address in use is not an error: a running weir may use it.
func (c Config) Check() error {
	p := New(c, nil)
	p.log = slog.New(slog.DiscardHandler)
	errs := []error{p.checkSource()}
	for _, set := range [][2]string{{"DATABASE_URL", c.DatabaseURL}, {"WEIR_READ_DATABASE_URL", c.ReadDatabaseURL}} {
		if _, err := parseDatabase(set[0], set[1]); set[1] != "" {
			errs = append(errs, err)
		}
	}
	for _, named := range c.Watch {
		_, err := p.configuredWatch(named)
		errs = append(errs, err)
	}
	if _, err := p.Bluesky(nil); err != nil {
		errs = append(errs, err)
	}
	if _, err := p.page(nil, nil); err != nil {
		errs = append(errs, err)
	}
	for _, open := range []func() (net.Listener, error){c.ListenPage, p.listenOps} {
		l, err := open()
		switch {
		case err == nil && l != nil:
			l.Close() // it has no connections
		case err != nil && !errors.Is(err, syscall.EADDRINUSE):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Variable is a variable of the configuration, without secrets.
type Variable struct{ Name, Value, From string }

// Effective returns all variables, in the order of docs/configuration.md.
func (c Config) Effective() []Variable {
	var all []Variable
	settings, _ := readSettings() // without the file, its variables are shown as the environment's
	for _, values := range c.variables() {
		all = append(all, c.effective(values, settings)...)
	}
	return all
}

func (c Config) effective(values reflect.Value, settings map[string]string) (all []Variable) {
	for i := range values.NumField() {
		tag := values.Type().Field(i).Tag
		if tag.Get("env") == "" {
			continue
		}
		v := Variable{Name: tag.Get("env"), Value: shown(values.Field(i).Interface(), tag.Get("secret") == "true"), From: "default"}
		if set, ok := os.LookupEnv(v.Name); ok && (set != "" || tag.Get("empty") == "true") {
			v.From = "environment"
			if inFile, ok := settings[v.Name]; ok && inFile == set {
				v.From = SettingsFile
			}
		}
		if running, ok := devpg.Running(c.Home); v.Name == "DATABASE_URL" && c.DatabaseURL == "" && ok {
			v.Value, v.From = shown(running, false), "the server in "+c.Home
		}
		all = append(all, v)
	}
	return all
}

// shown returns a value without its secrets.
func shown(value any, secret bool) string {
	if list, ok := value.([]string); ok {
		parts := make([]string, len(list))
		for i, s := range list {
			parts[i] = shown(s, secret)
		}
		return strings.Join(parts, ",")
	}
	s := fmt.Sprint(value)
	u, err := url.Parse(s)
	switch {
	case s == "":
		return ""
	case secret:
		return "(set)"
	case err != nil && strings.Contains(s, "://"), strings.Contains(strings.ToLower(s), "password="):
		return redact(s)
	case err == nil && u.User != nil:
		return redact(s)
	}
	return s
}
