package web

import (
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// Limits of texts on the page, in characters. The style sheet also limits the lines.
const (
	MaxDescription = 400
	MaxSite        = 80
	MaxName        = 32
	MaxURL         = 120
	MaxDetail      = 300
)

// maxMarks is the maximum number of combining marks on one letter. Every script needs
// fewer; a hundred of them cover the lines around them.
const maxMarks = 6

// PlainLine returns Plain(s), shortened to limit characters.
func PlainLine(s string, limit int) string { return Shorten(Plain(s), limit) }

// Plain turns a stranger's text into one line that cannot change the layout of the text
// around it or control a terminal. It returns "" if no character is visible.
func Plain(s string) string {
	var b strings.Builder
	space, visible, marks := false, false, 0
	for _, r := range strings.ToValidUTF8(s, "\uFFFD") {
		switch {
		case unicode.IsSpace(r), unicode.IsControl(r), r == '\u2028', r == '\u2029':
			space = true
			continue
		case isBidiControl(r):
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
		visible = visible || isVisible(r)
		b.WriteRune(r)
	}
	if !visible {
		return ""
	}
	return b.String()
}

// isBidiControl reports whether a character overrides the direction of text, opens or
// closes an isolate, or annotates. In a title, such characters only deceive. It returns
// false for the direction marks that right-to-left text needs.
func isBidiControl(r rune) bool {
	return r >= '\u202A' && r <= '\u202E' || r >= '\u2066' && r <= '\u206F' || r >= '\uFFF9' && r <= '\uFFFB' || r == '\uFEFF'
}

// isVisible reports whether a character has a visible glyph.
func isVisible(r rune) bool {
	switch r {
	case '\u115F', '\u1160', '\u3164', '\uFFA0', '\u2800': // blank letters
		return false
	}
	return unicode.In(r, unicode.L, unicode.N, unicode.P, unicode.S)
}

// Shorten cuts s to at most limit characters, the last one an ellipsis.
func Shorten(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	runes := []rune(s)[:limit-1]
	return strings.TrimRight(string(runes), " ") + "…"
}

// Person is an account as the page shows it.
type Person struct {
	Name       string
	Identified bool   // the name is a handle or a DID
	Profile    string // empty if the name is neither
	Href       string // what Weir has of the account; empty: no link
	Face       string // the address of the account's picture; empty: none
	Network    string // set if it is not Bluesky
	On         string // the text of a link to Profile

	Unverified string // says so; empty: the name is verified, or a DID
}

const AppBase = "https://bsky.app/profile/"

// NewPerson describes the account that has a name: a handle or a DID.
func (s *Server) NewPerson(name string) Person {
	if h, err := syntax.ParseHandle(name); err == nil && !h.IsInvalidHandle() {
		return Person{Name: "@" + Shorten(name, MaxName), Identified: true, Profile: AppBase + url.PathEscape(name), On: say("profile")}
	}
	for _, part := range s.parts {
		if of := part.Network; of.Account != nil {
			if shown, profile := of.Account(name); shown != "" {
				return Person{Name: abbreviate(shown), Identified: true, Profile: profile, Network: of.Name, On: of.Profile}
			}
		}
	}
	if isDID(name) {
		return Person{Name: abbreviate(name), Identified: true, Profile: AppBase + url.PathEscape(name), On: say("profile")}
	}
	return Person{Name: PlainLine(name, MaxName)}
}

// RecordURL returns the address that shows a record of another network, or "" if uri is not one.
func (s *Server) RecordURL(uri string) string {
	for _, part := range s.parts {
		if part.Network.Record != nil {
			if address := part.Network.Record(uri); address != "" {
				return address
			}
		}
	}
	return ""
}

func isDID(name string) bool {
	_, err := syntax.ParseDID(name)
	return err == nil
}

// abbreviate keeps both ends of a DID, where DIDs differ.
func abbreviate(did string) string {
	const head, tail = 12, 4
	if len(did) <= head+tail+1 {
		return did
	}
	return did[:head] + "…" + did[len(did)-tail:]
}

// TargetName returns the target of a watch as the page shows it.
func TargetName(target string) string {
	if isDID(target) {
		return abbreviate(target)
	}
	return PlainLine(target, MaxSite)
}
