package link

import (
	"slices"
	"strings"
)

// most is how many rules may be applied one after another.
const most = 4

// spell applies the rules of spelling for the address's site.
func (a *address) spell() {
	if a.port != "" {
		return // a private server
	}
	for range most {
		to := rewritten(a.rules().host, bare(a.host), "", nil)
		if to == "" || to == a.host {
			break
		}
		a.host = to
	}
	if a.rules().https {
		a.scheme = "https"
	}
	a.open()
	a.dropParameters()
}

// rewritten returns the host that the rules give a host with a path, or "".
func rewritten(rules []rewrite, host, path string, query []parameter) string {
	for i := range rules {
		var found captures
		if r := &rules[i]; r.matches(host, path, query, &found) && (!r.dated || isArticle(path)) {
			if to := fill(r.form.host, &found); to != host {
				return to
			}
		}
	}
	return ""
}

// open gives an address the form that its site opens, such as that of a video. Nothing else identifies
// the page.
func (a *address) open() {
	rules := a.rules().open
	if len(rules) == 0 {
		return
	}
	var found captures
	r := firstMatch(rules, bare(a.host), strings.TrimRight(a.path, "/"), a.query, &found)
	if r == nil {
		return
	}
	for i := range found {
		before, _, _ := strings.Cut(found[i], "?") // parameters that were added with a second "?"
		if before = withoutInvisible(before); before != "" {
			found[i] = before
		}
	}
	a.opened, a.host, a.path = r, fill(r.form.host, &found), fill(r.form.path, &found)
	if len(r.form.query) > 0 {
		first := newParameter(fill(r.form.query, &found))
		a.query = slices.DeleteFunc(a.query, func(p parameter) bool { return p.name == first.name })
		a.query = slices.Insert(a.query, 0, first)
	}
}

// firstMatch returns the first rule that matches an address, and what it captures, or nil.
func firstMatch(rules []rewrite, host, path string, query []parameter, found *captures) *rewrite {
	for i := range rules {
		if r := &rules[i]; r.mayMatch(path) && r.matches(host, path, query, found) {
			return r
		}
	}
	return nil
}

// dropParameters removes the parameters that never identify a page.
func (a *address) dropParameters() {
	if len(a.query) == 0 {
		return
	}
	s := a.rules()
	for i := range everywhere.with {
		if i == 0 && !everywhere.firsts.in(a.query) {
			break
		}
		if c := &everywhere.with[i]; c.first.in(a.query) {
			a.query = slices.DeleteFunc(a.query, func(p parameter) bool { return c.first.has(&p) || c.others.has(&p) })
		}
	}
	for _, g := range [...]*gift{&s.gift, &everywhere.gift} {
		if given := g.in(a.query); given != nil && a.gift == nil {
			a.gift = given
		}
	}
	a.query = slices.DeleteFunc(a.query, func(p parameter) bool {
		return s.drop.has(&p) || s.gift.has(&p) || everywhere.gift.has(&p)
	})
}

// isExcluded reports whether links to an address do not count as shares.
func (a *address) isExcluded() bool {
	if a.port != "" {
		return false
	}
	return a.isOneOf(a.rules().none)
}

func (a *address) isOneOf(patterns []pattern) bool {
	if len(patterns) == 0 {
		return false
	}
	host, path := bare(a.host), strings.TrimRight(a.path, "/")
	return slices.ContainsFunc(patterns, func(p pattern) bool { return p.matches(host, path, a.query, new(captures)) })
}
