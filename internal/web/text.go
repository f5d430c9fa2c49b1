package web

import (
	"cmp"
	"net/url"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/bluesky-social/indigo/atproto/syntax"

	"github.com/weir-social/weir/internal/ranking"
)

// Limits of texts on the page, in characters. The style sheet also limits the lines.
const (
	maxTitle       = 240
	MaxDescription = 400
	maxSite        = 80
	MaxName        = 32
	MaxURL         = 120
	MaxDetail      = 300
)

// maxMarks is the maximum number of combining marks on one letter. Every script needs
// fewer; a hundred of them cover the lines around them.
const maxMarks = 6

// PlainLine returns Plain(s), shortened to limit characters.
func PlainLine(s string, limit int) string { return shorten(Plain(s), limit) }

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

// shorten cuts s to at most limit characters, the last one an ellipsis.
func shorten(s string, limit int) string {
	if utf8.RuneCountInString(s) <= limit {
		return s
	}
	runes := []rune(s)[:limit-1]
	return strings.TrimRight(string(runes), " ") + "…"
}

// displayURL formats a URL for readers: without the scheme and with percent-encoding
// decoded.
func displayURL(u *url.URL) string {
	path := strings.TrimSuffix(u.EscapedPath(), "/")
	if u.RawQuery != "" {
		path += "?" + u.RawQuery
	}
	if decoded, err := url.PathUnescape(path); err == nil && utf8.ValidString(decoded) {
		path = decoded
	}
	return PlainLine(u.Host+path, MaxURL)
}

// Person is an account that shared a link.
type Person struct {
	Name    string
	Known   bool   // the name is a handle or a DID
	Profile string // empty if the name is neither
	Href    string // the ranking of links that it shared; empty: no link
	Face    string // the address of the account's picture; empty: none
	Network string // set if it is not Bluesky

	Unverified string // says so; empty: the name is verified, or a DID
}

const appBase = "https://bsky.app/profile/"

func NewPerson(name string) Person {
	if h, err := syntax.ParseHandle(name); err == nil && !h.IsInvalidHandle() {
		return Person{Name: "@" + shorten(name, MaxName), Known: true, Profile: appBase + url.PathEscape(name)}
	}
	if key := npub(name); key != "" {
		return Person{Name: abbreviate(key), Known: true, Profile: nostrBase + url.PathEscape(key), Network: say("network_nostr")}
	}
	if isDID(name) {
		return Person{Name: abbreviate(name), Known: true, Profile: appBase + url.PathEscape(name)}
	}
	return Person{Name: PlainLine(name, MaxName)}
}

// personOf describes an account by its handle or, on Nostr, by the name that it gives
// itself. Such a name proves nothing, so the page marks the network, and an @ stands only
// before handles. So does a handle that is not verified: it leads to the DID.
func personOf(did, handle string, unverified bool, name string, v View) Person {
	if p := NewPerson(did).in(v, did); p.Network != "" {
		if name = strings.TrimLeft(PlainLine(name, MaxName), "@ "); name != "" {
			p.Name = name
		}
		return p
	}
	if unverified {
		p := NewPerson(did).in(v, did)
		p.Name, p.Unverified = shorten(handle, MaxName), say("unverified")
		return p
	}
	name = cmp.Or(handle, did)
	return NewPerson(name).in(v, name)
}

// in sets the address of the links that an account shared, in the window of a view. name is
// the account's name in that address.
func (p Person) in(v View, name string) Person {
	if id, err := syntax.ParseAtIdentifier(name); err == nil && p.Known {
		p.Href = RankingHref(v.of(ranking.Query{By: id.Normalize().String()}))
	}
	return p
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

// postURL returns the web address of a post or of a Nostr event, or "" if uri is neither.
func postURL(uri string) string {
	if address := EventURL(uri); address != "" {
		return address
	}
	at, err := syntax.ParseATURI(uri)
	if err != nil || at.Collection() != "app.bsky.feed.post" || at.RecordKey() == "" {
		return ""
	}
	return appBase + url.PathEscape(at.Authority().String()) + "/post/" + url.PathEscape(at.RecordKey().String())
}

// maxAddress is the longest address of a page that is shown, in bytes.
const maxAddress = 4096

// pageURL returns the address of the page that a title is from, or "" if it is from a post.
func pageURL(from string) string {
	if u, ok := parseLink(from); ok && len(from) <= maxAddress {
		return u.String()
	}
	return ""
}
