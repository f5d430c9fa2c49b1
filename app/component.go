package app

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
)

// component adds to each line the part of Weir, or the module, whose code wrote it.
type component struct{ slog.Handler }

func (c component) Handle(ctx context.Context, r slog.Record) error {
	if r.PC != 0 {
		frame, _ := runtime.CallersFrames([]uintptr{r.PC}).Next()
		r.AddAttrs(slog.String("component", componentOf(frame.Function)))
	}
	return c.Handler.Handle(ctx, r)
}

func (c component) WithAttrs(attrs []slog.Attr) slog.Handler {
	return component{c.Handler.WithAttrs(attrs)}
}

func (c component) WithGroup(name string) slog.Handler { return component{c.Handler.WithGroup(name)} }

// componentOf returns the top folder of a function of Weir, such as consumer, or else the name of its
// module, such as river.
func componentOf(function string) string {
	slash := strings.LastIndexByte(function, '/') + 1
	name, _, _ := strings.Cut(function[slash:], ".")
	parts := strings.Split(function[:slash]+name, "/")
	switch {
	case strings.HasPrefix(function, "github.com/weir-social/weir/"):
		return parts[3]
	case strings.Contains(parts[0], "."):
		return parts[min(2, len(parts)-1)]
	}
	return parts[0]
}
