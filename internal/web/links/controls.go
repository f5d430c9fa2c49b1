package links

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/weir-social/weir/internal/ranking"
	"github.com/weir-social/weir/internal/web"
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
	Feeds     []web.Alternate
	filters
}

// filters are the texts that the forms show.
type filters struct{ Text, Domain, By string }

// formFields are the parameters that the filters' form sets.
func formFields() []string { return []string{"watch", "at_least", "domain", "by"} }

func (s *Server) newControls(v View, watches []choice, networks []ranking.Network) controls {
	q := v.Query
	c := controls{Watches: watches, Kept: kept(v, formFields()...), Searching: kept(v, "text"), filters: filters{q.Text, q.Site, q.By}}
	for _, w := range windows() {
		c.Windows = append(c.Windows, choice{Name: w.Name, Title: say("window_link", w.Words), Current: w == v.window,
			Href: RankingHref(v.with(func(v *View) { v.window = w }))})
	}
	c.Sorts = choices(v, func(v *View) *ranking.Sort { return &v.Query.Sort }, "sort_", ranking.Sharers, ranking.Speed, ranking.Newest)
	if q.Watch != "" {
		c.Degrees = choices(v, func(v *View) *ranking.Degree { return &v.Query.Degree }, "degree_", ranking.BothDegrees,
			ranking.FirstDegree, ranking.SecondDegree)
	}
	if len(networks) > 1 || q.Network != ranking.BothNetworks {
		c.Networks = choices(v, func(v *View) *ranking.Network { return &v.Query.Network }, "network_", ranking.BothNetworks,
			ranking.Bluesky, ranking.Nostr)
	}
	c.Densities = choices(v, func(v *View) *density { return &v.density }, "density_", full, compact)
	c.Ways = wayChoices(v)
	c.AtLeasts = atLeastChoices(q.AtLeast)
	c.Active = s.activeFilters(v)
	if q.By != "" {
		by := s.NewPerson(q.By)
		c.Profile, c.OnNetwork = by.Profile, by.On
	}
	return c
}

// choices returns links that set a part of a view. The texts of their names begin with a prefix.
func choices[T ~string](v View, part func(*View) *T, prefix string, values ...T) (all []choice) {
	for _, value := range values {
		all = append(all, choice{
			Name: say(prefix + string(value)), Current: *part(&v) == value,
			Href: RankingHref(v.with(func(v *View) { *part(v) = value })),
		})
	}
	return all
}

// wayChoices returns links that add or remove a way that counts. The last way
// cannot be removed.
func wayChoices(v View) (all []choice) {
	counted := countedWays(v.Query)
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
			c.Href = RankingHref(v.with(func(v *View) { v.Query.Ways = other }))
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
func (s *Server) activeFilters(v View) (all []choice) {
	q := v.Query
	add := func(name string, without func(*View)) {
		all = append(all, choice{Name: name, Title: say("remove_filter", name), Href: RankingHref(v.with(without))})
	}
	if q.Text != "" {
		add(say("active_text", web.PlainLine(q.Text, web.MaxSite)), func(v *View) { v.Query.Text = "" })
	}
	if q.Site != "" {
		add(say("active_domain", web.PlainLine(q.Site, web.MaxSite)), func(v *View) { v.Query.Site = "" })
	}
	if q.By != "" {
		add(say("active_by", s.NewPerson(q.By).Name), func(v *View) { v.Query.By = "" })
	}
	if q.AtLeast > 1 {
		add(say("active_at_least", q.AtLeast), func(v *View) { v.Query.AtLeast = 1 })
	}
	if ways := countedWays(q); len(ways) < len(ranking.Ways()) {
		var names []string
		for _, way := range ranking.Ways() {
			if slices.Contains(ways, way) {
				names = append(names, strings.ToLower(say("way_"+way)))
			}
		}
		add(say("active_ways", strings.Join(names, ", ")), func(v *View) { v.Query.Ways = nil })
	}
	if q.Network != ranking.BothNetworks {
		add(say("active_network", say("network_"+string(q.Network))), func(v *View) { v.Query.Network = ranking.BothNetworks })
	}
	if q.Degree != ranking.BothDegrees {
		add(say("active_degree_"+string(q.Degree)), func(v *View) { v.Query.Degree = ranking.BothDegrees })
	}
	return all
}

// Filters returns the names of the filters of a view.
func (s *Server) Filters(v View) (names []string) {
	for _, filter := range s.activeFilters(v) {
		names = append(names, filter.Name)
	}
	return names
}

// unfiltered returns a view without its filters.
func unfiltered(v View) View {
	return v.with(func(v *View) {
		q := v.Query
		v.Query = ranking.Query{Window: q.Window, Sort: q.Sort, Watch: q.Watch, Limit: q.Limit}
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
		all = append(all, choice{Value: target, Name: web.TargetName(target), Current: target == current})
	}
	return all, nil
}
