package link

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// identity returns the key that all spellings of one article share: the host without
// "www.", the path without a trailing slash, and what else selects the page by the rules of the
// site. It also returns that address. spelling is that of a.
func (a *address) identity(spelling string) (key string, page address) {
	b := a.unarchived()
	b.host, b.path = bare(b.host), readable(strings.TrimRight(b.path, "/"))
	if b.path == "" && b.fragment != "" && b.port == "" && b.rules().routes {
		b.path, b.fragment = strings.TrimRight(strings.TrimLeft(b.fragment, "#!"), "/"), ""
	}
	if b.fragment != "" && !b.isRoute() {
		b.fragment = ""
	}
	if b.port == "" {
		b.host, b.path = withoutEdition(b.host, b.path), withoutAMP(b.path)
		b.selectPage()
	}
	for i := range b.query {
		if strings.IndexByte(b.query[i].text, '+') >= 0 { // a space, like %20
			b.query = slices.Clone(b.query)
			for j := range b.query {
				b.query[j].text = strings.ReplaceAll(b.query[j].text, "+", "%20")
			}
			break
		}
	}
	// Most identities are a part of the spelling, which needs no extra memory.
	start := len(a.scheme) + len("://") + len(a.host) - len(b.host)
	end := start + len(b.host) + len(b.path)
	if b.port == "" && len(b.query) == 0 && b.fragment == "" && start >= 0 && end <= len(spelling) &&
		spelling[start:start+len(b.host)] == b.host && spelling[start+len(b.host):end] == b.path {
		return spelling[start:end], b
	}
	var s strings.Builder
	s.Grow(len(spelling))
	b.write(&s)
	return s.String(), b
}

// selectPage leaves what selects the page by the rules of its site.
func (a *address) selectPage() {
	if a.opened != nil {
		a.query, a.fragment = a.query[:min(1, len(a.opened.form.query))], ""
		return
	}
	for range most {
		s := a.rules()
		if to := rewritten(s.same, a.host, a.path, a.query); to != "" {
			a.host = bare(to)
			a.dropParameters() // the spelling had the rules of another host
			continue
		}
		a.respell(s)
		if s.skip.in(a.query) || everywhere.skip.in(a.query) {
			a.query = slices.DeleteFunc(slices.Clone(a.query), func(p parameter) bool { return s.skip.has(&p) || everywhere.skip.has(&p) })
		}
		if !a.page(s.page) && !a.page(everywhere.page) {
			a.respell(s)
			return
		}
	}
}

// respell gives a path one spelling, if its site does not distinguish them.
func (a *address) respell(s *siteRules) {
	if s.lower > 0 {
		end := 0
		for range s.lower {
			next := strings.IndexByte(a.path[min(end+1, len(a.path)):], '/')
			if next < 0 {
				end = len(a.path)
				break
			}
			end += 1 + next
		}
		a.path = strings.ToLower(a.path[:end]) + a.path[end:]
	}
	if s.spaces {
		a.path = strings.ReplaceAll(a.path, "%20", "_")
	}
}

// page applies the first rule of a page that matches. It reports whether the page is on another
// host, whose rules come next.
func (a *address) page(rules []rewrite) (moved bool) {
	var found captures
	r := firstMatch(rules, a.host, a.path, a.query, &found)
	if r == nil {
		return false
	}
	from := a.host
	if r.form.host != nil {
		a.host = fill(r.form.host, &found)
	}
	a.path = strings.TrimRight(fill(r.form.path, &found), "/")
	if !r.all {
		a.query = slices.DeleteFunc(slices.Clone(a.query), func(p parameter) bool { return !r.keep.has(&p) })
		a.fragment = ""
	}
	if len(r.form.query) > 0 {
		a.query = append([]parameter{newParameter(fill(r.form.query, &found))}, a.query...)
	}
	return a.host != from
}

// readable decodes the delimiters that mean the same encoded in a path, and joins slashes.
func readable(path string) string {
	if strings.Contains(path, "//") && !strings.Contains(path, "://") {
		parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
		path = "/" + strings.Join(parts, "/")
	}
	if strings.IndexByte(path, '%') < 0 {
		return path
	}
	return delimiters.Replace(composed(path))
}

// marks finds characters that are part of the letter before them: accents, voicing marks of kana, Korean vowels.
var marks = regexp.MustCompile(`%C[CD]%|%E3%82%9[9A]|%E1%85%`)

// composed joins letters and their accents, which some programs write as two characters.
func composed(path string) string {
	if !marks.MatchString(path) || strings.Contains(path, "%3F") {
		return path
	}
	var b strings.Builder
	for part := range strings.SplitSeq(path, "%2F") { // an encoded slash stays one
		if b.Len() > 0 {
			b.WriteString("%2F")
		}
		text, err := url.PathUnescape(part)
		if err != nil || !utf8.ValidString(text) {
			return path
		}
		b.WriteString(escape(norm.NFC.String(strings.ReplaceAll(text, "%", "%25"))))
	}
	return b.String()
}

var delimiters = strings.NewReplacer("%40", "@", "%2C", ",", "%3A", ":", "%24", "$", "%26", "&", "%3B", ";", "%3D", "=")

// isRoute reports whether the fragment selects a page: a map, a route, a key, what an editor
// contains. Others are places on the page.
func (a *address) isRoute() bool {
	text := a.fragment[1:]
	if strings.TrimRight(a.path, "/") == "" && len(a.query) == 0 {
		return true
	}
	if strings.HasPrefix(text, "fn:") || strings.HasPrefix(text, "fnref:") {
		return false // a footnote
	}
	return text[0] == '!' || strings.ContainsAny(text, "/=:,@") || isRandom(text)
}

// isRandom reports whether a text looks like a key, and not like a name that somebody gave a place.
func isRandom(text string) bool {
	upper, lower, digit := false, false, false
	for i := range len(text) {
		switch c := text[i]; {
		case 'A' <= c && c <= 'Z':
			upper = true
		case 'a' <= c && c <= 'z':
			lower = true
		case '0' <= c && c <= '9':
			digit = true
		case c != '-' && c != '_':
			return false
		}
	}
	return upper && lower && digit && len(text) >= 12
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

// withoutEdition returns the host of the page whose mobile or AMP edition is on another one. Such a
// host has other meanings, and may be that of another owner, so the path must be an article's, and the
// site the same.
func withoutEdition(host, path string) string {
	first, rest, _ := strings.Cut(host, ".")
	switch first {
	case "m", "mobile", "amp":
		if (isArticle(path) || isStory(path)) && site(host) == site(rest) {
			return rest
		}
	case "eu": // of American newspapers
		if strings.HasPrefix(path, "/story/") && isArticle(path) && site(host) == site(rest) {
			return rest
		}
	}
	return host
}

// isStory reports whether a path ends in a name of at least three words, as the paths of articles do.
func isStory(path string) bool {
	name := path[strings.LastIndexByte(path, '/')+1:]
	return strings.Count(name, "-") >= 2 && len(name) >= 15
}

// withoutAMP returns the path of the article that an AMP page is an edition of. "amp"
// has other meanings but after "~", so the path must be an article's. Other sites have rules.
func withoutAMP(path string) string {
	if !strings.Contains(path, "amp") { // faster than LastIndex
		return path
	}
	at := strings.LastIndex(path, "amp")
	before, after := path[:at-1], path[at+len("amp"):]
	switch separator := path[at-1]; {
	case separator == '/' && after == "": // /2026/07/story/amp
		before = strings.TrimRight(before, "/")
		if isArticle(before) || isStory(before) {
			return before
		}
	case separator == '~' && after == ".html": // /story-100~amp.html
		return before + after
	case (separator == '.' || separator == '_') && slices.Contains([]string{"", ".html", ".htm", ".shtml"}, after):
		if isArticle(before) || isStory(before) {
			return before + after // of /2026/07/story.amp.html
		}
	}
	for _, prefix := range [...]string{"/amp", "/platform/amp"} { // /amp/2026/07/story
		if rest, ok := strings.CutPrefix(path, prefix); ok && len(rest) > 1 && rest[0] == '/' &&
			(isArticle(rest) || isStory(rest)) {
			return rest
		}
	}
	return path
}

// isArticle reports whether a path contains a year and a month, as the paths of
// articles do, and then a name.
func isArticle(path string) bool {
	year, dated, name := false, false, false
	for segment := range strings.SplitSeq(path, "/") {
		switch {
		case dated:
			name = name || segment != "" && !numeric(segment)
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
