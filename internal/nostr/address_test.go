package nostr_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

// TestNamesOfEventsAreRead reads names as NIP-19 specifies: parts with a type,
// a length and a value.
func TestNamesOfEventsAreRead(t *testing.T) {
	t.Parallel()
	id, author := [32]byte{1, 2, 3}, [32]byte{4, 5, 6}
	n, err := nostr.ParseName(nostr.Nevent(id, author, 1))
	require.NoError(t, err)
	require.Equal(t, nostr.Name{Prefix: "nevent", Key: id, Author: &author, Kind: 1}, n)
	prefix, data, err := nostr.DecodeBech32(nostr.Naddr("a title", author, 30023))
	require.NoError(t, err)
	require.Equal(t, "naddr", prefix)
	require.Equal(t, "\x00\x07a title\x02\x20"+string(author[:])+"\x03\x04\x00\x00\x75\x47", string(data))
	require.Empty(t, nostr.Naddr(strings.Repeat("x", 256), author, 30023))
}
