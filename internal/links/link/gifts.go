package link

import "slices"

// gift has the parameters that open an article of a site for readers who have not paid. Each giver
// has another code for the same page, so they are not part of a link.
type gift struct {
	codes params // one of them opens the article
	with  params // these are kept together with a code
}

// add adds the words of a rule: CODE… [+ NAME…].
func (g *gift) add(words []string) {
	set := &g.codes
	for _, word := range words {
		if word == "+" {
			set = &g.with
			continue
		}
		set.add(word)
	}
}

func (g *gift) has(p *parameter) bool { return g.codes.has(p) || g.with.has(p) }

// in returns the gift parameters of a URL, each once; nil: there are none.
func (g *gift) in(query []parameter) (found []parameter) {
	given := false
	for i := range query {
		p := &query[i]
		if !g.has(p) || p.value() == "" || slices.ContainsFunc(found, func(f parameter) bool { return f.name == p.name }) {
			continue
		}
		found = append(found, *p)
		given = given || g.codes.has(p)
	}
	if !given {
		return nil
	}
	return found
}

// giftURL returns the URL of an address with its gift, if it has one and is https.
func (a *address) giftURL() string {
	if len(a.gift) == 0 || a.scheme != "https" {
		return ""
	}
	with := *a
	with.query = slices.Concat(a.query, a.gift)
	url, err := with.format()
	if err != nil { // the URL is too long
		return ""
	}
	return url
}
