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

// phrases returns the phrases of walls.txt; false: the phrase is also what articles are called.
var phrases = sync.OnceValue(func() map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(wallsText) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		for phrase := range strings.SplitSeq(line, ",") {
			if words := fold(phrase); words != "" {
				all[words] = !strings.Contains(phrase, "?")
			}
		}
	}
	return all
})

var (
	status = regexp.MustCompile(`^(?:http )?(?:status )?(?:error |fehler |erreur |erro |errore |ошибка )?[45][0-5][0-9](?: error)? ` +
		`(?:bad request|unauthorized|forbidden|access denied|(?:page )?not found|method not allowed|gone|too many requests|` +
		`(?:internal )?server error|bad gateway|service (?:temporarily )?unavailable|gateway time ?out)(?: 1)?$`)
	login = regexp.MustCompile(`^(?:log ?in|sign ?in|log on|sign ?up|log ?in or sign ?up) ?(?:to|at|for|on|with) (.+)$`)
	colon = regexp.MustCompile(`:\s+`)
)

// isWall reports whether a title is that of a wall. A title is one only as a whole, or beside the
// name of a site: many an article has these words in its title. An article that is called like a
// wall has these words in its address.
func isWall(title string, at *url.URL) bool {
	whole := fold(title)
	if whole == "" || inPath(whole, at) {
		return false
	}
	switch certain, ok := phrase(whole, at); {
	case certain, ok && (strings.HasSuffix(title, "...") || strings.HasSuffix(title, "…") || hasName(at)):
		return true
	}
	for most, splitter := range []*regexp.Regexp{1: colon, 3: separator} { // headlines have colons too
		if splitter == nil {
			continue
		}
		parts := splitter.Split(title, -1)
		for i, part := range parts {
			words := fold(part)
			if _, ok := phrase(words, at); ok && !inPath(words, at) && areNames(slices.Concat(parts[:i], parts[i+1:]), most, at) {
				return true
			}
		}
	}
	return false
}

// phrase reports whether words are the phrase of a wall, and whether nothing else is called so.
func phrase(words string, at *url.URL) (certain, ok bool) {
	if certain, ok = phrases()[words]; ok {
		return certain, ok
	}
	to := login.FindStringSubmatch(words)
	certain = status.MatchString(words) || to != nil && isName(to[1], at.Hostname())
	return certain, certain
}

// areNames reports whether at most so many texts may be names of sites.
func areNames(texts []string, most int, at *url.URL) bool {
	for _, text := range texts {
		if words := fold(text); utf8.RuneCountInString(words) > maxName || strings.Count(words, " ") > most {
			if _, ok := phrase(words, at); !ok {
				return false
			}
		}
	}
	return len(texts) > 0 && len(texts) <= most
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
	for name, values := range at.Query() {
		for _, value := range values {
			if isReturn(name) && isAddress(value) {
				return true
			}
			if hidden, err := at.Parse(Base64(value)); err == nil && isAddress(Base64(value)) && hidden.Host == at.Host {
				return true
			}
		}
	}
	return false
}

// isAddress reports whether a value is the address of a page below the root of a site.
func isAddress(value string) bool {
	to, err := url.Parse(value)
	return err == nil && strings.Trim(to.Path, "/") != "" && (strings.HasPrefix(value, "/") || to.Scheme == "http" || to.Scheme == "https")
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

// Base64 returns the printable text that a value encodes in base64; empty: none.
func Base64(value string) string {
	if len(value) < 6 || len(value) > maxText {
		return ""
	}
	value = strings.NewReplacer("-", "+", "_", "/", " ", "+").Replace(strings.TrimRight(value, "="))
	text, err := base64.RawStdEncoding.DecodeString(value)
	if err != nil || slices.ContainsFunc(text, func(c byte) bool { return c <= ' ' || c >= 0x7F }) {
		return ""
	}
	return string(text)
}
