// Package syntax checks the identifiers of the network, because events and records come
// from strangers. Its functions return the same results as indigo's, but check common
// values without regular expressions.
package syntax

import (
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// IsDID reports whether s is a DID.
func IsDID(s string) bool {
	rest, ok := strings.CutPrefix(s, "did:")
	if !ok || len(s) > 2048 {
		return false
	}
	method, id, ok := strings.Cut(rest, ":")
	if !ok || method == "" || id == "" {
		return false
	}
	for i := range len(method) {
		if method[i] < 'a' || method[i] > 'z' {
			return false
		}
	}
	for i := range len(id) {
		switch c := id[i]; {
		case isAlphanumeric(c), c == '.', c == '_', c == '-':
		case (c == ':' || c == '%') && i < len(id)-1:
		default:
			return false
		}
	}
	return true
}

// IsHandle reports whether s is a handle.
func IsHandle(s string) bool {
	if len(s) > 253 {
		return false
	}
	dots, start := 0, 0
	for i := 0; i <= len(s); i++ {
		if i < len(s) && s[i] != '.' {
			if !isAlphanumeric(s[i]) && s[i] != '-' {
				return false
			}
			continue
		}
		if i == start || i-start > 63 || s[start] == '-' || s[i-1] == '-' {
			return false
		}
		if i < len(s) {
			dots, start = dots+1, i+1
		}
	}
	return dots > 0 && (s[start] < '0' || s[start] > '9')
}

// IsAtIdentifier reports whether s is a DID or a handle.
func IsAtIdentifier(s string) bool {
	if strings.HasPrefix(s, "did:") {
		return IsDID(s)
	}
	return IsHandle(s)
}

// ParseTime parses a time in the network's format, or in the looser formats that it
// tolerates. It returns false if s is not a time.
func ParseTime(s string) (time.Time, bool) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		lenient, err := syntax.ParseDatetimeLenient(s[:min(len(s), 65)])
		if err != nil {
			return t, false
		}
		t = lenient.Time()
	}
	return t.UTC(), true
}

// IsTID reports whether s is a TID, as revisions are.
func IsTID(s string) bool {
	if len(s) != 13 || s[0] > 'j' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '2' || c > '7') {
			return false
		}
	}
	return true
}

// IsRecordKey reports whether s is the key of a record.
func IsRecordKey(s string) bool {
	if len(s) == 0 || len(s) > 512 {
		return false
	}
	for i := range len(s) {
		if !isAlphanumeric(s[i]) {
			_, err := syntax.ParseRecordKey(s)
			return err == nil
		}
	}
	return true
}

// IsNSID reports whether s is an NSID, the name of a collection.
func IsNSID(s string) bool {
	if usualNSID(s) {
		return true
	}
	_, err := syntax.ParseNSID(s)
	return err == nil
}

// usualNSID reports whether s is an NSID of three or more short alphabetic parts.
// It reads each byte once. Other NSIDs may exist.
func usualNSID(s string) bool {
	if len(s) > 253 {
		return false
	}
	dots, part := 0, 0
	for i := range len(s) {
		switch c := s[i] | 0x20; {
		case s[i] == '.':
			if part == 0 || part > 63 {
				return false
			}
			dots, part = dots+1, 0
		case c >= 'a' && c <= 'z':
			part++
		default:
			return false
		}
	}
	return dots >= 2 && part > 0 && part <= 63
}

// IsCID reports whether s is the text of a CID.
func IsCID(s string) bool {
	if len(s) < 8 || len(s) > 256 || strings.HasPrefix(s, "Qmb") { // a CID of version 0
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isAlphanumeric(c) && c != '+' && c != '=' {
			return false
		}
	}
	return true
}

func isAlphanumeric(c byte) bool {
	return c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}
