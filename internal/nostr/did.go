package nostr

import (
	"encoding/hex"
	"strings"
)

// DIDPrefix is the prefix of the DIDs of all Nostr accounts.
const DIDPrefix = "did:nostr:"

// DID returns the account of a public key.
func DID(key [32]byte) string { return DIDPrefix + hex.EncodeToString(key[:]) }

// ParseDID returns the public key of an account. It returns false if the account is
// of another network.
func ParseDID(did string) (key [32]byte, ok bool) {
	rest, ok := strings.CutPrefix(did, DIDPrefix)
	if !ok {
		return key, false
	}
	return ParseKey(rest)
}
