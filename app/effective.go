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

	"github.com/weir-social/weir/devpg"
)

// Check reports what `weir serve` would refuse at its start, by the code with
// which it starts. An address that is in use, by a weir that runs, is no mistake.
func (c Config) Check() error {
	p := New(c, nil)
	p.log = slog.New(slog.DiscardHandler)
	errs := []error{p.checkSource()}
	if _, err := p.Bluesky(nil); err != nil {
		errs = append(errs, err)
	}
	if _, err := p.page(); err != nil {
		errs = append(errs, err)
	}
	for _, open := range []func() (net.Listener, error){c.ListenPage, p.listenForOperators} {
		l, err := open()
		switch {
		case err == nil && l != nil:
			l.Close() //nolint:errcheck // nobody has connected
		case err != nil && !errors.Is(err, syscall.EADDRINUSE):
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Variable is one of the configuration's, fit to be shown.
type Variable struct{ Name, Value, From string }

// Effective are all variables, in the order of docs/configuration.md.
func (c Config) Effective() []Variable {
	var all []Variable
	fields, values := reflect.TypeFor[Config](), reflect.ValueOf(c)
	for i := range fields.NumField() {
		tag := fields.Field(i).Tag
		v := Variable{Name: tag.Get("env"), Value: shown(values.Field(i).Interface(), tag.Get("secret") == "true"), From: "default"}
		if set, ok := os.LookupEnv(v.Name); ok && (set != "" || v.Name == "WEIR_IMAGE_BASE") {
			v.From = "environment"
		}
		if running, ok := devpg.Running(c.Home); v.Name == "DATABASE_URL" && c.DatabaseURL == "" && ok {
			v.Value, v.From = shown(running, false), "the server in "+c.Home
		}
		all = append(all, v)
	}
	return all
}

// shown is a value without what is secret in it.
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
