package nostr_test

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

// The examples of NIP-19.
const (
	npub     = "npub10elfcs4fr0l0r8af98jlmgdh9c8tcxjvz9qkw038js35mp4dma8qzvjptg"
	npubKey  = "7e7e9c42a91bfef19fa929e5fda1b72e0ebc1a4c1141673e2794234d86addf4e"
	nprofile = "nprofile1qqsrhuxx8l9ex335q7he0f09aej04zpazpl0ne2cgukyawd24mayt8gpp4mhxue69uhhytnc9e3k7mgpz4mhxue69uhkg6nzv9ejuumpv34kytnrda" +
		"ksjlyr9p"
	profile = "3bf0c63fcb93463407af97a5e5ee64fa883d107ef9e558472c4eb9aaaefa459d"
	nsec    = "nsec1vl029mgpspedva04g90vltkh6fvh240zqtv9k0t9af8935ke9laqsnlfe5"
)

func TestParseName(t *testing.T) {
	t.Parallel()
	n, err := nostr.ParseName("nostr:" + npub)
	require.NoError(t, err)
	require.Equal(t, nostr.Name{Prefix: "npub", Key: bytes32(t, npubKey), Kind: -1}, n)
	require.Equal(t, npub, nostr.Npub(n.Key))
	upper, err := nostr.ParseName(strings.ToUpper(npub))
	require.NoError(t, err)
	require.Equal(t, n, upper)

	n, err = nostr.ParseName(nprofile)
	require.NoError(t, err)
	require.Equal(t, nostr.Name{
		Prefix: "nprofile", Key: bytes32(t, profile), Relays: []string{"wss://r.x.com", "wss://djbas.sadkb.com"}, Kind: -1,
	}, n)

	id := strings.Repeat("ab", 32)
	n, err = nostr.ParseName(nostr.EncodeBech32("nevent", unhex(t, "0020"+id+"01026869"+"0220"+npubKey+"030400007530"+"0901ff")))
	require.NoError(t, err)
	author := bytes32(t, npubKey)
	require.Equal(t, nostr.Name{Prefix: "nevent", Key: bytes32(t, id), Relays: []string{"hi"}, Author: &author, Kind: 30000}, n)
	n, err = nostr.ParseName(nostr.EncodeBech32("note", unhex(t, id)))
	require.NoError(t, err)
	require.Equal(t, nostr.Name{Prefix: "note", Key: bytes32(t, id), Kind: -1}, n)
}

func unhex(t *testing.T, digits string) []byte {
	t.Helper()
	b, err := hex.DecodeString(digits)
	require.NoError(t, err)
	return b
}

// TestSecretKeyIsNeverQuoted checks that no error contains a secret key, valid or not:
// errors are logged.
func TestSecretKeyIsNeverQuoted(t *testing.T) {
	t.Parallel()
	for _, s := range []string{nsec, "nostr:" + nsec, strings.ToUpper(nsec), nsec + "x", " " + nsec} {
		_, err := nostr.ParseName(s)
		require.ErrorIs(t, err, nostr.ErrSecret)
		require.NotContains(t, strings.ToLower(err.Error()), nsec[5:20])
	}
	_, err := nostr.ParseName("xsec" + nsec[4:])
	require.Error(t, err)
	require.NotContains(t, err.Error(), nsec[5:20])
}

func TestParseNameRefuses(t *testing.T) {
	t.Parallel()
	key := strings.Repeat("ab", 32)
	for name, s := range map[string]string{
		"checksum":         npub[:len(npub)-1] + "q",
		"mixed case":       strings.Replace(npub, "elfcs", "ELFCS", 1),
		"digit":            strings.Replace(npub, "elfcs", "elfbs", 1),
		"no separator":     "npub",
		"unknown":          nostr.EncodeBech32("naddr", unhex(t, "0020"+key)),
		"short key":        nostr.EncodeBech32("npub", unhex(t, key[2:])),
		"nothing":          nostr.EncodeBech32("nprofile", nil),
		"two keys":         nostr.EncodeBech32("nprofile", unhex(t, "0020"+key+"0020"+key)),
		"cut off":          nostr.EncodeBech32("nprofile", unhex(t, "0020"+key+"0105aa")),
		"longer than 5000": nostr.EncodeBech32("nprofile", append(unhex(t, "0020"+key), []byte(strings.Repeat("\x01\x01a", 1100))...)),
	} {
		_, err := nostr.ParseName(s)
		require.Error(t, err, name)
	}
	long := nostr.EncodeBech32("nprofile", append(unhex(t, "0020"+key), []byte(strings.Repeat("\x01\x01a", 900))...))
	require.Greater(t, len(long), 4000)
	n, err := nostr.ParseName(long)
	require.NoError(t, err, "bech32's own limit of 90 characters does not apply")
	require.Len(t, n.Relays, 900)
}

// FuzzBech32 checks that a text that is decoded is the only text of its bytes.
func FuzzBech32(f *testing.F) {
	f.Add(npub)
	f.Add(nprofile)
	f.Add("a1qqqqqqq")
	f.Fuzz(func(t *testing.T, s string) {
		_, _ = nostr.ParseName(s)
		prefix, data, err := nostr.DecodeBech32(s)
		if err == nil {
			require.Equal(t, strings.ToLower(s), nostr.EncodeBech32(prefix, data))
		}
	})
}
