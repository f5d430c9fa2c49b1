package link

import (
	_ "embed"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// sitesText has the rules for individual sites, and those for parameters on all sites.
//
//go:embed sites.txt
var sitesText string

// rulesOf are the rules by the name of their site: a host without "www.", a domain with all its
// subdomains, or a first label with ".*" for its domain in every country. The name "*" has the
// rules for all sites.
var rulesOf, everywhere = func() (map[string]*siteRules, *siteRules) {
	all, err := parseSites(sitesText)
	if err != nil {
		panic(err)
	}
	return all, all["*"]
}()

// siteRules has the rules of a site.
type siteRules struct {
	https  bool // it serves its pages over https only
	lower  int  // in how many segments of a path the case does not matter
	spaces bool // a space in a path is an underscore
	routes bool // a route in the fragment of the site's root is a path
	drop   params
	skip   params
	mark   params // in a fragment, which then says only where the reader came from
	with   []companions
	firsts params // those of all companions
	gift   gift
	host   []rewrite // of the spelling
	same   []rewrite // of the identity
	open   []rewrite // of the spelling
	page   []rewrite // of the identity
	to     []pattern
	copies []pattern
	none   []pattern
	short  []pattern
}

// rewrite gives addresses that match a pattern another form.
type rewrite struct {
	pattern
	form
	dated bool   // only for the pages of articles
	keep  params // of the query; without any, only those of the form stay
	all   bool   // the whole query and the fragment stay
}

// params are names of parameters. Some count only with certain values.
type params struct {
	values   map[string][]string // nil: with any value; otherwise patterns in lower case, see path.Match, or {site}: a host
	prefixes []string
}

// companions are parameters that only mean something beside another one.
type companions struct{ first, others params }

func (p *params) add(text string) {
	name, values, valued := strings.Cut(text, "=")
	prefix, isPrefix := strings.CutSuffix(name, "*")
	switch {
	case isPrefix:
		p.prefixes = append(p.prefixes, prefix)
		return
	case p.values == nil:
		p.values = map[string][]string{}
	}
	before, named := p.values[name]
	switch {
	case !valued:
		p.values[name] = nil
	case !named || before != nil:
		p.values[name] = append(before, strings.Split(values, "|")...)
	}
}

// has reports whether a parameter is one of p.
func (p *params) has(q *parameter) bool {
	values, ok := p.values[q.name]
	if !ok {
		for _, prefix := range p.prefixes {
			if strings.HasPrefix(q.name, prefix) {
				return true
			}
		}
		return false
	}
	if values == nil {
		return true
	}
	given := strings.ToLower(delimiters.Replace(q.value()))
	return slices.ContainsFunc(values, func(value string) bool {
		if value == "{site}" {
			host := strings.TrimSuffix(strings.ReplaceAll(given, "%2f", "/"), "/")
			_, after, absolute := strings.Cut(host, "://")
			if absolute {
				host = after
			}
			_, suffix, err := normalHost(host)
			return err == nil && (absolute || !slices.Contains(files, suffix))
		}
		ok, err := path.Match(value, given)
		return ok && err == nil
	})
}

// files are the top-level domains that are also common names of files: README.md.
var files = []string{"md", "mov", "py", "sh", "zip"}

func (p *params) in(query []parameter) bool {
	for i := range query {
		if p.has(&query[i]) {
			return true
		}
	}
	return false
}

// rules returns the rules of the address's site, without those for all sites.
func (a *address) rules() *siteRules {
	if host := bare(a.host); a.site == nil || a.named != host {
		a.site, a.named = siteOf(host), host
	}
	return a.site
}

// siteOf returns the rules of the site of a host without "www.", without those for all sites. A site
// without rules has the zero value.
func siteOf(host string) *siteRules {
	for name := host; ; {
		if s := rulesOf[name]; s != nil {
			return s
		}
		dot := strings.IndexByte(name, '.')
		if dot < 0 || strings.IndexByte(name[dot+1:], '.') < 0 {
			break
		}
		name = name[dot+1:]
	}
	domain := domainOf(host)
	for i := range brands {
		if b := &brands[i]; strings.HasPrefix(domain, b.first) {
			return b.siteRules
		}
	}
	return &noRules
}

var noRules siteRules

// brands are the sites with a domain in every country.
var brands = func() (all []brand) {
	for name, s := range rulesOf {
		if first, ok := strings.CutSuffix(name, "*"); ok && first != "" {
			all = append(all, brand{first, s})
		}
	}
	return all
}()

type brand struct {
	first string // label, with its full stop
	*siteRules
}

// parseSites reads rules.
func parseSites(text string) (map[string]*siteRules, error) {
	all := map[string]*siteRules{}
	var names []string
	number := 0
	for line := range strings.Lines(text) {
		number++
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.ContainsAny(words[0][:1], "#+-"): // a comment, or a pair for tests
			continue
		case words[0] == "site":
			names = words[1:]
			for _, name := range names {
				if all[name] == nil {
					all[name] = &siteRules{}
				}
			}
			continue
		}
		for _, name := range names {
			if err := all[name].add(name, names, words[0], words[1:]); err != nil {
				return nil, fmt.Errorf("line %d of the sites: %w", number, err)
			}
		}
	}
	return all, nil
}

// add adds the rule of a line to the site with a name, one of the names of its block.
func (s *siteRules) add(name string, names []string, verb string, words []string) (err error) {
	switch verb {
	case "https":
		s.https = true
	case "lower":
		s.lower = math.MaxInt
		if len(words) > 0 {
			s.lower, err = strconv.Atoi(words[0])
		}
	case "spaces":
		s.spaces = true
	case "routes":
		s.routes = true
	case "drop", "skip", "mark":
		set := map[string]*params{"drop": &s.drop, "skip": &s.skip, "mark": &s.mark}[verb]
		for _, word := range words {
			set.add(word)
		}
	case "with":
		s.with = append(s.with, parseCompanions(words))
		for _, word := range words[:slices.Index(words, ":")] {
			name, _, _ := strings.Cut(word, "=")
			s.firsts.add(name)
		}
	case "gift":
		s.gift.add(words)
	case "host", "same", "open", "page":
		list := map[string]*[]rewrite{"host": &s.host, "same": &s.same, "open": &s.open, "page": &s.page}[verb]
		var added []rewrite
		if verb == "host" || verb == "same" {
			added, err = parseHosts(name, words)
		} else {
			added, err = parseRewrites(names, words)
		}
		*list = append(*list, added...)
	case "to", "copy", "none", "short":
		list := map[string]*[]pattern{"to": &s.to, "copy": &s.copies, "none": &s.none, "short": &s.short}[verb]
		for _, word := range words {
			p, err := parsePattern(word, &named{"url"})
			if err != nil {
				return err
			}
			p.names = names
			*list = append(*list, p)
		}
	default:
		err = fmt.Errorf("unknown rule %q", verb)
	}
	return err
}

// parseCompanions reads FIRST… : OTHER….
func parseCompanions(words []string) (c companions) {
	set := &c.first
	for _, word := range words {
		if word == ":" {
			set = &c.others
			continue
		}
		set.add(word)
	}
	return c
}

// parseHosts reads HOST… [= HOST] [dated] [PATTERN…]. A host that ends in a full stop is put before
// the name of the site.
func parseHosts(name string, words []string) (all []rewrite, err error) {
	hosts, to, only := words, name, []string{"/**"}
	if at := slices.Index(words, "="); at >= 0 {
		hosts, to, only = words[:at], words[at+1], words[at+2:]
	}
	dated := len(only) > 0 && only[0] == "dated"
	if dated || len(only) == 0 {
		only = []string{"/**"}
	}
	for _, host := range hosts {
		if strings.HasSuffix(host, ".") {
			host += name
		}
		for _, within := range only {
			captured := named{}
			r := rewrite{dated: dated, all: true}
			if r.pattern, err = parsePattern("//"+host+within, &captured); err == nil {
				r.form, err = parseForm("//"+to, captured)
			}
			if err != nil {
				return nil, err
			}
			all = append(all, r)
		}
	}
	return all, nil
}

// parseRewrites reads PATTERN… [alone] = FORM [keep PARAM…].
func parseRewrites(on, words []string) (all []rewrite, err error) {
	at := slices.Index(words, "=")
	if at < 0 || at == len(words)-1 {
		return nil, fmt.Errorf("no form in %q", words)
	}
	patterns, to, kept := words[:at], words[at+1], words[at+2:]
	alone := patterns[len(patterns)-1] == "alone"
	if alone {
		patterns = patterns[:len(patterns)-1]
	}
	for _, text := range patterns {
		captured := named{}
		var r rewrite
		if r.pattern, err = parsePattern(text, &captured); err == nil {
			r.form, err = parseForm(to, captured)
		}
		if err != nil {
			return nil, err
		}
		r.names, r.alone = on, alone
		for i, name := range kept {
			if i > 0 {
				r.keep.add(name)
			}
		}
		r.all = slices.Contains(kept, "*")
		all = append(all, r)
	}
	return all, nil
}
