package link

import "strings"

// parameter is one part of a query.
type parameter struct {
	name string // in lower case
	text string // as written: "name=value" or "name"
}

// parameters returns the parameters of a query without tracking parameters, in order.
func parameters(query string) []parameter {
	var all []parameter
	for text := range strings.SplitSeq(query, "&") {
		if text == "" {
			continue
		}
		text = withoutTail(withoutInvisible(escape(text)))
		for bare, ok := strings.CutPrefix(text, "amp;"); ok && bare != ""; bare, ok = strings.CutPrefix(text, "amp;") {
			text = bare // pages with broken escaping write "&amp;" for "&"
		}
		p := newParameter(text)
		if p.text != "" && !isTracking(p) {
			all = append(all, p)
		}
	}
	return all
}

// withoutTail returns a parameter without tracking parameters that a program has added with a second "?".
func withoutTail(text string) string {
	if before, tail, ok := strings.Cut(text, "?"); ok && strings.Contains(tail, "=") && isTracking(newParameter(tail)) {
		return withoutInvisible(before)
	}
	return text
}

func newParameter(text string) parameter {
	name, _, _ := strings.Cut(text, "=")
	return parameter{name: strings.ToLower(name), text: text}
}

func (p parameter) value() string {
	_, value, _ := strings.Cut(p.text, "=")
	return value
}

// isTracking reports whether a parameter only records where the reader came from, on any site.
func isTracking(p parameter) bool { return everywhere.drop.has(&p) }
