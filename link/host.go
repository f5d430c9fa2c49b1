package link

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"
)

// splitAuthority gives the host and the port, in normal form.
func splitAuthority(authority, scheme string) (host, port string, err error) {
	if strings.IndexByte(authority, '@') >= 0 {
		return "", "", errors.New("URL holds a user name")
	}
	if strings.HasPrefix(authority, "[") {
		return "", "", errors.New("host is an IP address")
	}
	host, port, _ = strings.Cut(authority, ":")
	if host == "" {
		return "", "", errors.New("host is empty")
	}
	if port, err = normalPort(port, scheme); err != nil {
		return "", "", err
	}
	if host, err = normalHost(host); err != nil {
		return "", "", err
	}
	return host, port, nil
}

func normalPort(port, scheme string) (string, error) {
	if port == "" {
		return "", nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", errors.New("port is no number from 1 to 65535")
	}
	if n == 443 && scheme == "https" || n == 80 && scheme == "http" {
		return "", nil
	}
	return strconv.FormatUint(n, 10), nil
}

// maxRawHost bounds the work of writing a host in ASCII, which makes it shorter
// than a quarter at most.
const maxRawHost = 4 * 253

// normalHost gives a host that strangers can reach by name: lower-case ASCII,
// under a top-level domain of the public internet.
func normalHost(host string) (string, error) {
	if len(host) > maxRawHost {
		return "", errors.New("host is longer than 253 bytes")
	}
	host, err := asciiHost(host)
	if err != nil {
		return "", err
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" {
		return "", errors.New("host is empty")
	}
	if len(host) > 253 {
		return "", errors.New("host is longer than 253 bytes")
	}
	for label := range strings.SplitSeq(host, ".") {
		if label == "" || len(label) > 63 {
			return "", errors.New("host has a label that is empty or longer than 63 bytes")
		}
		for i := range len(label) {
			if !hostCharacter(label[i]) {
				return "", fmt.Errorf("host holds the character %q", label[i])
			}
		}
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	switch {
	case numeric(last):
		return "", errors.New("host is an IP address")
	case len(last) == len(host):
		return "", errors.New("host has no dot")
	case !topLevel(last):
		return "", fmt.Errorf("host ends in %q, which is no public top-level domain", last)
	}
	return host, nil
}

// asciiHost lowers a host, and writes one with letters beyond ASCII in Punycode.
// Plain ASCII is not put through the strict rules: hosts with an underscore or
// with odd hyphens exist and are shared.
func asciiHost(host string) (string, error) {
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
		return "", fmt.Errorf("write host in ASCII: %w", err)
	}
	return out, nil
}

func hostCharacter(c byte) bool {
	return 'a' <= c && c <= 'z' || '0' <= c && c <= '9' || c == '-' || c == '_'
}

// numeric labels at a host's end make browsers read the whole as an IPv4
// address, in any of its spellings (0x7f.1, 2130706433).
func numeric(label string) bool {
	digits, hex := strings.CutPrefix(label, "0x")
	for i := range len(digits) {
		if c := digits[i]; c < '0' || c > '9' && !hex || hex && !isHex(c) {
			return false
		}
	}
	return true
}

// topLevel says whether names under a top-level domain can be reached by
// everybody. The ending .example is the simulated network's, and documentation's.
func topLevel(tld string) bool {
	switch tld {
	case "example":
		return true
	case "onion", "arpa": // on the list, but not reached by name
		return false
	}
	// Some domains are on the list only for what lies below them ("*.ck").
	_, icann := publicsuffix.PublicSuffix("a." + tld)
	return icann
}

// site is what a host is known by: its registrable domain, without "www.".
func site(host string) string {
	domain, err := publicsuffix.EffectiveTLDPlusOne(host)
	if err != nil { // the host is a public suffix itself, such as gov.uk
		domain = host
	}
	if rest := strings.TrimPrefix(domain, "www."); strings.Contains(rest, ".") {
		return rest
	}
	return domain
}

// isUnder says whether a host is a domain or lies below it.
func isUnder(host, domain string) bool {
	rest, ok := strings.CutSuffix(host, domain)
	return ok && (rest == "" || strings.HasSuffix(rest, "."))
}
