package link

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// setAuthority sets the normalised host and port.
func (a *address) setAuthority(authority string) (err error) {
	if strings.IndexByte(authority, '@') >= 0 {
		return errors.New("URL contains a user name")
	}
	if strings.HasPrefix(authority, "[") {
		return errors.New("host is an IP address")
	}
	host, port, _ := strings.Cut(authority, ":")
	if host == "" {
		return errors.New("host is empty")
	}
	if a.port, err = normalPort(port, a.scheme); err != nil {
		return err
	}
	a.host, a.suffix, err = normalHost(host)
	a.suffixed = a.host
	return err
}

func normalPort(port, scheme string) (string, error) {
	if port == "" {
		return "", nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", errors.New("port is not a number from 1 to 65535")
	}
	if n == 443 && scheme == "https" || n == 80 && scheme == "http" {
		return "", nil
	}
	return strconv.FormatUint(n, 10), nil
}

// maxRawHost limits the work of converting a host to ASCII, which keeps at least a
// quarter of its bytes.
const maxRawHost = 4 * 253

// normalHost returns a host in lower-case ASCII, and its public suffix. It refuses hosts
// that are not under a public top-level domain.
func normalHost(host string) (normal, suffix string, err error) {
	if host, err = ASCIIHost(host); err != nil {
		return "", "", err
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" {
		return "", "", errors.New("host is empty")
	}
	if len(host) > 253 {
		return "", "", errors.New("host is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return "", "", errors.New("host has a label that is empty or longer than 63 bytes")
		}
		for i := range len(label) {
			if !hostCharacter(label[i]) {
				return "", "", fmt.Errorf("host contains the character %q", label[i])
			}
		}
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case numeric(last):
		return "", "", errors.New("host is an IP address")
	case len(last) == len(host):
		return "", "", errors.New("host has no dot")
	}
	suffix, ok := publicSuffix(host, last)
	if !ok {
		return "", "", fmt.Errorf("host ends in %q, which is not a public top-level domain", last)
	}
	return host, suffix, nil
}

// ASCIIHost converts a host to lower case, and to Punycode if it has letters beyond
// ASCII. The strict rules of IDNA do not apply to plain ASCII: people share hosts
// with underscores and odd hyphens.
func ASCIIHost(host string) (string, error) {
	if len(host) > maxRawHost {
		return "", errors.New("host is longer than 253 bytes")
	}
	ascii := true
	for i := 0; i < len(host) && ascii; i++ {
		ascii = host[i] < 0x80
	}
	if ascii {
		if host = strings.ToLower(host); !strings.Contains(host, "xn--") {
			return host, nil
		}
	}
	profile := idna.New(idna.MapForLookup(), idna.Transitional(false), idna.BidiRule(), idna.StrictDomainName(false), idna.CheckHyphens(false))
	out, err := profile.ToASCII(host)
	if err != nil {
		return "", fmt.Errorf("convert host to ASCII: %w", err)
	}
	return out, nil
}

func hostCharacter(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// numeric reports whether a label is a number. Browsers read a host whose last
// label is a number as an IPv4 address, in any spelling (0x7f.1, 2130706433).
func numeric(label string) bool {
	digits, hex := strings.CutPrefix(label, "0x")
	for i := range len(digits) {
		if c := digits[i]; c < '0' || c > '9' && !hex || hex && !isHex(c) {
			return false
		}
	}
	return true
}

// publicSuffix returns the public suffix of a host whose last label is given, and whether that label
// is a public top-level domain. The simulated network and the documentation use .example.
func publicSuffix(host, last string) (suffix string, ok bool) {
	suffix, ok = publicsuffix.PublicSuffix(host)
	switch last {
	case "example":
		return suffix, true
	case "onion", "arpa": // on the list, but without public websites
		return suffix, false
	}
	if !ok && suffix == last { // not listed, or the parent of a private suffix
		_, ok = publicsuffix.PublicSuffix("a." + last)
		return suffix, ok
	}
	return suffix, true
}

// site returns the registrable domain of a host, without "www.".
func site(host string) string {
	suffix, _ := publicsuffix.PublicSuffix(host)
	return siteUnder(host, suffix)
}

// siteUnder is site for a host whose public suffix is known.
func siteUnder(host, suffix string) string {
	domain := host
	if host != suffix { // otherwise it is a public suffix itself, such as gov.uk
		domain = host[1+strings.LastIndexByte(host[:len(host)-len(suffix)-1], '.'):]
	}
	if rest := strings.TrimPrefix(domain, "www."); strings.Contains(rest, ".") {
		return rest
	}
	return domain
}

// domainOf returns the last two labels of a host, or three below co.uk and the like.
func domainOf(host string) string {
	last := strings.LastIndexByte(host, '.')
	middle := strings.LastIndexByte(host[:last], '.')
	if label := host[middle+1 : last]; middle > 0 && (label == "co" || label == "com") {
		middle = strings.LastIndexByte(host[:middle], '.')
	}
	return host[middle+1:]
}

// isUnder reports whether a host is a domain or one of its subdomains.
func isUnder(host, domain string) bool {
	rest, ok := strings.CutSuffix(host, domain)
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}
