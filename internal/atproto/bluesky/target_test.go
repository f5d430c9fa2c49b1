package bluesky_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/atproto/bluesky"
)

func TestParseTarget(t *testing.T) {
	t.Parallel()
	account := func(actor string) bluesky.Target { return bluesky.Target{Kind: bluesky.TargetAccount, Actor: actor} }
	list := func(actor string) bluesky.Target {
		return bluesky.Target{Kind: bluesky.TargetList, Actor: actor, URI: "at://" + actor + "/app.bsky.graph.list/3kabc"}
	}
	pack := func(actor string) bluesky.Target {
		return bluesky.Target{Kind: bluesky.TargetStarterPack, Actor: actor, URI: "at://" + actor + "/app.bsky.graph.starterpack/3kabc"}
	}
	for named, want := range map[string]bluesky.Target{
		"alice.example":                  account("alice.example"),
		" @Alice.Example\n":              account("alice.example"),
		"\u202aalice.example\u202c":      account("alice.example"),
		"bsky.app":                       account("bsky.app"),
		alice:                            account(alice),
		"did:web:alice.example":          account("did:web:alice.example"),
		"at://" + alice:                  account(alice),
		"at://alice.example/":            account("alice.example"),
		listURI:                          list(alice),
		"AT://" + listURI[len("at://"):]: list(alice),
		"at://Alice.example/app.bsky.graph.list/3kabc":        list("alice.example"),
		"at://" + alice + "/app.bsky.graph.starterpack/3kabc": pack(alice),

		"https://bsky.app/profile/alice.example":                        account("alice.example"),
		"https://bsky.app/profile/@alice.example/":                      account("alice.example"),
		"HTTPS://BSKY.APP/profile/" + alice + "?ref=x#y":                account(alice),
		"https://bsky.app/profile/did%3Aplc%3Az72i7hdynmk6r22z27h6tvur": account(bob),
		"bsky.app/profile/alice.example":                                account("alice.example"),
		"http://www.bsky.app/profile/alice.example":                     account("alice.example"),
		"https://bsky.app/profile/alice.example/lists/3kabc":            list("alice.example"),
		"https://bsky.app/profile/" + alice + "/lists/3kabc":            list(alice),
		"https://bsky.app/starter-pack/alice.example/3kabc":             pack("alice.example"),
		"https://bsky.app/start/" + alice + "/3kabc":                    pack(alice),
	} {
		got, err := bluesky.ParseTarget(named)
		require.NoError(t, err, named)
		require.Equal(t, want, got, named)
	}
}

func TestParseTargetErrors(t *testing.T) {
	t.Parallel()
	for named, reason := range map[string]string{
		"":                        "nothing is named",
		" \u200b ":                "nothing is named",
		"alice":                   "neither a handle nor a DID",
		"@" + alice:               "neither a handle nor a DID",
		"did:plc:":                "neither a handle nor a DID",
		"alice example.com":       "neither a handle nor a DID",
		"alice.example\x00":       "neither a handle nor a DID",
		strings.Repeat("a", 5000): "5000 bytes",
		"at://":                   "names no account",
		"at://" + alice + "/app.bsky.feed.post/3kabc":      "neither a list nor a starter pack",
		"at://" + alice + "/app.bsky.graph.list":           "neither a list nor a starter pack",
		"at://" + alice + "/app.bsky.graph.list/..":        "not a record key",
		"at://alice/app.bsky.graph.list/3kabc":             "neither a handle nor a DID",
		"https://bsky.app":                                 "not a profile, list or starter pack",
		"https://bsky.app/":                                "not a profile, list or starter pack",
		"bsky.app/search":                                  "not a profile, list or starter pack",
		"https://bsky.app/profile/":                        "not a profile, list or starter pack",
		"https://bsky.app/profile/alice":                   "names no account",
		"https://bsky.app/profile/%zz":                     "not a URL",
		"https://bsky.app/profile/alice.example/post/3k":   "not a profile, list or starter pack",
		"https://bsky.app/profile/alice.example/lists/%2F": "not a record key",
		"https://bsky.app@evil.example/profile/a.example":  "not on bsky.app",
		"https://go.bsky.app/abc":                          "not on bsky.app",
		"https://alice.example/":                           "not on bsky.app",
	} {
		got, err := bluesky.ParseTarget(named)
		require.ErrorContains(t, err, reason, named)
		require.Zero(t, got)
		require.NotContains(t, err.Error(), "\x00")
	}
}

// FuzzParseTarget checks that a parsed target parses to itself, and can be stored.
func FuzzParseTarget(f *testing.F) {
	for _, seed := range []string{
		"alice.example", "@alice.example", alice, listURI, "https://bsky.app/profile/a.example/lists/x", "bsky.app/start/a.example/%2e",
		"at://\u202a",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := bluesky.ParseTarget(s)
		if err != nil {
			require.Zero(t, got)
			return
		}
		require.NotEmpty(t, got.Actor)
		require.NotContains(t, got.Actor+got.URI, "\x00")
		name := got.Actor
		if got.Kind != bluesky.TargetAccount {
			name = got.URI
		}
		again, err := bluesky.ParseTarget(name)
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
