package links

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
	"github.com/weir-social/weir/schema"
)

// View is a request for a ranking.
type View struct {
	window
	Query   ranking.Query
	density density
}

// density is how many lines of a page a link takes.
type density string

const (
	full    density = ""
	compact density = "compact" // one line
)

// Key is the same for two requests for the same page.
func (v View) Key() string {
	return fmt.Sprintf("%s %d %s", v.Query.View(), v.Query.Limit, v.Query.After)
}

// parseView reads the named parameters. A misspelt parameter is an error, because the
// response would silently ignore it.
func parseView(raw, example string, names []string, standard string) (View, error) {
	values, err := web.ParseParameters(raw, names, example)
	if err != nil {
		return View{}, err
	}
	return NewView(values, standard)
}

// NewView reads a view from its parameters. standard is the default window.
func NewView(values url.Values, standard string) (v View, err error) {
	if !values.Has("window") {
		values.Set("window", standard)
	}
	v.Query, err = ranking.ParseQuery(func(name string) (string, bool) {
		return values.Get(name), values.Has(name)
	}, ranking.Limits{Default: DefaultLimit, Most: maxLimit})
	if wrong, ok := errors.AsType[*ranking.ParameterError](err); ok {
		return v, web.WrongValue(wrong.Name, wrong.Value, Expected(wrong))
	}
	for _, w := range windows() {
		if w.Length == v.Query.Window {
			v.window = w
		}
	}
	switch text := values.Get("density"); text {
	case "", "full":
	case string(compact):
		v.density = compact
	default:
		return v, web.WrongValue("density", text, say("expected_one_of", "full, compact"))
	}
	return v, err
}

// ViewAt returns the view that a page of the ranking shows. ok is false for any other page.
func ViewAt(address string) (v View, ok bool) {
	query, ok := strings.CutPrefix(address, "/")
	if !ok || query != "" && query[0] != '?' {
		return v, false
	}
	v, err := parseView(strings.TrimPrefix(query, "?"), "window=6h", rankingPages().Parameters, ranking.DefaultWindow)
	return v, err == nil
}

// namedTargets is how many targets of watches an error lists.
const namedTargets = 10

// WriteUnreadable reports why a view could not be read.
func (s *Server) WriteUnreadable(w http.ResponseWriter, r *http.Request, v View, err error) {
	switch {
	case errors.Is(err, ranking.ErrCursor):
		s.WriteError(w, r, http.StatusBadRequest, web.WrongValue("cursor", string(v.Query.After), say("expected_cursor")).Error())
	case errors.Is(err, ranking.ErrWatch):
		s.writeUnknownWatch(w, r, v.Query.Watch)
	default:
		s.WriteUnavailable(w, r)
	}
}

// writeUnknownWatch reports that a watch does not exist, and lists some that do.
func (s *Server) writeUnknownWatch(w http.ResponseWriter, r *http.Request, target string) {
	ctx, cancel := context.WithTimeout(r.Context(), web.QueryTimeout)
	defer cancel()
	targets, err := schema.WatchTargets(ctx, s.DB, namedTargets+1)
	if err != nil {
		s.WriteUnavailable(w, r)
		return
	}
	var named []string
	for _, each := range targets[:min(len(targets), namedTargets)] {
		named = append(named, web.PlainLine(each, web.MaxURL))
	}
	expected := say("expected_one_target", strings.Join(named, ", "))
	switch {
	case len(targets) == 0:
		expected = say("expected_no_watch")
	case len(targets) > namedTargets:
		expected = say("expected_some_target", strings.Join(named, ", "))
	}
	s.WriteError(w, r, http.StatusBadRequest, web.WrongValue("watch", target, expected).Error())
}

// Expected describes the valid values of a parameter, such as "a whole number from 1 to
// 200".
func Expected(wrong *ranking.ParameterError) string {
	switch wrong.Expected {
	case ranking.OneOf:
		return say("expected_one_of", strings.Join(wrong.Values, ", "))
	case ranking.SomeOf:
		return say("expected_some_of", strings.Join(wrong.Values, ","))
	}
	values := make([]any, len(wrong.Values))
	for i := range wrong.Values {
		values[i] = wrong.Values[i]
	}
	return say("expected_"+string(wrong.Expected), values...)
}
