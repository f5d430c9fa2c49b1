package nostr

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// A Record is the name under which Weir stores an event: its account, collection and
// key.
type Record struct{ DID, Collection, Key string }

// Prefix begins the collection of every kind.
const Prefix = "nostr."

const (
	replaced   = "self" // the key of an author's only record of a replaceable kind
	maxKey     = 512    // bytes of a key, as in repositories
	hashedKeys = "#"    // begins keys that are hashes
)

// AnyKind stands for the collection of an event that a deletion request names by its id only.
const AnyKind = Prefix + "*"

// Collection returns the collection of a kind.
func Collection(kind int) string { return Prefix + strconv.Itoa(kind) }

// Record returns the name of an event.
func (e *Event) Record() Record {
	r := Record{DID: DID(e.PubKey), Collection: Collection(e.Kind)}
	switch ClassOf(e.Kind) {
	case Replaceable:
		r.Key = replaced
	case Addressable:
		d, _ := e.Tag("d")
		r.Key = addressKey(d)
	default:
		r.Key = hex.EncodeToString(e.ID[:])
	}
	return r
}

// ParseAddress parses the address of replaceable events: kind:author:d. It returns false
// for any other text.
func ParseAddress(s string) (kind int, r Record, ok bool) {
	parts := strings.SplitN(s, ":", 3)
	if len(parts) != 3 {
		return 0, r, false
	}
	author, ok := ParseKey(parts[1])
	kind, err := strconv.Atoi(parts[0])
	if !ok || err != nil || kind < 0 || kind > MaxKind {
		return 0, r, false
	}
	r = Record{DID: DID(author), Collection: Collection(kind)}
	switch ClassOf(kind) {
	case Replaceable:
		r.Key = replaced
		return kind, r, parts[2] == ""
	case Addressable:
		r.Key = addressKey(parts[2])
		return kind, r, true
	}
	return 0, r, false
}

// addressKey returns the key for a d tag: the tag itself or, if it is not a valid key,
// its hash.
func addressKey(d string) string {
	if d == "" || strings.HasPrefix(d, hashedKeys) || len(d) > maxKey || strings.Contains(d, "\x00") {
		return fmt.Sprintf(hashedKeys+"%x", sha256.Sum256([]byte(d)))
	}
	return d
}
