package nostr

import (
	"slices"

	"github.com/go-json-experiment/json"
)

// Follows returns the public keys that a follow list (kind 3) names, sorted, each once. It
// omits tags without a key.
func (e *Event) Follows() [][32]byte {
	keys := make([][32]byte, 0, len(e.Tags))
	for _, tag := range e.Tags {
		if len(tag) > 1 && tag[0] == "p" {
			if key, ok := ParseKey(tag[1]); ok {
				keys = append(keys, key)
			}
		}
	}
	slices.SortFunc(keys, func(a, b [32]byte) int { return slices.Compare(a[:], b[:]) })
	return slices.Compact(keys)
}

// WriteRelays returns the relays to which the author writes, according to a relay list (kind
// 10002, NIP-65), in order, limited to most.
func (e *Event) WriteRelays(most int) []string {
	var named []string
	for _, tag := range e.Tags {
		if len(tag) > 1 && tag[0] == "r" && (len(tag) < 3 || tag[2] == "" || tag[2] == "write") {
			named = append(named, tag[1])
		}
	}
	return firstRelays(named, most)
}

// A Profile is an author's description of themselves (kind 0). It is unchecked.
type Profile struct {
	Name    string // display name
	Picture string // address of the picture
	Name05  string // name by NIP-05, in canonical spelling; "": none, or invalid
}

// Profile reads a profile. Fields that are not texts count as missing. ok is false if the
// content is not a JSON object.
func (e *Event) Profile() (p Profile, ok bool) {
	var fields map[string]any
	if err := json.Unmarshal([]byte(e.Content), &fields); err != nil {
		return Profile{}, false
	}
	text := func(names ...string) string {
		for _, name := range names {
			if s, ok := fields[name].(string); ok && s != "" {
				return s
			}
		}
		return ""
	}
	p.Name, p.Picture = text("display_name", "displayName", "name"), text("picture")
	p.Name05, _ = ParseName05(text("nip05"))
	return p, true
}
