package link

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// maxNesting limits how many URLs may contain each other.
const maxNesting = 5

// parse reads a URL. If it is the URL of a redirector or of an AMP cache, parse reads
// the URL that it contains instead, because that is the only page it opens.
func parse(raw string) (address, error) {
	nesting := maxNesting
	return parseNested(raw, &nesting)
}

// parseNested decrements nesting for each URL that contains another.
func parseNested(raw string, nesting *int) (address, error) {
	a, err := parseOne(raw)
	if err != nil {
		return a, err
	}
	for target := a.target(); target != ""; target = a.target() {
		if *nesting--; *nesting < 0 {
			return a, fmt.Errorf("more than %d URLs contain each other", maxNesting)
		}
		if a, err = parseOne(target); err != nil {
			return a, fmt.Errorf("URL inside a URL: %w", err)
		}
	}
	return a, nil
}

// target returns the URL that a redirector or an AMP cache opens, or "".
func (a *address) target() string {
	if a.port != "" {
		return ""
	}
	host, path := bare(a.host), strings.TrimRight(a.path, "/")
	switch {
	case isGoogle(host) && path == "/url":
		return a.googleTarget()
	case isGoogle(host):
		if rest, ok := strings.CutPrefix(a.path, "/amp/"); ok {
			return a.cached(rest)
		}
	case isUnder(host, "cdn.ampproject.org"), isUnder(host, "bing-amp.com"):
		for _, kind := range [...]string{"/c/", "/v/", "/wp/"} {
			if rest, ok := strings.CutPrefix(a.path, kind); ok {
				return a.cached(rest)
			}
		}
	case isUnder(host, "urldefense.com"), isUnder(host, "urldefense.proofpoint.com"):
		return a.defended()
	}
	return a.contained(a.rules().to)
}

// contained returns the URL that a pattern captures, or "".
func (a *address) contained(patterns []pattern) string {
	if len(patterns) == 0 {
		return ""
	}
	host, path := bare(a.host), strings.TrimRight(a.path, "/")
	for i := range patterns {
		p := &patterns[i]
		var found captures
		if !p.matches(host, path, a.query, &found) {
			continue
		}
		for _, w := range p.query {
			switch {
			case w.capture == 0 && w.name == "":
				if url := a.inside("", "")[1:]; hasScheme(url) {
					return url
				}
			case w.capture == 0:
				return a.parameter(w.name)
			}
		}
		if found[0] != "" {
			rest := a.path[strings.Index(a.path, found[0]):]
			if encoded, _, _ := strings.Cut(rest, "/"); strings.Contains(encoded, "%2F") {
				url, err := url.PathUnescape(encoded)
				if err != nil || !hasScheme(url) {
					return ""
				}
				return url
			}
			if url := decoded(rest); url != "" {
				return url
			}
			return a.after(rest)
		}
	}
	return ""
}

// googleTarget returns the target of Google's redirector. Some of Google's pages have
// it in the parameter "q", others in "url" beside a search in "q".
func (a *address) googleTarget() string {
	q, target := a.parameter("q"), a.parameter("url")
	switch {
	case target == "":
		return q
	case q == "":
		return target
	}
	return ""
}

// isGoogle reports whether a host is google.com or Google's host in a country.
func isGoogle(host string) bool {
	domain, ok := strings.CutPrefix(host, "google.")
	if !ok {
		return false
	}
	if domain == "com" {
		return true
	}
	domain = strings.TrimPrefix(strings.TrimPrefix(domain, "com."), "co.")
	return len(domain) == 2
}

// cached returns the URL of the page in an AMP cache. A leading "s/" stands for https.
func (a *address) cached(rest string) string {
	scheme := "http://"
	if secure, ok := strings.CutPrefix(rest, "s/"); ok {
		scheme, rest = "https://", secure
	}
	if host, _, _ := strings.Cut(rest, "/"); !strings.Contains(host, ".") { // a page of the cache itself
		return ""
	}
	return a.inside(scheme, rest)
}

// inside returns the URL that begins at the end of a path, including the query and the
// route.
func (a *address) inside(scheme, rest string) string {
	var s strings.Builder
	s.WriteString(scheme)
	s.WriteString(rest)
	a.writeQuery(&s)
	return s.String()
}

// parameter returns the http or https URL that is the value of a parameter, or "". If
// a name occurs twice, it returns "", because servers differ in which value they take.
func (a *address) parameter(name string) string {
	found := ""
	for _, p := range a.query {
		if p.name != name {
			continue
		}
		if found != "" {
			return ""
		}
		found = p.value()
	}
	value, err := url.QueryUnescape(found)
	if err == nil && !hasScheme(value) {
		value = decoded(value)
	}
	if err != nil || !hasScheme(value) {
		return ""
	}
	return value
}

// decoded returns a URL that is written in base64, perhaps after "a1", or "".
func decoded(text string) string {
	text = strings.TrimRight(strings.TrimPrefix(text, "a1"), "=")
	if !strings.HasPrefix(text, "aHR0c") { // "http"
		return ""
	}
	url, err := base64.RawURLEncoding.DecodeString(strings.NewReplacer("+", "-", "/", "_").Replace(text))
	if err != nil {
		return ""
	}
	return string(url)
}

// unarchived returns the page that an archive's URL is a copy of. The copy's URL stays
// the spelling, because the page itself may be gone.
func (a *address) unarchived() address {
	b := *a
	for nesting := maxNesting; nesting > 0; {
		raw := b.archived()
		if raw == "" {
			break
		}
		nesting--
		page, err := parseNested(raw, &nesting)
		if err != nil { // a copy of something that is not a link
			break
		}
		b = page
	}
	return b
}

// archived returns the URL inside the URL of an archive, or "".
func (a *address) archived() string {
	if a.port != "" {
		return ""
	}
	rest := ""
	switch bare(a.host) {
	case "web.archive.org":
		var ok bool
		if rest, ok = strings.CutPrefix(a.path, "/web/"); !ok {
			return ""
		}
		if time, page, ok := strings.Cut(rest, "/"); ok && isArchiveTime(withoutKind(time)) {
			rest = page
		} else if !hasScheme(rest) {
			return ""
		}
	case "archive.today", "archive.ph", "archive.is", "archive.li", "archive.md", "archive.vn", "archive.fo":
		rest = a.path[1:]
		if time, page, ok := strings.Cut(rest, "/"); ok && (time == "newest" || time == "oldest" || isArchiveTime(time)) {
			rest = page
		}
		if !hasScheme(rest) { // a short name: archive.today/AbC12
			return a.copied()
		}
	default:
		return a.copied()
	}
	return a.after(rest)
}

// after returns the URL at the end of a path, perhaps without its scheme.
func (a *address) after(rest string) string {
	switch {
	case hasScheme(rest):
		return a.inside("", rest)
	case hasPrefixFold(rest, "https:/"): // some programs lose a slash
		return a.inside("https://", rest[len("https:/"):])
	case hasPrefixFold(rest, "http:/"):
		return a.inside("http://", rest[len("http:/"):])
	}
	return a.inside("http://", rest)
}

// copied returns the page that a site shows as it is: a translation, or a reader without scripts.
func (a *address) copied() string {
	host := bare(a.host)
	if label, ok := strings.CutSuffix(host, ".translate.goog"); ok {
		return a.translated(label)
	}
	return a.contained(a.rules().copies)
}

// translated returns the page that Google translates. In its host, "-" stands for a full stop, and
// "--" for "-".
func (a *address) translated(label string) string {
	label = strings.NewReplacer("--", "-", "-", ".").Replace(label)
	b := address{fragment: a.fragment}
	for _, p := range a.query {
		if !strings.HasPrefix(p.name, "_x_tr_") {
			b.query = append(b.query, p)
		}
	}
	return b.inside("https://"+label, a.path)
}

// withoutKind removes the kind of a copy from its time: 20260704if_, a copy in a
// frame, becomes 20260704.
func withoutKind(time string) string {
	if kind, ok := strings.CutSuffix(time, "_"); ok {
		return strings.TrimRight(kind, "abcdefghijklmnopqrstuvwxyz")
	}
	return time
}

// isArchiveTime reports whether a segment is a time: 20260704123456, its beginning,
// or 2026.07.04-123456.
func isArchiveTime(segment string) bool {
	for i := range len(segment) {
		if c := segment[i]; (c < '0' || c > '9') && c != '.' && c != '-' {
			return false
		}
	}
	return len(segment) >= 1 && len(segment) <= len("2026.07.04-123456") && segment[0] >= '0' && segment[0] <= '9'
}

// defended returns the target of Proofpoint's redirector: in version 3 between "__" and "__;" in
// the path, in version 2 in the parameter u with "_" for "/" and "-2F" for an encoded character.
func (a *address) defended() string {
	if rest, ok := strings.CutPrefix(a.path, "/v3/__"); ok {
		target := (&address{query: a.query}).inside("", rest)
		end := strings.LastIndex(target, "__;")
		if end < 0 || strings.Contains(target[:end], "*") { // characters that are given apart
			return ""
		}
		return a.after(target[:end])
	}
	if a.path != "/v2/url" {
		return ""
	}
	at := slices.IndexFunc(a.query, func(p parameter) bool { return p.name == "u" })
	if at < 0 {
		return ""
	}
	value, err := url.QueryUnescape(strings.NewReplacer("-", "%", "_", "/").Replace(a.query[at].value()))
	if err != nil || !hasScheme(value) {
		return ""
	}
	return value
}
