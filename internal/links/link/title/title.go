// Package title reads the titles that strangers give to links: it turns them into plain
// lines, knows which of them belong to no article, and which are variants of one title. It
// uses no database and makes no network calls.
package title

import (
	"crypto/sha256"
	"encoding/binary"
	"html"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/net/publicsuffix"
)

// maxText limits the bytes of a text that are read.
const maxText = 16 * 1024

// Quotes and dashes are entities without a semicolon, too: nothing else can be meant.
var entity = regexp.MustCompile(`&(?:(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});|#(?:3[49]|039|82[12][0-9]))`)

// Decode replaces the HTML entities of a text, once. Many servers encode titles twice.
func Decode(s string) string {
	if len(s) > maxText {
		s = strings.ToValidUTF8(s[:maxText], "")
	}
	if strings.IndexByte(s, '&') < 0 {
		return s
	}
	return entity.ReplaceAllStringFunc(s, html.UnescapeString)
}

// Clean turns a stranger's text into one line. It replaces white space by single
// spaces, and removes control characters, invisible ones, and those that change the direction
// of the text that follows, which would affect the rest of a page.
func Clean(s string, runes int) string {
	var b strings.Builder
	n, space := 0, false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r), r == 0x2800, r == 0x3164: // blanks that count as a symbol and a letter
			space = n > 0
			continue
		case unicode.IsControl(r), r >= 0x202A && r <= 0x202E, r >= 0x2066 && r <= 0x2069, r == 0x00AD, r == 0x200B, r == 0x2060, r == 0xFEFF:
			continue
		}
		if space {
			if n+1 >= runes {
				break
			}
			b.WriteByte(' ')
			n++
			space = false
		}
		if n == runes {
			break
		}
		b.WriteRune(r)
		n++
	}
	return b.String()
}

// The reasons why a title does not count.
const (
	Wall = "it is a consent, login or bot-check page"
	Name = "its title is the name of the site"
)

// Why returns why a title is not that of the page at an address. Empty: it may be.
func Why(title, address string) string {
	switch u, err := url.Parse(address); {
	case title == "":
		return "it has no title"
	case !readable(title):
		return "its title cannot be read"
	case err != nil:
		return ""
	case strings.Trim(u.Path, "/") != "" && isName(title, u.Hostname()): // a front page has no other title
		return Name
	case !strings.Contains(title, " ") &&
		(strings.HasPrefix(title, "https://") || strings.HasPrefix(title, "http://") || strings.HasPrefix(title, "www.")):
		return "its title is an address"
	case template.MatchString(title):
		return "its title is that of a template"
	case isWall(title, u) || IsWallAddress(u):
		return Wall
	}
	return ""
}

// template is a title that a page has not filled in.
var template = regexp.MustCompile(`^(?:\{\{.*\}\}|\$\{.*\}|%\w+%)$`)

// readable reports whether a title has letters, digits or symbols, and more of them than were lost.
func readable(title string) bool {
	legible, lost := 0, 0
	for _, r := range title {
		switch {
		case r == utf8.RuneError:
			lost++
		case unicode.In(r, unicode.L, unicode.N, unicode.So):
			legible++
		}
	}
	return legible > lost
}

// isName reports whether a text is a host, or the name of its site: The Paper of paper.example.
func isName(text, host string) bool {
	if len(text) > 2*len(host)+len("the ") { // most titles, at little cost
		return false
	}
	host = strings.TrimPrefix(strings.ToLower(host), "www.")
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil {
		domain = host
	}
	name, _, _ := strings.Cut(domain, ".")
	if len(name) < 2 && name != "x" { // other hosts of one letter are too likely to be words
		return false
	}
	letters := func(s string) string { return strings.ReplaceAll(fold(s), " ", "") }
	text = letters(text)
	for _, article := range []string{"", "the", "www"} {
		if rest, ok := strings.CutPrefix(text, article); ok && (rest == letters(name) || rest == letters(domain) || rest == letters(host)) {
			return true
		}
	}
	return false
}

// Key returns the form in which the titles of a site are compared: that of variants in case, quotes
// and punctuation is the same. A line feed is in place of the last separator; nothing follows it in
// place of the name of the site. "…" is at the end of a title that was cut.
func Key(title, site string) string {
	title = strings.TrimSpace(title)
	whole := strings.TrimRight(title, "….")
	key, cut := fold(whole), isCut(title)
	if at := separators(whole); len(at) > 0 {
		last := at[len(at)-1]
		head, tail := fold(whole[:last[0]]), fold(whole[last[1]:])
		switch {
		case head == "" || tail == "":
		case isName(whole[last[1]:], site):
			key, cut = head+"\n", isCut(whole[:last[0]])
		case utf8.RuneCountInString(tail) <= maxName:
			key = head + "\n" + tail
		}
	}
	if cut && key != "" {
		key += "…"
	}
	return key
}

func isCut(title string) bool {
	return strings.HasSuffix(title, "…") || strings.HasSuffix(title, "..")
}

// Group returns a number that titles of a site share if their keys have the same words.
func Group(key, site string) int64 {
	whole := strings.TrimSpace(strings.ReplaceAll(strings.TrimSuffix(key, "…"), "\n", " "))
	sum := sha256.Sum256([]byte(site + "\x00" + whole))
	return int64(binary.BigEndian.Uint64(sum[:8])) // any bits will do
}

// maxName is how many characters the name of a site has.
const maxName = 40

var separator = regexp.MustCompile(`\s+[|–—·•»/:-]+\s+|\s*[|｜•»]\s*`)

// separators returns the ranges of the separators of a clean title. Most titles have none.
func separators(title string) [][]int {
	if !strings.ContainsAny(title, "|｜–—·•»") && !strings.Contains(title, "- ") && !strings.Contains(title, "/ ") &&
		!strings.Contains(title, " :") {
		return nil
	}
	return separator.FindAllStringIndex(title, -1)
}

// fold returns the words of a text in lower case, separated by spaces. Apostrophes divide no words.
func fold(s string) string {
	var b strings.Builder
	space := false
	for _, r := range s {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9',
			r >= utf8.RuneSelf && unicode.In(r, unicode.L, unicode.M, unicode.N):
			if space && b.Len() > 0 {
				b.WriteByte(' ')
			}
			space = false
			b.WriteRune(unicode.ToLower(r))
		case r == '\'', r == '’', r == '‘', r == '´', r == '`', r == '\u200d', r == '\u200c':
		default:
			space = true
		}
	}
	return b.String()
}
