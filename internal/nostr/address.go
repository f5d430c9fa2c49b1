package nostr

import "encoding/binary"

// Nevent returns the nevent of an event. It contains the author and kind, so that a
// client finds the event without the name of a relay.
func Nevent(id, author [32]byte, kind int) string {
	return encodeBech32("nevent", located(id[:], author, kind))
}

// Naddr returns the naddr of the events of an author and a kind that have the same d tag.
// It returns "" if the tag is longer than 255 bytes, which does not fit into an naddr.
func Naddr(d string, author [32]byte, kind int) string {
	if len(d) > 255 {
		return ""
	}
	return encodeBech32("naddr", located([]byte(d), author, kind))
}

// located returns the parts of a name: the named thing, the author and the kind.
func located(what []byte, author [32]byte, kind int) []byte {
	data := append([]byte{partSpecial, byte(len(what))}, what...) // 255 bytes at most
	data = append(append(data, partAuthor, byte(len(author))), author[:]...)
	return binary.BigEndian.AppendUint32(append(data, partKind, 4), uint32(kind)) // at most 65535
}
