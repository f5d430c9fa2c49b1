package link

import (
	"slices"
	"strings"
)

// isExcluded reports whether links to a host do not count as shares.
func isExcluded(host string) bool {
	switch domainOf(host) {
	case "tenor.com", "tenor.co", "giphy.com", "gph.is", "klipy.com", "gfycat.com", // animated pictures: posts embed them as links
		"bsky.app", "bsky.social", // the networks themselves: links to posts and profiles
		"njump.me", "primal.net", "snort.social", "coracle.social", "iris.to", "nostrudel.ninja", "jumble.social":
		return true
	}
	return false
}

// alias returns the canonical host of a site's alternative hosts, with or without
// "www.". Each host is listed, because an "m." has no fixed meaning.
func alias(host string) string {
	switch bare(host) {
	case "youtube.com", "m.youtube.com", "youtube-nocookie.com":
		return "www.youtube.com"
	case "youtu.be":
		return "youtu.be"
	case "twitter.com", "mobile.twitter.com", "m.twitter.com", "x.com", "mobile.x.com":
		return "x.com"
	case "facebook.com", "m.facebook.com", "mobile.facebook.com":
		return "www.facebook.com"
	case "instagram.com", "m.instagram.com":
		return "www.instagram.com"
	case "reddit.com", "m.reddit.com", "old.reddit.com", "new.reddit.com", "np.reddit.com":
		return "www.reddit.com"
	}
	if !strings.Contains(host, ".wik") {
		return host
	}
	for _, project := range [...]string{".wikipedia.org", ".wiktionary.org", ".wikiquote.org", ".wikisource.org", ".wikibooks.org", ".wikinews.org", ".wikivoyage.org", ".wikimedia.org"} {
		if language, ok := strings.CutSuffix(bare(host), project); ok {
			for strings.HasSuffix(language, ".m") { // the mobile edition
				language = strings.TrimSuffix(language, ".m")
			}
			return language + project
		}
	}
	return host
}

// httpsOnly reports whether a site serves its pages over https only.
func httpsOnly(domain string) bool {
	switch domain {
	case "youtube.com", "youtu.be", "x.com", "facebook.com", "instagram.com", "reddit.com", "wikipedia.org":
		return true
	}
	return false
}

// applyHostRules applies the rules for individual sites.
func (a *address) applyHostRules() {
	if a.port != "" {
		return // a private server
	}
	a.host = alias(a.host)
	if httpsOnly(domainOf(a.host)) {
		a.scheme = "https"
	}
	if id := a.video(); id != "" {
		a.host, a.path = "www.youtube.com", "/watch"
		a.query = slices.DeleteFunc(a.query, func(p parameter) bool { return p.name == "v" })
		a.query = slices.Insert(a.query, 0, newParameter("v="+id))
	}
	if len(a.query) > 0 {
		domain := domainOf(a.host)
		gift := giftOf(domain)
		a.gift = gift.in(a.query)
		a.query = slices.DeleteFunc(a.query, func(p parameter) bool { return isTrackingOn(domain, p.name) || gift.has(p.name) })
	}
}

// video returns the ID of the YouTube video that the URL leads to, or "".
func (a *address) video() string {
	id, path := "", strings.TrimRight(a.path[1:], "/")
	switch a.host {
	case "youtu.be":
		id = path
	case "www.youtube.com":
		kind, rest, _ := strings.Cut(path, "/")
		switch kind {
		case "watch":
			if at := slices.IndexFunc(a.query, func(p parameter) bool { return p.name == "v" }); at >= 0 && rest == "" {
				id = a.query[at].value()
			}
		case "shorts", "live", "embed", "v":
			id = rest
		}
	}
	if len(id) != 11 || id == "videoseries" || id == "live_stream" {
		return ""
	}
	for i := range len(id) {
		if c := id[i]; !hostCharacter(c) && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	return id
}
