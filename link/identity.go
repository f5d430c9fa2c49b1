package link

import "strings"

// identity returns the key that all spellings of one article share: the host without
// "www.", the path without a trailing slash, the query and the route. It also returns
// the host. url is the spelling of a; the parameters of a may change.
func (a *address) identity(url string) (key, host string) {
	b := a.unarchived()
	host = bare(b.host)
	path := strings.TrimRight(b.path, "/")
	if b.port == "" {
		path = withoutAMP(host, path)
		if other := edition(host, path); other != host {
			b.host, b.path = other, path+"/"
			b.applyHostRules() // the spelling had the rules of another host
			host, path = bare(b.host), strings.TrimRight(b.path, "/")
		}
		if id := b.video(); id != "" { // the same video in every list
			b.query = append(b.query[:0], newParameter("v="+id))
		}
	}
	// Most identities are a part of the spelling, which needs no extra memory.
	start := len(a.scheme) + len("://") + len(b.host) - len(host)
	end := start + len(host) + len(path)
	if b.port == "" && len(b.query) == 0 && b.fragment == "" && end <= len(url) &&
		url[start:start+len(host)] == host && url[start+len(host):end] == path {
		return url[start:end], host
	}
	var s strings.Builder
	s.Grow(len(url))
	b.host, b.path = host, path
	b.write(&s)
	return s.String(), host
}

// bare returns a host without "www.".
func bare(host string) string {
	for {
		rest, ok := strings.CutPrefix(host, "www.")
		if !ok || strings.IndexByte(rest, '.') < 0 { // the site www.com
			return host
		}
		host = rest
	}
}

// edition returns the main host of a site whose other hosts have the same paths. Each
// host is listed. For example, m.media-amazon.com is a separate site, and the mobile
// editions of many newspapers have other paths.
func edition(host, path string) string {
	first, site, _ := strings.Cut(host, ".")
	switch first {
	case "m":
		if hasMobileHost(site) {
			host = site
		}
	case "mobile":
		switch site {
		case "nytimes.com", "lemonde.fr", "abc.net.au":
			host = site
		}
	case "amp":
		if hasAMPHost(site) {
			host = site
		}
	}
	switch host {
	case "edition.cnn.com", "us.cnn.com", "lite.cnn.com": // their front pages differ
		if isArticle(path) {
			return "cnn.com"
		}
	case "bbc.co.uk": // the reader's country decides which of the two hosts remains
		if strings.HasPrefix(path, "/news/") || strings.HasPrefix(path, "/sport/") {
			return "bbc.com"
		}
	case "threads.net":
		return "threads.com"
	case "fxtwitter.com", "vxtwitter.com", "fixupx.com", "fixvx.com", "xcancel.com": // these show the same posts
		return "x.com"
	}
	return host
}

func hasMobileHost(site string) bool {
	switch site {
	case "imdb.com", "imgur.com", "xkcd.com", "soundcloud.com", "twitch.tv", "vk.com", "yelp.com", "wikihow.com", "bilibili.com",
		"fanfiction.net", "gsmarena.com", "phys.org", "dailykos.com", "wikidata.org", "mediawiki.org", "blog.naver.com",
		"bbc.co.uk", "bbc.com", "theguardian.com", "dw.com", "scmp.com", "jpost.com", "washingtontimes.com", "sfgate.com",
		"timesofindia.indiatimes.com", "economictimes.indiatimes.com",
		"spiegel.de", "faz.net", "focus.de", "heise.de", "tagesspiegel.de":
		return true
	}
	return false
}

func hasAMPHost(site string) bool {
	switch site {
	case "cnn.com", "theguardian.com", "ft.com", "economist.com", "axios.com", "businessinsider.com", "tmz.com", "reddit.com", "dw.com", "scmp.com",
		"france24.com", "rfi.fr", "smh.com.au", "theage.com.au", "hollywoodreporter.com",
		"miamiherald.com", "kansascity.com", "sacbee.com", "charlotteobserver.com", "newsobserver.com", "star-telegram.com",
		"fresnobee.com", "thestate.com", "idahostatesman.com", "kentucky.com":
		return true
	}
	return false
}

// withoutAMP returns the path of the article that an AMP page is an edition of. "amp"
// has other meanings, so either the site must be listed or the path must be an
// article's.
func withoutAMP(host, path string) string {
	if rest, ok := strings.CutPrefix(path, "/cnn/"); ok && host == "amp.cnn.com" {
		return "/" + rest
	}
	at := strings.LastIndex(path, "amp")
	if at < 0 {
		return path
	}
	before, after := path[:at-1], path[at+len("amp"):]
	switch separator := path[at-1]; {
	case separator == '/' && after == "": // /2026/07/story/amp
		before = strings.TrimRight(before, "/")
		if isArticle(before) || isUnder(host, "thehill.com") && strings.Count(before, "/") > 1 {
			return before
		}
	case separator == '.' && (after == "" || after == ".html"): // /2026/07/story.amp.html
		if isArticle(before) || after == "" && hasAMPSuffix(host) {
			return before + after
		}
	}
	for _, prefix := range [...]string{"/amp", "/platform/amp"} { // /amp/2026/07/story
		if rest, ok := strings.CutPrefix(path, prefix); ok && len(rest) > 1 && rest[0] == '/' &&
			(isArticle(rest) || prefix == "/amp" && (isUnder(host, "cbsnews.com") || isUnder(host, "abcnews.go.com"))) {
			return rest
		}
	}
	return path
}

// hasAMPSuffix reports whether a site appends ".amp" to the paths of its articles.
func hasAMPSuffix(host string) bool {
	switch host {
	case "bbc.com", "bbc.co.uk", "foxnews.com", "foxbusiness.com", "mirror.co.uk", "manchestereveningnews.co.uk", "liverpoolecho.co.uk",
		"walesonline.co.uk", "birminghammail.co.uk", "chroniclelive.co.uk", "dailyrecord.co.uk":
		return true
	}
	return false
}

// isArticle reports whether a path contains a year and a month, as the paths of
// articles do, and then a name.
func isArticle(path string) bool {
	year, dated, name := false, false, false
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case dated:
			name = segment != "" && !numeric(segment)
		case year && isNumber(segment, 1, 12):
			dated = true
		case len(segment) == len("2026-07-04") && segment[4] == '-' && segment[7] == '-':
			dated = isNumber(segment[:4], 1900, 2199) && isNumber(segment[5:7], 1, 12)
		default:
			year = len(segment) == 4 && isNumber(segment, 1900, 2199)
		}
	}
	return name
}

func isNumber(s string, least, most int) bool {
	if len(s) == 0 || len(s) > 4 {
		return false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		n = 10*n + int(s[i]-'0')
	}
	return n >= least && n <= most
}
