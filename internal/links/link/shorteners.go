package link

import "strings"

// IsShort reports whether a normalised URL is a short name of another link. Only its redirect
// shows which. A short link that contains its target (youtu.be) is none.
func IsShort(url string) bool {
	a, err := parseOne(url)
	return err == nil && a.isShort()
}

// mayBeShort reports whether a link looks like a short name of another one, on a host that no rule
// knows: at most twelve letters on a host of at most twelve, none of them a word.
func (a *address) mayBeShort() bool {
	host, name := bare(a.host), strings.Trim(a.path, "/")
	if a.port != "" || len(a.query) > 0 || a.fragment != "" || len(host) > 12 || len(name) < 3 || len(name) > 12 ||
		a.rules() != &noRules || site(a.host) != host {
		return false
	}
	vowels, strange := 0, false
	for i := range len(name) {
		switch c := name[i]; {
		case c >= '0' && c <= '9' || c >= 'A' && c <= 'Z':
			strange = true
		case c < 'a' || c > 'z':
			return false // several words, or several folders
		case strings.IndexByte("aeiouy", c) >= 0:
			vowels++
		}
	}
	return strange || vowels == 0
}

func (a *address) isShort() bool {
	return a.port == "" && a.isOneOf(a.rules().short)
}
