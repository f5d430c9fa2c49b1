package link

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSubjectsAreAddressesOfPosts shows that reposts and quotes, which strangers write, share
// nothing if they name no post, and that this is no error.
func TestSubjectsAreAddressesOfPosts(t *testing.T) {
	t.Parallel()
	for uri, want := range map[string]Subject{
		"at://did:plc:x/app.bsky.feed.post/3k":                               {CollectionPost, "did:plc:x", "3k"},
		"at://did:web:a.example/app.bsky.feed.post/self":                     {CollectionPost, "did:web:a.example", "self"},
		"at://alice.example/app.bsky.feed.post/3k":                           {},
		"at://did:plc:x/app.bsky.feed.repost/3k":                             {},
		"at://did:plc:x/app.bsky.feed.generator/3k":                          {},
		"at://did:plc:x/app.bsky.feed.post":                                  {},
		"at://did:plc:x/app.bsky.feed.post/3k/":                              {},
		"at://did:plc:x/app.bsky.feed.post/3k#1":                             {},
		"at://did:plc:x/app.bsky.feed.post/..":                               {},
		"at://did:plc:x/app.bsky.feed.post/a b":                              {},
		"at://did:plc:x\x00/app.bsky.feed.post/3k":                           {},
		"at://did:web:" + strings.Repeat("a", 300) + "/app.bsky.feed.post/1": {},
		"https://bsky.app/profile/did:plc:x/post/3k":                         {},
		"": {},
	} {
		require.Equal(t, want, parseSubject(uri), uri)
		repost, err := InRepost([]byte(`{"$type":"app.bsky.feed.repost","subject":{"uri":"` + strings.ReplaceAll(uri, "\x00",
			`\u0000`) + `","cid":"c"},"via":{"uri":"at://did:plc:y/app.bsky.feed.repost/3k"}}`))
		require.NoError(t, err)
		require.Equal(t, want, repost, uri)
	}
	for _, record := range []string{
		`{}`, `{"subject":null}`, `{"subject":"at://did:plc:x/app.bsky.feed.post/3k"}`, `{"subject":{"uri":7}}`,
		`{"subject":[{}]}`,
	} {
		repost, err := InRepost([]byte(record))
		require.NoError(t, err, record)
		require.Equal(t, Subject{}, repost, record)
	}
	for _, record := range []string{``, `null`, `[]`, `{"subject":`} {
		_, err := InRepost([]byte(record))
		require.Error(t, err, record)
	}
}
