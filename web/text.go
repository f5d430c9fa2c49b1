package web

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Bounds of what one link may take of the page, in characters. The style sheet
// clamps by lines besides.
const (
	maxTitle       = 240
	maxDescription = 400
	maxSite        = 80
	maxName        = 32
	maxURL         = 120
	maxDetail      = 300
)

// maxMarks is how many combining marks one letter may carry; every script
// needs fewer, and a hundred of them paint over the neighbours.
const maxMarks = 6

// plain is Plain of at most limit characters.
func plain(s string, limit int) string { return shorten(Plain(s), limit) }

// Plain makes a stranger's string one line that cannot change how the text
// around it is laid out, nor drive a terminal. Empty where nothing in it can be
// seen.
func Plain(s string) string {
	var b strings.Builder
	space, visible, marks := false, false, 0
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case unicode.IsSpace(r), unicode.IsControl(r), r == '\u2028', r == '\u2029':
			space = true
			continue
		case reorders(r):
			continue
		}
		if marks++; !unicode.Is(unicode.M, r) {
			marks = 0
		}
		if marks > maxMarks {
			continue
		}
		if space && b.Len() > 0 {
			b.WriteByte(' ')
		}
		space = false
		visible = visible || shows(r)
		b.WriteRune(r)
	}
	if !visible {
		return ""
	}
	return b.String()
}

// reorders tells the characters that override the direction of text, open or
// close an isolate, or annotate: in a title they serve only to deceive. The
// marks of direction that right-to-left text needs are not among them.
func reorders(r rune) bool {
	return r >= '\u202A' && r <= '\u202E' || r >= '\u2066' && r <= '\u206F' || r >= '\uFFF9' && r <= '\uFFFB' || r == '\uFEFF'
}

// shows tells whether a character leaves ink.
func shows(r rune) bool {
	switch r {
	case '\u115F', '\u1160', '\u3164', '\uFFA0', '\u2800': // blank letters
		return false
	}
	return unicode.In(r, unicode.L, unicode.N, unicode.P, unicode.S)
}

// shorten cuts s to at most limit characters, the last one an ellipsis.
func shorten(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	runes := []rune(s)[:limit-1]
	return strings.TrimRight(string(runes), " ") + "…"
}

// readable is a URL as a person reads it: no scheme, percent-encoding undone.
func readable(u *url.URL) string {
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	if decoded, err := url.PathUnescape(path); err == nil && utf8.ValidString(decoded) {
		path = decoded
	}
	return plain(u.Host+path, maxURL)
}

// person is somebody who shared a link.
type person struct {
	Name string
	Href string // their profile; empty where the stored name leads to none
}

const appBase = "https://bsky.app/profile/"

func newPerson(name string) person {
	if h, err := syntax.ParseHandle(name); err == nil && !h.IsInvalidHandle() {
		return person{Name: "@" + shorten(name, maxName), Href: appBase + url.PathEscape(name)}
	}
	if _, err := syntax.ParseDID(name); err == nil {
		return person{Name: abbreviate(name), Href: appBase + url.PathEscape(name)}
	}
	return person{Name: plain(name, maxName)}
}

// abbreviate keeps both ends of a DID, which is where two of them differ.
func abbreviate(did string) string {
	const head, tail = 12, 4
	if len(did) <= head+tail+1 {
		return did
	}
	return did[:head] + "…" + did[len(did)-tail:]
}

// postURL is where a person reads a post; "" where uri names none.
func postURL(uri string) string {
	at, err := syntax.ParseATURI(uri)
	if err != nil || at.Collection() != "app.bsky.feed.post" || at.RecordKey() == "" {
		return ""
	}
	return appBase + url.PathEscape(at.Authority().String()) + "/post/" + url.PathEscape(at.RecordKey().String())
}
