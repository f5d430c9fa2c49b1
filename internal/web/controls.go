package web

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/schema"
)

// choice is a link to another view, or an option of a form.
type choice struct {
	Value, Name string
	Title       string
	Href        string
	Current     bool
}

// controls are the links and forms that lead from a view to others.
type controls struct {
	Windows   []choice
	Sorts     []choice
	Ways      []choice
	Networks  []choice // none: there is no choice
	Degrees   []choice // none: no watch is selected
	Densities []choice
	Watches   []choice // none: there is no choice
	AtLeasts  []choice
	Active    []choice      // active filters, each with the address without it
	Profile   string        // of the account whose links are shown
	OnNetwork string        // the network of Profile
	Kept      []hiddenField // hidden fields of the filters' form
	Searching []hiddenField // hidden fields of the search form
	Feeds     []feedLink
	Text      string
	Domain    string
	By        string
}

// formFields are the parameters that the filters' form sets.
func formFields() []string { return []string{"watch", "at_least", "domain", "by"} }

func newControls(v view, watches []choice, networks []ranking.Network) controls {
	q := v.query
	c := controls{Watches: watches, Networks: networkChoices(v, networks), Kept: kept(v, formFields()...), Searching: kept(v, "text"), Feeds: feedLinks(v), Text: q.Text, Domain: q.Site, By: q.By}
	for _, w := range windows() {
		c.Windows = append(c.Windows, choice{Name: w.Name, Title: say("window_link", w.Words), Current: w == v.window,
			Href: rankingHref(v.with(func(v *view) { v.window = w }))})
	}
	for _, sort := range []ranking.Sort{ranking.Sharers, ranking.Speed, ranking.Newest} {
		c.Sorts = append(c.Sorts, choice{Name: say("sort_" + string(sort)), Current: sort == q.Sort, Href: rankingHref(v.with(func(v *view) { v.query.Sort = sort }))})
	}
	if q.Watch != "" {
		for _, degree := range []ranking.Degree{ranking.BothDegrees, ranking.FirstDegree, ranking.SecondDegree} {
			name := say("degree_" + string(degree))
			if degree == ranking.BothDegrees {
				name = say("degree_both")
			}
			c.Degrees = append(c.Degrees, choice{Name: name, Current: degree == q.Degree, Href: rankingHref(v.with(func(v *view) { v.query.Degree = degree }))})
		}
	}
	for _, compact := range []bool{false, true} {
		name := say("density_full")
		if compact {
			name = say("density_compact")
		}
		c.Densities = append(c.Densities, choice{Name: name, Current: compact == v.compact, Href: rankingHref(v.with(func(v *view) { v.compact = compact }))})
	}
	c.Ways = wayChoices(v)
	c.AtLeasts = atLeastChoices(q.AtLeast)
	c.Active = activeFilters(v)
	if q.By != "" {
		by := NewPerson(q.By)
		c.Profile, c.OnNetwork = by.Profile, say("profile")
		if by.Network != "" {
			c.OnNetwork = say("profile_nostr")
		}
	}
	return c
}

// networkChoices returns links that choose the network; none if all accounts are of
// one network.
func networkChoices(v view, networks []ranking.Network) (all []choice) {
	if len(networks) < 2 && v.query.Network == ranking.BothNetworks {
		return nil
	}
	for _, network := range []ranking.Network{ranking.BothNetworks, ranking.Bluesky, ranking.Nostr} {
		name := say("network_" + string(network))
		if network == ranking.BothNetworks {
			name = say("network_both")
		}
		all = append(all, choice{Name: name, Current: network == v.query.Network, Href: rankingHref(v.with(func(v *view) { v.query.Network = network }))})
	}
	return all
}

// wayChoices returns links that add or remove a way that counts. The last way
// cannot be removed.
func wayChoices(v view) (all []choice) {
	counted := countedWays(v.query)
	for _, way := range ranking.Ways() {
		c := choice{Name: say("way_" + way), Current: slices.Contains(counted, way), Title: say("way_add")}
		if c.Current {
			c.Title = say("way_remove")
		}
		other := slices.DeleteFunc(slices.Clone(counted), func(w string) bool { return w == way })
		if !c.Current {
			other = append(other, way)
		}
		if len(other) > 0 {
			c.Href = rankingHref(v.with(func(v *view) { v.query.Ways = other }))
		}
		all = append(all, c)
	}
	return all
}

// countedWays returns the ways that count in a ranking.
func countedWays(q ranking.Query) []string {
	if len(q.Ways) == 0 {
		return ranking.Ways()
	}
	return q.Ways
}

// atLeastChoices returns some numbers of sharers, including the current one.
func atLeastChoices(current int) (all []choice) {
	current = max(current, 1)
	numbers := []int{1, 2, 3, 5, 10, 25, 100}
	if !slices.Contains(numbers, current) {
		numbers = append(numbers, current)
		slices.Sort(numbers)
	}
	for _, n := range numbers {
		all = append(all, choice{Value: fmt.Sprint(n), Name: say("at_least", n), Current: n == current})
	}
	return all
}

// activeFilters returns the filters of a view. Each links to the view without it.
func activeFilters(v view) (all []choice) {
	q := v.query
	add := func(name string, without func(*view)) {
		all = append(all, choice{Name: name, Title: say("remove_filter", name), Href: rankingHref(v.with(without))})
	}
	if q.Text != "" {
		add(say("active_text", PlainLine(q.Text, maxSite)), func(v *view) { v.query.Text = "" })
	}
	if q.Site != "" {
		add(say("active_domain", PlainLine(q.Site, maxSite)), func(v *view) { v.query.Site = "" })
	}
	if q.By != "" {
		add(say("active_by", NewPerson(q.By).Name), func(v *view) { v.query.By = "" })
	}
	if q.AtLeast > 1 {
		add(say("active_at_least", q.AtLeast), func(v *view) { v.query.AtLeast = 1 })
	}
	if ways := countedWays(q); len(ways) < len(ranking.Ways()) {
		var names []string
		for _, way := range ranking.Ways() {
			if slices.Contains(ways, way) {
				names = append(names, strings.ToLower(say("way_"+way)))
			}
		}
		add(say("active_ways", strings.Join(names, ", ")), func(v *view) { v.query.Ways = nil })
	}
	if q.Network != ranking.BothNetworks {
		add(say("active_network", say("network_"+string(q.Network))), func(v *view) { v.query.Network = ranking.BothNetworks })
	}
	if q.Degree != ranking.BothDegrees {
		add(say("active_degree_"+string(q.Degree)), func(v *view) { v.query.Degree = ranking.BothDegrees })
	}
	return all
}

// unfiltered returns a view without its filters.
func unfiltered(v view) view {
	return v.with(func(v *view) {
		q := v.query
		v.query = ranking.Query{Window: q.Window, Sort: q.Sort, Watch: q.Watch, Limit: q.Limit}
	})
}

// maxChoices limits the watches to choose from. Others can be named in the address.
const maxChoices = 200

// watchChoices lists the watches to choose from; none if there is no choice.
func (s *Server) watchChoices(ctx context.Context, current string) ([]choice, error) {
	targets, err := schema.WatchTargets(ctx, s.DB, maxChoices)
	if err != nil {
		return nil, fmt.Errorf("read the watches to choose from: %w", err)
	}
	if len(targets) < 2 && current == "" {
		return nil, nil
	}
	all := []choice{{Name: say("watch_all"), Current: current == ""}}
	if current != "" && !slices.Contains(targets, current) {
		targets = append(targets, current)
	}
	for _, target := range targets {
		all = append(all, choice{Value: target, Name: targetName(target), Current: target == current})
	}
	return all, nil
}

// targetName returns the target of a watch as the page shows it.
func targetName(target string) string {
	if isDID(target) {
		return abbreviate(target)
	}
	return PlainLine(target, maxSite)
}
