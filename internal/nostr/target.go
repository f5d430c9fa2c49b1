package nostr

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// A Target is an account that a user names: by its key, or by a name of NIP-05.
type Target struct {
	Key    [32]byte // zero if Name is set
	Name   string   // such as alice@example.com or _@example.com, in lower case; "": the key is known
	Relays []string // relays that may have it, from an nprofile; at most MaxHints; may be empty
}

// ErrAmbiguous means that a text may be a public or a secret key. Messages must not contain
// it.
var ErrAmbiguous = errors.New("64 hexadecimal digits may be a secret key: name the account as npub1… instead")

// MaxHints is how many of the relays that a user names for an account are used.
const MaxHints = 5

// secretText finds a secret key anywhere in a text, even with a few wrong or missing
// characters.
var secretText = regexp.MustCompile(`(?i)nsec1[0-9a-z]{20}`)

// ContainsSecret reports whether a text contains a secret key, or something that may be one.
func ContainsSecret(s string) bool { return secretText.MatchString(visible(s)) }

// visible removes zero-width characters, which are copied along with a text.
func visible(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Cf, r) {
			return -1
		}
		return r
	}, s)
}

// ParseTarget parses npub, nprofile, did:nostr: and name@domain. ok is false if the text is
// none of these; then it may name an account of another network. Errors never contain the
// text.
func ParseTarget(s string) (t Target, ok bool, err error) {
	s = strings.TrimSpace(visible(s))
	if ContainsSecret(s) {
		return Target{}, true, ErrSecret
	}
	lower := strings.ToLower(s)
	bare := strings.TrimPrefix(lower, "nostr:")
	if _, isKey := ParseKey(bare); isKey {
		return Target{}, true, ErrAmbiguous
	}
	if strings.HasPrefix(lower, DIDPrefix) {
		key, ok := ParseDID(lower)
		if !ok {
			return Target{}, true, fmt.Errorf("%s is followed by the 64 hexadecimal digits of a public key", DIDPrefix)
		}
		return Target{Key: key}, true, nil
	}
	for _, prefix := range []string{"nsec", "npub1", "nprofile1", "note1", "nevent1", "naddr1"} {
		if strings.HasPrefix(bare, prefix) && !strings.Contains(bare, ".") {
			t, err := targetOf(s[len(s)-len(bare):])
			return t, true, err
		}
	}
	if strings.HasPrefix(lower, "nostr:") {
		return Target{}, true, errors.New("not an account of Nostr: expected npub1… or nprofile1…")
	}
	if name, ok := parseName05(lower); ok {
		return Target{Name: name}, true, nil
	}
	return Target{}, false, nil
}

// targetOf parses a name of NIP-19.
func targetOf(s string) (Target, error) {
	n, err := ParseName(s)
	switch {
	case err != nil:
		return Target{}, err
	case n.Prefix != "npub" && n.Prefix != "nprofile":
		return Target{}, fmt.Errorf("%s names an event: expected an account, npub1… or nprofile1…", n.Prefix)
	}
	return Target{Key: n.Key, Relays: firstRelays(n.Relays, MaxHints)}, nil
}

var name05 = regexp.MustCompile(`^([a-z0-9._-]{1,64})@((?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z][a-z0-9-]{0,61}[a-z0-9])$`)

// parseName05 parses name@domain. The domain must be a name with a dot, not an address,
// without a port.
func parseName05(s string) (string, bool) {
	if len(s) > 64+1+253 || !name05.MatchString(s) {
		return "", false
	}
	return s, true
}

// ParseName05 parses a NIP-05 name in the form used in profiles: name@domain, or the domain
// alone. ok is false if it is neither.
func ParseName05(s string) (name string, ok bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	if !strings.Contains(s, "@") {
		s = "_@" + s
	}
	return parseName05(s)
}

// ParseRelay parses the address of a relay, which strangers may have written, and returns its
// canonical spelling. It returns false if the address is invalid.
func ParseRelay(s string) (string, bool) {
	const longest = 256
	s = strings.TrimSpace(s)
	if len(s) > longest {
		return "", false
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "wss" && u.Scheme != "ws" || u.Hostname() == "" || u.User != nil || u.Fragment != "" {
		return "", false
	}
	u.Host = strings.ToLower(u.Host)
	u.Path = strings.TrimRight(u.Path, "/")
	if port := u.Port(); u.Scheme == "wss" && port == "443" || u.Scheme == "ws" && port == "80" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return u.String(), true
}

// firstRelays returns the first valid addresses, each once, limited to most.
func firstRelays(all []string, most int) []string {
	var valid []string
	for _, s := range all {
		if relay, ok := ParseRelay(s); ok && !slices.Contains(valid, relay) && len(valid) < most {
			valid = append(valid, relay)
		}
	}
	return valid
}
