package links

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/weir-social/weir/internal/ranking"
)

// Pages describes the addresses of one kind of page: the parameters in order, and the
// defaults of the window, the minimum of sharers and the number of links.
type Pages struct {
	Parameters []string
	Window     string
	AtLeast    int
	Limit      int
}

// rankingPages describes the pages of the ranking, linkPages those of links.
func rankingPages() Pages {
	names := ranking.ParameterNames()
	return Pages{slices.Insert(names, len(names)-1, "density"), ranking.DefaultWindow, 1, DefaultLimit}
}

func linkPages() Pages {
	return Pages{[]string{"window", "watch", "degree", "cursor"}, linkWindow, 1, DefaultLimit}
}

// value returns the text of a parameter; empty if the view has the default.
func (p Pages) value(v View, name string) string {
	switch {
	case name == "window" && v.Name == p.Window:
		return ""
	case name == "window":
		return v.Name
	case name == "density":
		return string(v.density)
	case name == "at_least" && max(v.Query.AtLeast, 1) == p.AtLeast:
		return ""
	case name == "at_least":
		return strconv.Itoa(max(v.Query.AtLeast, 1))
	}
	return v.Query.Parameter(name, p.Limit)
}

// readable keeps characters that need no escape in a query.
var readable = strings.NewReplacer("%2C", ",", "%3A", ":", "%40", "@", "%2F", "/")

// Address returns the address of a view: parameters in a fixed order, without defaults.
func (p Pages) Address(path string, v View) string {
	separator := byte('?')
	address := []byte(path)
	for _, name := range p.Parameters {
		if value := p.value(v, name); value != "" {
			address = append(append(append(address, separator), name+"="...), readable.Replace(url.QueryEscape(value))...)
			separator = '&'
		}
	}
	return string(address)
}

// RankingHref returns the address of a view of the ranking.
func RankingHref(v View) string { return rankingPages().Address("/", v) }

// LinkHref returns the address of the page of a link, with the window, the watch and the
// degree of the view that links to it.
func LinkHref(id int64, v View) string {
	return linkPages().Address("/links/"+strconv.FormatInt(id, 10), v.of(ranking.Query{}))
}

// of returns a view with other filters and the same window, watch and degree.
func (v View) of(q ranking.Query) View {
	q.Window, q.Watch, q.Degree, q.Sort, q.Limit = v.Query.Window, v.Query.Watch, v.Query.Degree, ranking.Sharers, DefaultLimit
	v.Query = q
	return v
}

// with returns the first page of a view after a change.
func (v View) with(change func(*View)) View {
	v.Query.After = ""
	change(&v)
	return v
}

// hiddenField is a parameter that a form keeps.
type hiddenField struct{ Name, Value string }

// kept returns the parameters of a view that a form keeps. The form itself has fields
// for others.
func kept(v View, fields ...string) (all []hiddenField) {
	p := rankingPages()
	for _, name := range p.Parameters {
		if value := p.value(v, name); value != "" && name != "cursor" && !slices.Contains(fields, name) {
			all = append(all, hiddenField{name, value})
		}
	}
	return all
}
