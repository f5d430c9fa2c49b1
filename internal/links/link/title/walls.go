package title

import (
	_ "embed"
	"encoding/base64"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// A wall is a page in front of the article, or in its place: it asks for consent, for a login or
// whether a person is reading, or says that nothing is there.

//go:embed walls.txt
var wallsText string

// kind is what is known of a phrase.
type kind struct {
	certain bool // no article is called so
	site    bool // it is the name of a site
}

// phrases returns the phrases of walls.txt.
var phrases = sync.OnceValue(func() map[string]kind {
	all := map[string]kind{}
	for line := range strings.Lines(wallsText) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		for phrase := range strings.SplitSeq(line, ",") {
			if words := fold(phrase); words != "" {
				all[words] = kind{certain: !strings.Contains(phrase, "?"), site: strings.Contains(phrase, "=")}
			}
		}
	}
	return all
})

var (
	status = regexp.MustCompile(`^(?:error|fehler|erreur|erro|errore|ошибка|błąd|hata|fout) (?:[45][0-5][0-9]|10[0-2][0-9])$|` +
		`^(?:http )?(?:status )?(?:error |fehler |erreur |erro |errore |ошибка )?[45][0-5][0-9](?: error)? ` +
		`(?:bad request|unauthorized|forbidden|access denied|(?:page )?not found|method not allowed|gone|too many requests|` +
		`(?:internal )?server error|bad gateway|service (?:temporarily )?unavailable|gateway time ?out|` +
		`backend fetch failed|web server is down|connection timed out|unavailable (?:for|due to) legal reasons)(?: 1)?$`)
	login = regexp.MustCompile(`^(?:(?:log ?in|sign ?in|log on|sign ?up|log ?in or sign ?up) ?(?:to|at|for|on|with)|subscribe to|` +
		`you are (?:now )?leaving|redirecting to|(welcome to|willkommen bei|bienvenue sur)) (.+)$`)
)

// isWall reports whether a title is that of a wall. A title is one only as a whole, or beside the
// name of a site: many an article has these words in its title. An article that is called like a
// wall has these words in its address.
func isWall(title string, at *url.URL) bool {
	whole := words(title)
	if certain, ok := phrase(whole, at); certain || ok && (strings.HasSuffix(title, "...") || strings.HasSuffix(title, "…") || hasName(at)) {
		return !inPath(whole, at)
	}
	if name, rest, ok := strings.Cut(title, ": "); ok && besideNames([]string{name, rest}, 1, at) { // headlines have colons too
		return !inPath(whole, at)
	}
	return besideNames(split(title), 3, at) && !inPath(whole, at)
}

// split returns the parts of a title between its separators.
func split(title string) (parts []string) {
	from := 0
	for _, at := range separators(title) {
		parts, from = append(parts, title[from:at[0]]), at[1]
	}
	return append(parts, title[from:])
}

// besideNames reports whether one of several texts is the phrase of a wall, and the others, of which
// there are at most so many, may be names of sites. What songs are called too is a phrase after the
// site's own name only: elsewhere their artist stands before it.
func besideNames(texts []string, most int, at *url.URL) bool {
	if len(texts) < 2 || len(texts) > most+1 {
		return false
	}
	for i, text := range texts {
		said := words(text)
		certain, ok := phrase(said, at)
		if !ok || phrases()[said].site || isName(said, at.Hostname()) || inPath(said, at) ||
			!certain && i > 0 && !isName(words(texts[0]), at.Hostname()) {
			continue
		}
		if areNames(slices.Concat(texts[:i], texts[i+1:]), most, at) {
			return true
		}
	}
	return false
}

// maxPhrase is how many characters a phrase has at most, with its punctuation.
const maxPhrase = 80

// words returns the words of a text; empty: it is too long for a phrase.
func words(text string) string {
	if len(text) > maxPhrase && utf8.RuneCountInString(text) > maxPhrase {
		return ""
	}
	return fold(text)
}

// phrase reports whether words are the phrase of a wall, and whether nothing else is called so.
func phrase(words string, at *url.URL) (certain, ok bool) {
	if known, ok := phrases()[words]; ok {
		return known.certain, true
	}
	if strings.ContainsAny(words, "0123456789") && status.MatchString(words) ||
		strings.HasSuffix(words, " used cloudflare to restrict access") || strings.HasPrefix(words, "request unsuccessful incapsula") {
		return true, true
	}
	if to := login.FindStringSubmatch(words); to != nil {
		front := to[1] != "" && strings.Trim(at.Path, "/") == "" // it welcomes the reader
		certain = !front && isName(to[2], at.Hostname())
	} else if name, rest, _ := strings.Cut(words, " "); phrases()[rest].certain { // Example Login
		certain = isName(name, at.Hostname())
	}
	return certain, certain
}

// areNames reports whether texts may be names of sites, of at most so many words and one.
func areNames(texts []string, most int, at *url.URL) bool {
	for _, text := range texts {
		if words := fold(text); utf8.RuneCountInString(words) > maxName || strings.Count(words, " ") > most {
			if _, ok := phrase(words, at); !ok {
				return false
			}
		}
	}
	return true
}

// inPath reports whether a path contains words.
func inPath(words string, at *url.URL) bool {
	return strings.Contains(" "+fold(at.Path)+" ", " "+words+" ")
}

// hasName reports whether a path ends with the name of an article, of three words or more.
func hasName(at *url.URL) bool {
	name := strings.Trim(at.Path, "/")
	name = fold(name[strings.LastIndexByte(name, '/')+1:])
	return strings.Count(name, " ") >= 2
}

// IsWallAddress reports whether an address is that of a wall: it has the address to return to.
func IsWallAddress(at *url.URL) bool {
	if at.RawQuery == "" {
		return false
	}
	for name, values := range at.Query() {
		for _, value := range values {
			if isAddress(value) && isReturn(name) {
				return true
			}
			if hidden := Hidden(value); isAddress(hidden) {
				if to, err := at.Parse(hidden); err == nil && to.Host == at.Host {
					return true
				}
			}
		}
	}
	return false
}

// isAddress reports whether a value is the address of a page below the root of a site.
func isAddress(value string) bool {
	if !strings.HasPrefix(value, "/") && !strings.HasPrefix(value, "http://") && !strings.HasPrefix(value, "https://") {
		return false
	}
	to, err := url.Parse(value)
	return err == nil && strings.Trim(to.Path, "/") != ""
}

// isReturn reports whether a parameter has the address to which a page returns.
func isReturn(name string) bool {
	switch strings.NewReplacer("_", "", "-", "", ".", "").Replace(strings.ToLower(name)) {
	case "return", "returnto", "returnurl", "returnuri", "returnpath", "continue", "continueurl", "next", "nexturl", "goto", "gotourl",
		"redirect", "redirectto", "redirecturl", "redirecturi", "redirectpath", "redirectafterlogin", "loginredirect", "sessionredirect",
		"backurl", "backto", "callbackurl", "camefrom", "destination", "dest", "rurl", "requesturl", "requesturi", "originalurl", "successurl":
		return true
	}
	return false
}

// Hidden returns the path or the address that a value has in base64; empty: none.
func Hidden(value string) string {
	if len(value) < 6 || len(value) > maxText || value[0] != 'L' && !strings.HasPrefix(value, "aHR0c") { // "/", "http"
		return ""
	}
	value = strings.NewReplacer("-", "+", "_", "/", " ", "+").Replace(strings.TrimRight(value, "="))
	text, err := base64.RawStdEncoding.DecodeString(value)
	if err != nil || slices.ContainsFunc(text, func(c byte) bool { return c <= ' ' || c >= 0x7F }) {
		return ""
	}
	return string(text)
}
