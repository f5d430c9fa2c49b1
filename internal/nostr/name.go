package nostr

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// A Name is the content of a NIP-19 text: a public key (npub, nprofile) or an event
// (note, nevent).
type Name struct {
	Prefix string
	Key    [32]byte  // the public key, or the id of the event
	Relays []string  // relays that may have it; may be empty
	Author *[32]byte // of an event; nil: not given
	Kind   int       // of an event; -1: not given
}

// ErrSecret means that a text is a secret key. Messages must not contain it.
var ErrSecret = errors.New(
	"this is a secret key (nsec), which Weir never needs: name the public key (npub), and consider this one stolen if others may have seen it")

// The types of the parts of nprofile and nevent.
const (
	partSpecial = 0
	partRelay   = 1
	partAuthor  = 2
	partKind    = 3
)

// ParseName parses npub, nprofile, note and nevent, with or without the nostr: prefix
// of NIP-21. Its errors do not contain the text, which may be a mistyped secret key.
func ParseName(s string) (Name, error) {
	s = strings.TrimPrefix(strings.TrimSpace(s), "nostr:")
	if strings.HasPrefix(strings.ToLower(s), "nsec") {
		return Name{}, ErrSecret
	}
	prefix, data, err := decodeBech32(s)
	if err != nil {
		return Name{}, err
	}
	n := Name{Prefix: prefix, Kind: -1}
	switch prefix {
	case "npub", "note":
		if len(data) != len(n.Key) {
			return Name{}, fmt.Errorf("%s has %d bytes: expected %d", prefix, len(data), len(n.Key))
		}
		n.Key = [32]byte(data)
		return n, nil
	case "nprofile", "nevent":
		return n, n.parts(data)
	}
	return Name{}, errors.New("not a name of NIP-19: expected npub, nprofile, note or nevent")
}

// parts reads the parts of nprofile and nevent. Unknown parts are ignored.
func (n *Name) parts(data []byte) error {
	found := false
	for len(data) > 0 {
		if len(data) < 2 || len(data) < 2+int(data[1]) {
			return fmt.Errorf("%s is cut off", n.Prefix)
		}
		kind, value := data[0], data[2:2+int(data[1])]
		data = data[2+len(value):]
		switch {
		case kind == partSpecial && len(value) == len(n.Key) && !found:
			n.Key, found = [32]byte(value), true
		case kind == partSpecial:
			return fmt.Errorf("%s names none or two of what it names", n.Prefix)
		case kind == partRelay:
			n.Relays = append(n.Relays, string(value))
		case kind == partAuthor && n.Prefix == "nevent" && len(value) == len(n.Key):
			n.Author = (*[32]byte)(value)
		case kind == partKind && n.Prefix == "nevent" && len(value) == 4:
			n.Kind = int(binary.BigEndian.Uint32(value))
		}
	}
	if !found {
		return fmt.Errorf("%s names nothing", n.Prefix)
	}
	return nil
}

// Npub returns the npub of a public key.
func Npub(key [32]byte) string { return encodeBech32("npub", key[:]) }

// ParseSecret parses a secret key: 64 hexadecimal digits. The error does not contain
// it.
func ParseSecret(s string) ([32]byte, error) {
	key, ok := ParseKey(strings.ToLower(s))
	if !ok || key == ([32]byte{}) {
		return key, errors.New("not a secret key: expected 64 hexadecimal digits")
	}
	return key, nil
}
