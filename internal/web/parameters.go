package web

import (
	"errors"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// ParseParameters reads a query that may have the named parameters, each at most once.
func ParseParameters(raw string, names []string, example string) (url.Values, error) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return nil, errors.New(say("error_query", example))
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if !slices.Contains(names, name) {
			return nil, errors.New(say("error_parameter", Quoted(name), strings.Join(names, ", ")))
		}
		if n := len(values[name]); n > 1 {
			return nil, errors.New(say("error_repeated", name, n))
		}
	}
	return values, nil
}

// WrongValue reports that a parameter has an invalid value.
func WrongValue(name, value, expected string) error {
	return errors.New(say("error_value", name, Quoted(value), expected))
}

// Quoted returns a stranger's text on one line, in quotation marks.
func Quoted(text string) string { return strconv.Quote(Shorten(text, 40)) }

// Redirected redirects a client to the canonical address of a view, unless the client
// requested that. Forms send empty parameters.
func Redirected(w http.ResponseWriter, r *http.Request, address string) bool {
	if r.URL.RequestURI() == address {
		return false
	}
	w.Header().Set("Cache-Control", "no-cache")
	http.Redirect(w, r, address, http.StatusFound)
	return true
}
