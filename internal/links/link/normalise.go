// Package link finds the links that a post shares. It gives each a spelling and an
// identity.
//
// The spelling is a normalised URL that a person can open. Differences that a server
// may see (http and https, a trailing slash, the order of parameters) stay, unless
// there is a rule for the site. Normalising is idempotent, and a normalised URL is
// printable ASCII. The identity is the key that all spellings of one article share.
// It also ignores differences that no reader would see: the scheme, "www.", a
// trailing slash, mobile and AMP editions, copies in archives. Two articles never
// have the same identity. If a host or a path has different meanings on different
// sites, there is a rule for it only on sites where its meaning is known.
//
// The input comes from strangers: the work per post is limited, and an error in one
// field affects only that field. The package uses no database and makes no network
// calls.
package link

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxBytes is the maximum length of a normalised URL.
const MaxBytes = 2048

// maxRawBytes limits a URL before its tracking parameters are removed.
const maxRawBytes = 16 * 1024

// address holds the normalised parts of a URL.
type address struct {
	scheme   string // http or https
	host     string // lower-case ASCII, no trailing dot
	port     string // "": the default port
	path     string // begins with "/"
	query    []parameter
	fragment string // including "#", or ""
	gift     []parameter
	site     *siteRules // of the bare host named; see rules
	named    string
	suffix   string // public suffix of the host suffixed
	suffixed string
	opened   *rewrite // gave the address its form, see open
}

// Normalise returns the spelling of a URL: an http or https URL of printable ASCII,
// at most MaxBytes long. The error says why the URL is not a link; a retry never
// helps.
func Normalise(raw string) (url string, err error) {
	a, err := parse(raw)
	if err != nil {
		return "", err
	}
	return a.format()
}

// Parse returns the link that a URL leads to, without a card. Its errors are those of
// Normalise.
func Parse(raw string) (Link, error) {
	a, err := parse(raw)
	if err != nil {
		return Link{}, err
	}
	url, err := a.format()
	if err != nil {
		return Link{}, err
	}
	identity, page := a.identity(url)
	if len(identity) > MaxBytes {
		return Link{}, fmt.Errorf("identity of %d bytes is too long", len(identity))
	}
	return Link{
		URL: url, Identity: identity, Site: a.domain(), Gift: a.giftURL(),
		Short:    page.isShort(),
		MayShort: a.mayBeShort() && page.mayBeShort(),
		Excluded: a.isExcluded() || page.isExcluded(),
	}, nil
}

// domain returns the registrable domain of the address, without "www.".
func (a *address) domain() string {
	if a.host == a.suffixed {
		return siteUnder(a.host, a.suffix)
	}
	return site(a.host)
}

// parseOne splits a URL into its parts and applies the rules of spelling.
func parseOne(raw string) (address, error) {
	var a address
	if len(raw) > maxRawBytes {
		return a, fmt.Errorf("URL of %d bytes is too long", len(raw))
	}
	raw = strings.TrimRight(strings.TrimSpace(raw), "\x00")
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
	if err := a.setAuthority(authority); err != nil {
		return a, err
	}
	a.path = normalPath(path)
	a.query = parameters(query)
	a.fragment = fragmentOf(fragment)
	a.spell()
	return a, nil
}

// format returns the normalised URL.
func (a *address) format() (string, error) {
	length := len(a.scheme) + len("://") + len(a.host) + len(":") + len(a.port) + len(a.path) + len(a.fragment)
	for _, p := range a.query {
		length += len("&") + len(p.text)
	}
	if a.port == "" {
		length -= len(":")
	}
	if length > MaxBytes {
		return "", fmt.Errorf("normalised URL of %d bytes is too long", length)
	}
	var b strings.Builder
	b.Grow(length)
	b.WriteString(a.scheme)
	b.WriteString("://")
	a.write(&b)
	return b.String(), nil
}

// write writes the parts after the scheme.
func (a *address) write(b *strings.Builder) {
	b.WriteString(a.host)
	if a.port != "" {
		b.WriteByte(':')
		b.WriteString(a.port)
	}
	b.WriteString(a.path)
	a.writeQuery(b)
}

// writeQuery writes the query and the fragment.
func (a *address) writeQuery(b *strings.Builder) {
	separator := byte('?')
	for _, p := range a.query {
		b.WriteByte(separator)
		b.WriteString(p.text)
		separator = '&'
	}
	b.WriteString(a.fragment)
}

// checkCharacters refuses characters that browsers silently repair: two programs
// could read such a URL as two different pages.
func checkCharacters(raw string) error {
	at := 0
	for at < len(raw) && raw[at]-' ' < 0x7F-' ' && raw[at] != '\\' {
		at++
	}
	if at == len(raw) {
		return nil
	}
	if !utf8.ValidString(raw) {
		return errors.New("URL is not valid UTF-8")
	}
	for _, r := range raw {
		if unicode.IsControl(r) {
			return errors.New("URL contains a control character")
		}
		if r == '\\' {
			return errors.New("URL contains a backslash")
		}
	}
	return nil
}

// normalPath resolves dot segments. Empty segments and a trailing slash stay:
// servers may distinguish them.
func normalPath(path string) string {
	path = escape(path)
	for range 2 { // what is removed may have hidden dots
		if strings.Contains(path, "/.") {
			path = resolveDots(path)
		}
		path = withoutStray(path)
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
				kept = append(kept, "") // a folder: the path ends in a slash
			}
		default:
			kept = append(kept, segment)
		}
	}
	return "/" + strings.Join(kept, "/")
}

// fragmentOf returns a fragment, which may be what selects the page or the key that opens it,
// without what marks a text on the page or only says where the reader came from.
func fragmentOf(fragment string) string {
	if fragment == "" {
		return ""
	}
	fragment = withoutInvisible(escape(fragment))
	fragment, _, _ = strings.Cut(fragment, ":~:") // a text fragment
	switch fragment {
	case "", "!", "/", "!/", "_=_":
		return ""
	}
	if fragment[0] == '.' || strings.HasPrefix(fragment, "sthash.") || strings.HasPrefix(fragment, "ixzz") { // of buttons for sharing
		return ""
	}
	for text := range strings.SplitSeq(fragment, "&") {
		if p := newParameter(strings.TrimPrefix(text, "?")); !strings.Contains(text, "=") || !isTracking(p) && !everywhere.mark.has(&p) {
			return "#" + fragment
		}
	}
	return ""
}

const upperHex = "0123456789ABCDEF"

// escape normalises percent-encoding: it decodes characters that never need encoding,
// encodes those that do, writes hexadecimal digits in upper case, and encodes a
// percent sign that does not begin an encoded character.
func escape(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = isPlain(s[i]) || isDelimiter(s[i])
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
			if isPlain(c) {
				b = append(b, c)
				continue
			}
		} else if isPlain(c) || isDelimiter(c) {
			b = append(b, c)
			continue
		}
		b = append(b, '%', upperHex[c>>4], upperHex[c&15])
	}
	return string(b)
}

// isPlain reports whether a character means the same encoded or not: the unreserved
// characters of RFC 3986, and the unreserved marks of RFC 2396, because people share
// pages such as "Mercury_(planet)" in both spellings.
func isPlain(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	}
	switch c {
	case '-', '.', '_', '~', '!', '*', '\'', '(', ')':
		return true
	}
	return false
}

// isDelimiter reports whether a character may act as a delimiter. Encoding it would
// change its meaning, so it stays as written.
func isDelimiter(c byte) bool { return strings.IndexByte("/?:@$&+,;=", c) >= 0 }

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
