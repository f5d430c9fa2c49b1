package nostr

import (
	"encoding/json"
	"slices"
)

// The kinds that Weir interprets.
const (
	KindProfile  = 0
	KindNote     = 1
	KindFollows  = 3
	KindDeletion = 5      // NIP-09
	KindRepost   = 6      // of a note, NIP-18
	KindReposts  = 16     // of an event of any other kind, NIP-18
	KindVanish   = 62     // NIP-62
	KindRelays   = 10_002 // NIP-65
	KindAuth     = 22242
)

// Republishes reports whether the event is a repost that has a protected event in it, which only its
// author may publish, see NIP-70.
func (e *Event) Republishes() bool {
	if e.Kind != KindRepost && e.Kind != KindReposts {
		return false
	}
	var reposted struct{ Tags [][]any }
	if json.Unmarshal([]byte(e.Content), &reposted) != nil {
		return false
	}
	return slices.ContainsFunc(reposted.Tags, func(tag []any) bool { return len(tag) > 0 && tag[0] == "-" })
}

// DeletedByID reports whether a deletion request may name an event of a kind by its id.
func DeletedByID(kind int) bool {
	return ClassOf(kind) == Regular && kind != KindDeletion && kind != KindVanish
}

// A Class says which events of a kind replace each other.
type Class uint8

const (
	Regular     Class = iota // none; also used for kinds that NIP-01 does not classify
	Replaceable              // the latest event of an author is valid
	Addressable              // the latest event of an author with the same d tag is valid
	Ephemeral                // relays do not store them
)

// ClassOf returns the class of a kind.
func ClassOf(kind int) Class {
	switch {
	case kind == KindProfile, kind == KindFollows, kind >= 10_000 && kind < 20_000:
		return Replaceable
	case kind >= 20_000 && kind < 30_000:
		return Ephemeral
	case kind >= 30_000 && kind < 40_000:
		return Addressable
	}
	return Regular
}
