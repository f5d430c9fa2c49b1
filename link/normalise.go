// Package link finds the links that a post shares and gives each the one
// spelling under which its shares are counted.
//
// It promises that normalising twice is normalising once, that a normalised URL
// is printable ASCII, and that two pages never become one: what servers may tell
// apart stays apart (http and https, a trailing slash, the order of parameters),
// unless there is a rule for the site. Everything it reads was written by a
// stranger: the work per post is bounded, and what is wrong in one field costs
// that field. It knows no database and makes no network call.
package link

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxBytes is the longest normalised URL.
const MaxBytes = 2048

// maxRawBytes bounds what is looked at before tracking parameters are gone.
const maxRawBytes = 16 * 1024

// address is a URL taken apart: its parts are in normal form from the moment
// they are set.
type address struct {
	scheme   string // http or https
	host     string // lower-case ASCII, no trailing dot
	port     string // "" for the default one
	path     string // begins with "/"
	query    []parameter
	fragment string // with its "#", or ""
}

// Normalise gives the one spelling of a URL under which its shares are counted;
// an error says why it is no link, and is never a reason to try again. The
// result is an http or https URL of printable ASCII, at most MaxBytes long.
func Normalise(raw string) (url string, err error) {
	a, err := take(raw)
	if err != nil {
		return "", err
	}
	return a.spell()
}

// take takes a URL apart, and applies every rule.
func take(raw string) (address, error) {
	var a address
	if len(raw) > maxRawBytes {
		return a, fmt.Errorf("URL of %d bytes is too long", len(raw))
	}
	raw = strings.TrimSpace(raw)
	if err := checkCharacters(raw); err != nil {
		return a, err
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	a.scheme = strings.ToLower(scheme)
	if !ok || a.scheme != "http" && a.scheme != "https" {
		return a, errors.New("scheme is neither http nor https")
	}
	rest, fragment, _ := strings.Cut(rest, "#")
	rest, query, _ := strings.Cut(rest, "?")
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	var err error
	if a.host, a.port, err = splitAuthority(authority, a.scheme); err != nil {
		return a, err
	}
	a.path = normalPath(path)
	a.query = parameters(query)
	a.fragment = route(fragment)
	a.applyHostRules()
	return a, nil
}

// spell writes the URL in its normal form.
func (a *address) spell() (string, error) {
	var b strings.Builder
	b.WriteString(a.scheme)
	b.WriteString("://")
	b.WriteString(a.host)
	if a.port != "" {
		b.WriteByte(':')
		b.WriteString(a.port)
	}
	b.WriteString(a.path)
	separator := byte('?')
	for _, p := range a.query {
		b.WriteByte(separator)
		b.WriteString(p.text)
		separator = '&'
	}
	b.WriteString(a.fragment)
	if b.Len() > MaxBytes {
		return "", fmt.Errorf("normalised URL of %d bytes is too long", b.Len())
	}
	return b.String(), nil
}

// checkCharacters refuses what browsers would quietly repair: two readers could
// take such an URL for two different pages.
func checkCharacters(raw string) error {
	if !utf8.ValidString(raw) {
		return errors.New("URL is not valid UTF-8")
	}
	for _, r := range raw {
		if unicode.IsControl(r) {
			return errors.New("URL holds a control character")
		}
		if r == '\\' {
			return errors.New("URL holds a backslash")
		}
	}
	return nil
}

// normalPath resolves dot segments. Empty segments stay, and so does a slash at
// the end: servers may tell them apart.
func normalPath(path string) string {
	path = escape(path)
	if strings.Contains(path, "/.") {
		path = resolveDots(path)
	}
	if path == "" {
		return "/"
	}
	return path
}

func resolveDots(path string) string {
	var kept []string
	segments := strings.Split(path[1:], "/")
	for i, segment := range segments {
		switch segment {
		case ".", "..":
			if segment == ".." && len(kept) > 0 {
				kept = kept[:len(kept)-1]
			}
			if i == len(segments)-1 {
				kept = append(kept, "") // what it names is a folder
			}
		default:
			kept = append(kept, segment)
		}
	}
	return "/" + strings.Join(kept, "/")
}

// route keeps a fragment that names a page of its own ("#!/inbox", "#/inbox"),
// and drops one that names a place on the page.
func route(fragment string) string {
	if !strings.HasPrefix(fragment, "!") && !strings.HasPrefix(fragment, "/") {
		return ""
	}
	fragment = escape(fragment)
	fragment, _, _ = strings.Cut(fragment, ":~:") // a highlighted text
	switch fragment {
	case "", "!", "/", "!/":
		return ""
	}
	return "#" + fragment
}

const upperHex = "0123456789ABCDEF"

// escape brings percent-encoding to one spelling: characters that never need it
// are decoded, those that do are encoded, hexadecimal digits are upper-case, and
// a percent sign that encodes nothing is encoded itself.
func escape(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = plain(s[i]) || delimiter(s[i])
	}
	if clean {
		return s
	}
	b := make([]byte, 0, len(s)+16)
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c == '%' && i+2 < len(s) && isHex(s[i+1]) && isHex(s[i+2]) {
			c = unhex(s[i+1])<<4 | unhex(s[i+2])
			i += 2
			if plain(c) {
				b = append(b, c)
				continue
			}
		} else if plain(c) || delimiter(c) {
			b = append(b, c)
			continue
		}
		b = append(b, '%', upperHex[c>>4], upperHex[c&15])
	}
	return string(b)
}

// plain characters mean the same encoded or not: the unreserved ones of RFC
// 3986, and the marks that RFC 2396 held to be unreserved, which pages such as
// "Mercury_(planet)" are shared with in both spellings.
func plain(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	return strings.IndexByte("-._~!*'()", c) >= 0
}

// delimiter characters may have a meaning of their own, which encoding takes
// from them: each stays as it was written.
func delimiter(c byte) bool { return strings.IndexByte("/?:@$&+,;=", c) >= 0 }

func isHex(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
}

func unhex(c byte) byte {
	switch {
	case c <= '9':
		return c - '0'
	case c <= 'F':
		return c - 'A' + 10
	}
	return c - 'a' + 10
}
