package web

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOnlyAValidBlobIsShown(t *testing.T) {
	t.Parallel()
	cdn, err := parseImages([]Part{{Images: "https://cdn.bsky.app/img/feed_thumbnail/plain/{did}/{cid}@jpeg"}})
	require.NoError(t, err)
	require.Equal(t, " https://cdn.bsky.app", cdn.source())
	require.Equal(t, "https://cdn.bsky.app/img/feed_thumbnail/plain/did:plc:abc/bafkreiabcdefgh@jpeg",
		cdn.Image("blob:did:plc:abc/bafkreiabcdefgh"))
	require.Equal(t, "https://cdn.bsky.app/img/feed_thumbnail/plain/did:web:a.example%253A80/bafkreiabcdefgh@jpeg",
		cdn.Image("blob:did:web:a.example%3A80/bafkreiabcdefgh"))
	for _, stored := range []string{
		"", "blob:", "blob:did:plc:abc", "blob:did:plc:abc/", "blob:/bafkreiabcdefgh", "did:plc:abc/bafkreiabcdefgh",
		"https://evil.example/x.png",
		"blob:did:plc:abc/../../x", "blob:did:plc:abc/bafkreiabcdefgh/../x", "blob:did:plc:abc/bafkrei?x=1#abc",
		"blob:did:plc:a/b/bafkreiabcdefgh",
		"blob:did:plc:{cid}/bafkreiabcdefgh", "blob:alice.example/bafkreiabcdefgh", `blob:did:plc:abc/bafkrei"onerror="x`,
	} {
		require.Empty(t, cdn.Image(stored), stored)
	}
	none, err := parseImages([]Part{{Images: ""}})
	require.NoError(t, err)
	require.Empty(t, none.Image("blob:did:plc:abc/bafkreiabcdefgh"))
	require.Empty(t, none.source())
}

func TestImageBaseMustHaveAFixedHost(t *testing.T) {
	t.Parallel()
	local, err := parseImages([]Part{{Images: "http://127.0.0.1:1234/blob/{did}/{cid}"}})
	require.NoError(t, err)
	require.Equal(t, " http://127.0.0.1:1234", local.source())
	for _, base := range []string{
		"https://cdn.example/", "https://cdn.example/{did}", "https://cdn.example/{did}/{cid}/{cid}", "https://{did}/{cid}",
		"https://{did}.example/{cid}",
		"/img/{did}/{cid}", "data:{did}{cid}", "ftp://cdn.example/{did}/{cid}", "https://a;script-src.example/{did}/{cid}",
		"https://user:pw@cdn.example/{did}/{cid}",
		"https:///{did}/{cid}", "https://*.example/{did}/{cid}", "http://[::1]:80/{did}/{cid}",
	} {
		_, err := parseImages([]Part{{Images: base}})
		require.Error(t, err, base)
	}
}
