package web

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/weir-social/weir/ranking"
	"github.com/weir-social/weir/schema"
)

// view is a ranking that was asked for.
type view struct {
	window
	query   ranking.Query
	compact bool // a page with a line for each link
}

// key is the same for two requests of the same page.
func (v view) key() string {
	return fmt.Sprintf("%s %d %s", v.query.View(), v.query.Limit, v.query.After)
}

// parseView reads the parameters that are named. A misspelt parameter is an error,
// because the response would silently be for other parameters.
func parseView(raw string, names []string, standard string) (view, error) {
	values, err := parseParameters(raw, names, "window=6h&limit=50")
	if err != nil {
		return view{}, err
	}
	return newView(values, standard)
}

// parseParameters reads a query with the parameters that are named, each at most once.
func parseParameters(raw string, names []string, example string) (url.Values, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, fmt.Errorf("the query is malformed: send one like %s", example)
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("unknown parameter %q: send any of %s", shorten(name, 40), strings.Join(names, ", "))
		}
		if n := len(values[name]); n > 1 {
			return nil, fmt.Errorf("%s appears %d times: send it once", name, n)
		}
	}
	return values, nil
}

// newView reads a view from its parameters. standard is the window if none is asked for.
func newView(values url.Values, standard string) (v view, err error) {
	if !values.Has("window") {
		values.Set("window", standard)
	}
	v.query, err = ranking.ParseQuery(func(name string) (string, bool) {
		return values.Get(name), values.Has(name)
	}, ranking.Limits{Default: defaultLimit, Most: maxLimit})
	if wrong, ok := errors.AsType[*ranking.ParameterError](err); ok {
		return v, fmt.Errorf("%s is %q: send %s", wrong.Name, shorten(wrong.Value, 40), wrong.Expected)
	}
	for _, w := range windows() {
		if w.Length == v.query.Window {
			v.window = w
		}
	}
	if density := values.Get("density"); density != "" && density != "full" && density != "compact" {
		return v, fmt.Errorf("density is %q: send one of full, compact", shorten(density, 40))
	}
	v.compact = values.Get("density") == "compact"
	return v, err
}

// namedTargets is how many targets of watches an error names.
const namedTargets = 10

// writeUnreadable reports why a view could not be read.
func (s *server) writeUnreadable(w http.ResponseWriter, r *http.Request, v view, err error) {
	switch {
	case errors.Is(err, ranking.ErrCursor):
		s.writeError(w, r, http.StatusBadRequest, fmt.Sprintf("cursor is %q: send the next of a page with the same other parameters, from less than an hour ago, or none for the first page",
			shorten(string(v.query.After), 40)))
	case errors.Is(err, ranking.ErrWatch):
		s.writeUnknownWatch(w, r, v.query.Watch)
	default:
		s.writeUnavailable(w, r)
	}
}

// writeUnknownWatch names some watches instead of one that does not exist.
func (s *server) writeUnknownWatch(w http.ResponseWriter, r *http.Request, target string) {
	ctx, cancel := context.WithTimeout(r.Context(), queryTimeout)
	defer cancel()
	targets, err := schema.WatchTargets(ctx, s.db, namedTargets+1)
	if err != nil {
		s.writeUnavailable(w, r)
		return
	}
	expected := "send none: there are no watches"
	if len(targets) > 0 {
		expected = "send the target of a watch: "
		for i, each := range targets[:min(len(targets), namedTargets)] {
			if i > 0 {
				expected += ", "
			}
			expected += plain(each, maxURL)
		}
	}
	if len(targets) > namedTargets {
		expected += " or another one"
	}
	s.writeError(w, r, http.StatusBadRequest, fmt.Sprintf("watch is %q: %s", shorten(target, 40), expected))
}
