package link

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPostsThatShareNothingAreRuledOut lists posts that need not be decoded. A
// post with escapes that may hide a name is not ruled out.
func TestPostsThatShareNothingAreRuledOut(t *testing.T) {
	t.Parallel()
	for _, record := range []string{
		`{}`, " {\n} ", `{"text":""}`, `{"text":7,"langs":["en"],"n":-1.5e3,"b":true}`,
		textPost(t, `Nobody told me. Never "mind": the café is open, and/or closed`[:40]),
		textPost(t, "no full stop, and/or none at all"),
		textPost(t, "a sentence. another\nline. www is no link"),
		textPost(t, "#tag. @a.example",
			`"facets":[{"index":{"byteStart":0,"byteEnd":4},"features":[{"$type":"app.bsky.richtext.facet#tag","tag":"tag"}]}]`),
		textPost(t, "a reply.",
			`"reply":{"parent":{"uri":"at://did:plc:a/app.bsky.feed.post/3k"},"root":{"uri":"at://did:plc:a/app.bsky.feed.post/3k"}}`),
		textPost(t, "a picture.",
			`"embed":{"$type":"app.bsky.embed.images","images":[{"alt":"see https://a.example/ \\","image":{"mimeType":"image/jpeg"}}]}`),
	} {
		require.False(t, MayShare([]byte(record)), record)
		requireNothing(t, record)
	}
}

func TestPostsThatMayShareAreRead(t *testing.T) {
	t.Parallel()
	quote := `"embed":{"$type":"app.bsky.embed.record","record":{"uri":"at://did:plc:a/app.bsky.feed.post/3k"}}`
	for _, record := range []string{
		textPost(t, "https://a.example"), textPost(t, "a.example/b"), textPost(t, "WWW.a.example"), textPost(t, "a. b. wWw.a.example. c"),
		`{"text":"https:\/\/a\u002eexample"}`, `{"\u0074ext":"a.example/b"}`, `{"text":"plain","text":"a.example/b"}`,
		`{"text":"\u0077\u0077\u0077.a.example"}`, `{"a":["]}",{"b":"\\\""}],"text" : "a.example/b" }`,
		textPost(t, "x", quote), textPost(t, "x", `"embed":`+card("https://a.example/", "")),
		`{"embed":{"$type":"app.bsky.embed\u002erecord","record":{"uri":"at://did:plc:a/app.bsky.feed.post/3k"}}}`,
		textPost(t, "here", `"facets":[`+linked("here", "here", "https://a.example/")+`]`),
		`{"text":"here","facets":[{"features":[{"$type":"app.bsky.richtext.facet\u0023link","uri":"https://a.example/"}]}]}`,
	} {
		p, err := InPost(poster, []byte(record))
		require.NoError(t, err, record)
		require.True(t, len(p.Links) > 0 || p.Quoted != Subject{}, record)
		require.True(t, MayShare([]byte(record)), record)
	}
	for _, record := range []string{"", "[]", `"a"`, "7", "null"} {
		require.True(t, MayShare([]byte(record)), record)
	}
}

func requireNothing(t testing.TB, record string) {
	p, err := InPost(poster, []byte(record))
	require.NoError(t, err, record)
	require.Empty(t, p.Links, record)
	require.Zero(t, p.Quoted, record)
}

func FuzzMayShare(f *testing.F) {
	addPosts(f)
	f.Add(`{"text":"WWW.a.example","facets":[],"embed":{"$type":"app.bsky.embed.record",` +
		`"record":{"uri":"at://did:plc:a/app.bsky.feed.post/3k"}}}`)
	f.Add(`{"a":{"b":["\\\"",1e9,null]},"text":"\u0061.example\/b"}`)
	f.Fuzz(func(t *testing.T, record string) {
		if json.Valid([]byte(record)) && !MayShare([]byte(record)) {
			requireNothing(t, record)
		}
	})
}

func BenchmarkMayShare(b *testing.B) {
	record := []byte(textPost(b,
		"Nobody told me that the library closes on a Tuesday, of all days. Never mind: the café is open.", `"langs":["en"]`))
	b.ReportAllocs()
	for b.Loop() {
		if MayShare(record) {
			b.Fatal("not ruled out")
		}
	}
}
