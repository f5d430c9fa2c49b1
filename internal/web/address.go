package web

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/ranking"
)

// pages describes the addresses of one kind of page: the parameters in order, and the
// defaults of the window, the minimum of sharers and the number of links.
type pages struct {
	names    []string
	standard string
	least    int
	limit    int
}

// rankingPages describes the pages of the ranking, linkPages those of links.
func rankingPages() pages {
	names := ranking.Parameters()
	return pages{slices.Insert(names, len(names)-1, "density"), ranking.DefaultWindow, 1, defaultLimit}
}

func linkPages() pages {
	return pages{[]string{"window", "watch", "degree", "cursor"}, linkWindow, 1, defaultLimit}
}

// value returns the text of a parameter; empty if the view has the default.
func (p pages) value(v view, name string) string {
	switch {
	case name == "window" && v.Name == p.standard:
		return ""
	case name == "window":
		return v.Name
	case name == "density" && v.compact:
		return "compact"
	case name == "at_least" && max(v.query.AtLeast, 1) == p.least:
		return ""
	case name == "at_least":
		return strconv.Itoa(max(v.query.AtLeast, 1))
	}
	return v.query.Parameter(name, p.limit)
}

// readable keeps characters that need no escape in a query.
var readable = strings.NewReplacer("%2C", ",", "%3A", ":", "%40", "@", "%2F", "/")

// address returns the address of a view: parameters in a fixed order, without defaults.
func (p pages) address(path string, v view) string {
	separator := byte('?')
	address := []byte(path)
	for _, name := range p.names {
		if value := p.value(v, name); value != "" {
			address = append(append(append(address, separator), name+"="...), readable.Replace(url.QueryEscape(value))...)
			separator = '&'
		}
	}
	return string(address)
}

// rankingHref returns the address of a view of the ranking.
func rankingHref(v view) string { return rankingPages().address("/", v) }

// linkHref returns the address of the page of a link, with the window, the watch and the
// degree of the view that links to it.
func linkHref(id int64, v view) string {
	return linkPages().address("/links/"+strconv.FormatInt(id, 10), v.of(ranking.Query{}))
}

// of returns a view with other filters and the same window, watch and degree.
func (v view) of(q ranking.Query) view {
	q.Window, q.Watch, q.Degree, q.Sort, q.Limit = v.query.Window, v.query.Watch, v.query.Degree, ranking.Sharers, defaultLimit
	v.query = q
	return v
}

// with returns the first page of a view after a change.
func (v view) with(change func(*view)) view {
	v.query.After = ""
	change(&v)
	return v
}

// redirected redirects a client to the canonical address of a view, unless the client
// requested that. Forms send empty parameters.
func redirected(w http.ResponseWriter, r *http.Request, address string) bool {
	if r.URL.RequestURI() == address {
		return false
	}
	w.Header().Set("Cache-Control", "no-cache")
	http.Redirect(w, r, address, http.StatusFound)
	return true
}

// hiddenField is a parameter that a form keeps.
type hiddenField struct{ Name, Value string }

// kept returns the parameters of a view that a form keeps. The form itself has fields
// for others.
func kept(v view, fields ...string) (all []hiddenField) {
	p := rankingPages()
	for _, name := range p.names {
		if value := p.value(v, name); value != "" && name != "cursor" && !slices.Contains(fields, name) {
			all = append(all, hiddenField{name, value})
		}
	}
	return all
}
