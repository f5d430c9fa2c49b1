package link

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// nevent returns the bech32 name (NIP-19) of an event, with its author if there is one.
func nevent(id [32]byte, author *[32]byte) string {
	const alphabet = "qpzry9x8gf2tvdw0s3jn54khce6mua7l"
	data := append([]byte{0, 32}, id[:]...)
	if author != nil {
		data = append(append(data, 2, 32), author[:]...)
	}
	var groups []byte
	bits, n := 0, 0
	for _, b := range data {
		bits, n = bits<<8|int(b), n+8
		for ; n >= 5; n -= 5 {
			groups = append(groups, byte(bits>>(n-5)&31))
		}
		bits &= 1<<n - 1
	}
	if n > 0 {
		groups = append(groups, byte(bits<<(5-n)&31))
	}
	sum := uint32(1)
	step := func(v byte) {
		top := sum >> 25
		sum = sum&0x1ffffff<<5 ^ uint32(v)
		for i, g := range []uint32{0x3b6a57b2, 0x26508e6d, 0x1ea119fa, 0x3d4233dd, 0x2a1462b3} {
			if top>>i&1 == 1 {
				sum ^= g
			}
		}
	}
	const prefix = "nevent"
	for _, c := range []byte(prefix) {
		step(c >> 5)
	}
	step(0)
	for _, c := range []byte(prefix) {
		step(c & 31)
	}
	for _, v := range groups {
		step(v)
	}
	for range 6 {
		step(0)
	}
	sum ^= 1
	text := prefix + "1"
	for _, v := range groups {
		text += string(alphabet[v])
	}
	for i := range 6 {
		text += string(alphabet[sum>>(5*(5-i))&31])
	}
	return text
}

// TestOriginalsOfCopies shows that a proxy tag may name any network, and that one that names no
// record names no original.
func TestOriginalsOfCopies(t *testing.T) {
	t.Parallel()
	post := Subject{CollectionPost, "did:plc:x", "3k"}
	for id, want := range map[string]Subject{
		"at://did:plc:x/app.bsky.feed.post/3k":                                            post,
		"at://did:plc:x/app.bsky.feed.repost/3k":                                          {CollectionRepost, "did:plc:x", "3k"},
		"https://bsky.brid.gy/convert/ap/at://did:plc:x/app.bsky.feed.post/3k":            post,
		"https://bsky.brid.gy/convert/ap/at:/did:plc:x/app.bsky.feed.post/3k":             post,
		"https://bsky.brid.gy/convert/ap/at%3A%2F%2Fdid:plc:x%2Fapp.bsky.feed.post/3k":    post,
		"https://bsky.app/profile/did:plc:x/post/3k":                                      post,
		"https://bsky.app/profile/alice.example/post/3k":                                  {},
		"https://bsky.app/profile/did:plc:x/feed/3k":                                      {},
		"https://mastodon.example/at://did:plc:x/app.bsky.feed.post/3k":                   {},
		"https://evil-brid.gy/at://did:plc:x/app.bsky.feed.post/3k":                       {},
		"at://alice.example/app.bsky.feed.post/3k":                                        {},
		"at://did:plc:x/app.bsky.feed.like/3k":                                            {},
		"https://mastodon.example/@alice/1":                                               {},
		"https://bsky.brid.gy/" + strings.Repeat("x", MaxBytes) + "/at://did:plc:x/a.b/1": {},
		"\x00": {}, "": {},
	} {
		got, err := InNote(eventOf(t, "x", []string{"proxy"}, []string{"proxy", "https://feed.example/1", "rss"},
			[]string{"proxy", id, "atproto"}))
		require.NoError(t, err)
		require.Equal(t, want, got.Original, id)
		_, original, err := InEventRepost(CollectionNoteRepost, eventOf(t, "", []string{"proxy", id, "activitypub"}))
		require.NoError(t, err)
		require.Equal(t, want, original, id)
	}

	author := [32]byte{1}
	named := Subject{CollectionNote, "did:nostr:" + hexOf(author), hexOf([32]byte{2})}
	for address, want := range map[string]Subject{
		"nostr:" + nevent([32]byte{2}, &author):                  named,
		"https://njump.me/" + nevent([32]byte{2}, &author):       named,
		"https://njump.me/" + nevent([32]byte{2}, nil):           {},
		"https://njump.me/x" + nevent([32]byte{2}, &author):      {},
		"https://mastodon.example/@alice/1":                      {},
		"https://njump.me/" + nevent([32]byte{2}, &author) + "q": {},
	} {
		raw, err := json.Marshal(map[string]any{"text": "x", "bridgyOriginalUrl": address})
		require.NoError(t, err)
		got, err := InPost("did:plc:x", raw)
		require.NoError(t, err)
		require.Equal(t, want, got.Original, address)
		quote, err := InNote(eventOf(t, "see nostr:"+nevent([32]byte{2}, &author)+".", []string{"q", hexOf([32]byte{2})}))
		require.NoError(t, err)
		require.Equal(t, named, quote.Quoted, "the reference must name the author")
	}
}
