package nostr_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/nostr"
)

func TestParseTarget(t *testing.T) {
	t.Parallel()
	key := bytes32(t, npubKey)
	for text, want := range map[string]nostr.Target{
		npub:                                {Key: key},
		"  nostr:" + npub + "\n":            {Key: key},
		"\u2066" + npub + "\u2069":          {Key: key},
		strings.ToUpper(npub):               {Key: key},
		"did:nostr:" + npubKey:              {Key: key},
		nprofile:                            {Key: bytes32(t, profile), Relays: []string{"wss://r.x.com", "wss://djbas.sadkb.com"}},
		"Bob@Example.COM":                   {Name: "bob@example.com"},
		"_@example.com":                     {Name: "_@example.com"},
		"a.b-c_d@under.sub.example.museum9": {Name: "a.b-c_d@under.sub.example.museum9"},
	} {
		got, ok, err := nostr.ParseTarget(text)
		require.NoError(t, err, "%q", text)
		require.True(t, ok, "%q", text)
		require.Equal(t, want, got, "%q", text)
	}
	for _, text := range []string{"", "alice.example", "@alice.example", "did:plc:ewvi7nxzyoun6zhxrhs64oiz",
		"https://bsky.app/profile/alice.example", "npub1.example",
		"at://did:plc:a/app.bsky.graph.list/3k", "a@localhost", "a@10.0.0.1", "a@[::1]", "a@b.example:80", "a@b.example/x", "a b@c.example",
		"@a@b.example", "é@b.example", strings.Repeat("a", 65) + "@b.example"} {
		_, ok, err := nostr.ParseTarget(text)
		require.NoError(t, err, "%q", text)
		require.False(t, ok, "%q is for another network, or nothing", text)
	}
	for _, text := range []string{npub[:30], npub + "x", nprofile[:80], "nostr:" + "alice.example", "did:nostr:" + npubKey[:60],
		"did:nostr:" + npub,
		nostr.EncodeBech32("note", unhex(t, npubKey)), nostr.EncodeBech32("npub", unhex(t, npubKey[:62]))} {
		_, ok, err := nostr.ParseTarget(text)
		require.Error(t, err, "%q", text)
		require.True(t, ok, "%q", text)
	}
}

// TestNoSecretIsQuoted covers secrets anywhere in a text, complete or not, and
// also as hexadecimal digits.
func TestNoSecretIsQuoted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{nsec, "nostr:" + nsec, strings.ToUpper(nsec), nsec[:40], nsec + ".example", nsec + "@example.com",
		"a@" + nsec + ".example", "at://" + nsec + "/x", "did:nostr:" + nsec,
		"https://bsky.app/profile/" + nsec, "weir " + nsec, "nsec1\u200b" + nsec[5:], "nsec1short", npubKey, strings.ToUpper(npubKey),
		"nostr:" + npubKey} {
		_, ok, err := nostr.ParseTarget(text)
		require.True(t, ok, "%q", text)
		require.Error(t, err, "%q", text)
		for _, part := range []string{nsec[5:20], nsec[20:40], npubKey[:16], "short"} {
			require.NotContains(t, strings.ToLower(err.Error()), part)
		}
	}
	require.False(t, nostr.ContainsSecret("nsec1.example"), "a handle")
	require.False(t, nostr.ContainsSecret(npub))
}

func TestLists(t *testing.T) {
	t.Parallel()
	a, b := strings.Repeat("0a", 32), strings.Repeat("0b", 32)
	e := nostr.Event{Tags: [][]string{{"p", b, "wss://x"}, {"p", a}, {"p"}, {}, {"p", b}, {"p", "junk"}, {"p", strings.ToUpper(a)}, {"e", a}}}
	require.Equal(t, [][32]byte{bytes32(t, a), bytes32(t, b)}, e.Follows())

	e = nostr.Event{Tags: [][]string{{"r", "WSS://One.example:443/"}, {"r", "wss://two.example/path/", "write"},
		{"r", "wss://three.example", "read"}, {"r", "http://four.example"}, {"r"}, {"r", "wss://one.example"},
		{"r", "wss://user@five.example"}, {"r", "wss://six.example", ""}, {"r", "wss://seven.example", "write"},
		{"r", "wss://" + strings.Repeat("x", 300)}}}
	require.Equal(t, []string{"wss://one.example", "wss://two.example/path", "wss://six.example"}, e.WriteRelays(3))

	for content, want := range map[string]nostr.Profile{
		`{"name":"bob","display_name":"Bob","picture":"https://x/p.png","nip05":"BOB@Example.com",` +
			`"extra":[1]}`: {Name: "Bob", Picture: "https://x/p.png", Name05: "bob@example.com"},
		`{"name":"bob","display_name":"","nip05":"example.com"}`: {Name: "bob",
			Name05: "_@example.com"},
		`{"name":7,"nip05":"bob@localhost","picture":null}`: {},
	} {
		e := nostr.Event{Content: content}
		got, ok := e.Profile()
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	for _, content := range []string{"", "null", "[]", `"x"`, "{", `{"a":` + strings.Repeat("[", 20000)} {
		e := nostr.Event{Content: content}
		p, ok := e.Profile()
		require.Equal(t, nostr.Profile{}, p)
		require.Equal(t, content == "null", ok, content[:min(9, len(content))])
	}
}
