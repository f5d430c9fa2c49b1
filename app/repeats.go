package app

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

const (
	repeatInterval = 10 * time.Minute // how often an error that repeats is logged
	maxRepeats     = 1000             // different errors that are remembered
)

// repeats logs an error that repeats once in a while, with the number of those that it dropped.
// Two errors are the same if they differ only in numbers and queues: while Postgres is away, every
// queue of River reports it each second.
type repeats struct {
	slog.Handler
	said *said
	with string // the attributes of the logger
}

// said holds the errors that were logged.
type said struct {
	mu  sync.Mutex
	all map[string]*saidError
}

type saidError struct {
	at      time.Time
	dropped int
}

func newRepeats(h slog.Handler) slog.Handler {
	return repeats{Handler: h, said: &said{all: map[string]*saidError{}}}
}

func (h repeats) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelError {
		return h.Handler.Handle(ctx, r)
	}
	var key strings.Builder
	fmt.Fprint(&key, r.Message, h.with)
	r.Attrs(func(a slog.Attr) bool {
		key.WriteString(distinct(a))
		return true
	})
	again, dropped := h.said.again(key.String(), r.Time)
	if again {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("repeated", dropped))
	}
	return h.Handler.Handle(ctx, r)
}

// again reports whether an error was logged recently, and otherwise how many were dropped since.
func (s *said) again(key string, now time.Time) (again bool, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := s.all[key]
	if last != nil && now.Sub(last.at).Abs() < repeatInterval {
		last.dropped++
		return true, 0
	}
	if last != nil {
		dropped = last.dropped
	} else if len(s.all) >= maxRepeats {
		clear(s.all)
	}
	s.all[key] = &saidError{at: now}
	return false, dropped
}

// distinct returns an attribute as a text, or "" if it does not tell errors apart.
func distinct(a slog.Attr) string {
	switch a.Value.Resolve().Kind() {
	case slog.KindInt64, slog.KindUint64, slog.KindFloat64, slog.KindDuration:
		return ""
	}
	if a.Key == "queue" {
		return ""
	}
	return " " + a.String()
}

func (h repeats) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := h.with
	for _, a := range attrs {
		with += distinct(a)
	}
	return repeats{h.Handler.WithAttrs(attrs), h.said, with}
}

func (h repeats) WithGroup(name string) slog.Handler {
	return repeats{h.Handler.WithGroup(name), h.said, h.with + " " + name}
}
