package syntax

import (
	"strings"
	"time"

	"github.com/bluesky-social/indigo/atproto/syntax"
)

// IsATURI reports whether s is an at-uri: an account, optionally a collection of it,
// and optionally a record in that; or a space of an account, and optionally a part of it.
func IsATURI(s string) bool {
	authority, path, ok := cutATURI(s)
	if !ok || !IsAtIdentifier(authority) {
		return false
	}
	if path == nil {
		return true
	}
	if space, ok := strings.CutPrefix(*path, "space/"); ok {
		return IsDID(authority) && isSpace(strings.Split(space, "/"))
	}
	collection, key, hasKey := strings.Cut(*path, "/")
	return IsNSID(collection) && (!hasKey || IsRecordKey(key))
}

// isSpace reports whether these are the type and the key of a space (proposal 0016), with at most an
// author, a collection and a record of it.
func isSpace(parts []string) bool {
	valid := []func(string) bool{IsNSID, IsRecordKey, IsDID, IsNSID, IsRecordKey}
	if len(parts) < 2 || len(parts) > len(valid) {
		return false
	}
	for i, part := range parts {
		if !valid[i](part) {
			return false
		}
	}
	return true
}

// cutATURI returns the parts before and after the first slash. path is nil without a
// slash.
func cutATURI(s string) (authority string, path *string, ok bool) {
	rest, ok := strings.CutPrefix(s, "at://")
	if !ok || len(s) > 8192 {
		return "", nil, false
	}
	authority, behind, slash := strings.Cut(rest, "/")
	if slash {
		path = &behind
	}
	return authority, path, true
}

// RecordOf returns the record that an at-uri names. It returns false if the at-uri
// names none, because it has a handle instead of a DID, no collection or no key.
func RecordOf(uri string) (did, collection, key string, ok bool) {
	authority, path, ok := cutATURI(uri)
	if !ok || path == nil || !IsDID(authority) {
		return "", "", "", false
	}
	collection, key, ok = strings.Cut(*path, "/")
	if !ok || !IsNSID(collection) || !IsRecordKey(key) {
		return "", "", "", false
	}
	return authority, collection, key, true
}

// IsURI reports whether s is a URI of any scheme, in the network's loose sense.
func IsURI(s string) bool {
	if len(s) > 8192 {
		return false
	}
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || rest == "" || len(scheme) == 0 || len(scheme) > 81 || scheme[0] < 'a' || scheme[0] > 'z' {
		return false
	}
	for i := range len(scheme) {
		if c := scheme[i]; (c < 'a' || c > 'z') && c != '.' && c != '-' {
			return false
		}
	}
	for i := range len(rest) {
		if rest[i] <= ' ' || rest[i] > '~' {
			return false
		}
	}
	return true
}

// IsLanguage reports whether s is a language tag.
func IsLanguage(s string) bool {
	_, err := syntax.ParseLanguage(s)
	return err == nil
}

// IsDatetime reports whether s is a time in the network's format, with its time zone.
// It refuses a comma before the fraction, which the library accepts, because RFC 3339
// has none.
func IsDatetime(s string) bool {
	if usualDatetime(s) {
		return true
	}
	if strings.Contains(s, ",") {
		return false
	}
	_, err := syntax.ParseDatetime(s)
	return err == nil
}

// usualDatetime reports whether s is a UTC time ending in Z, on one of the first 28
// days of its month. Other times may be valid.
func usualDatetime(s string) bool {
	const layout = "0000-00-00T00:00:00"
	if len(s) < len(layout)+1 || len(s) > 40 || s[len(s)-1] != 'Z' {
		return false
	}
	for i := range len(layout) {
		if layout[i] == '0' && (s[i] < '0' || s[i] > '9') || layout[i] != '0' && s[i] != layout[i] {
			return false
		}
	}
	fraction := s[len(layout) : len(s)-1]
	if len(fraction) == 1 || fraction != "" && fraction[0] != '.' {
		return false
	}
	for i := 1; i < len(fraction); i++ {
		if fraction[i] < '0' || fraction[i] > '9' {
			return false
		}
	}
	number := func(at int) int { return int(s[at]-'0')*10 + int(s[at+1]-'0') }
	month, day := time.Month(number(5)), number(8)
	return month >= 1 && month <= 12 && day >= 1 && day <= 28 &&
		number(11) <= 23 && number(14) <= 59 && number(17) <= 59
}
