package link

import "slices"

// gift lists the parameters that open an article of a site for readers who have not
// paid. Each giver has another code for the same page, so they are not part of a link.
type gift struct {
	codes []string // one of them opens the article
	with  []string // these are kept together with a code
}

// giftOf returns the gift parameters of a domain's site.
func giftOf(domain string) gift {
	switch domain {
	case "nytimes.com":
		return gift{codes: []string{"unlocked_article_code"}}
	case "theatlantic.com":
		return gift{codes: []string{"gift"}}
	case "washingtonpost.com":
		return gift{codes: []string{"pwapi_token"}}
	case "wsj.com", "barrons.com", "marketwatch.com":
		return gift{codes: []string{"st"}, with: []string{"reflink"}}
	case "bloomberg.com":
		return gift{codes: []string{"accesstoken"}}
	case "ft.com":
		return gift{codes: []string{"accesstoken", "token"}, with: []string{"sharetype"}}
	case "economist.com", "spiegel.de":
		return gift{codes: []string{"giftid"}}
	case "zeit.de":
		return gift{codes: []string{"freebie"}}
	case "medium.com":
		return gift{codes: []string{"sk"}}
	}
	return gift{}
}

func (g gift) has(name string) bool {
	return slices.Contains(g.codes, name) || slices.Contains(g.with, name)
}

// in returns the gift parameters of a URL, each once; nil: there are none.
func (g gift) in(query []parameter) (found []parameter) {
	given := false
	for _, p := range query {
		if !g.has(p.name) || p.value() == "" || slices.ContainsFunc(found, func(f parameter) bool { return f.name == p.name }) {
			continue
		}
		found = append(found, p)
		given = given || slices.Contains(g.codes, p.name)
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
