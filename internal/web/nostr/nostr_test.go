package nostr

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

const (
	noteAuthor = "did:nostr:84dee6e676e5bb67b4ad4e042cf70cbd8681155db535942fcc6a0533858a7240"
	noteNpub   = "npub1sn0wdenkukak0d9dfczzeacvhkrgz92ak56egt7vdgzn8pv2wfqqhrjdv9"
	noteID     = "3f1ab5b5a6a1c3b5c2e8d6f4a7b9c0d1e2f3041526374859606162738495a6b7"
)

// TestAddressesOfNostr shows that an event's link leads to a page that any browser can show.
func TestAddressesOfNostr(t *testing.T) {
	t.Parallel()
	npub, profile := account(noteAuthor)
	require.Equal(t, []string{noteNpub, "https://njump.me/" + noteNpub}, []string{npub, profile})
	for _, other := range []string{"did:plc:abc", "did:nostr:xyz", "alice.example", ""} {
		npub, profile := account(other)
		require.Empty(t, npub+profile, other)
	}
	nevent := strings.TrimPrefix(eventURL("at://"+noteAuthor+"/nostr.1/"+noteID), nostrBase)
	name, err := nostr.ParseName(nevent)
	require.NoError(t, err)
	require.Equal(t, []any{"nevent", noteID, strings.TrimPrefix(noteAuthor, nostr.DIDPrefix), 1}, []any{
		name.Prefix, hex.EncodeToString(name.Key[:]), hex.EncodeToString(name.Author[:]), name.Kind,
	})
	require.True(t, strings.HasPrefix(eventURL("at://"+noteAuthor+"/nostr.30023/a title/with: <signs>"), nostrBase+"naddr1"))
	for uri, want := range map[string]string{
		"at://" + noteAuthor + "/nostr.0/self":           nostrBase + noteNpub,
		"at://" + noteAuthor + "/nostr.30023/#" + noteID: nostrBase + noteNpub,
		"at://" + noteAuthor + "/nostr.1/../../x":        nostrBase + noteNpub,
		"at://" + noteAuthor + "/nostr.70000/x":          "",
		"at://" + noteAuthor + "/app.bsky.feed.post/3k":  "",
		"at://did:nostr:xyz/nostr.1/" + noteID:           "",
		"at://did:plc:abc/nostr.1/" + noteID:             "",
	} {
		require.Equal(t, want, eventURL(uri), uri)
	}
}
