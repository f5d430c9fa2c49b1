package syntax

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"
)

// edges are common identifiers, and some at the edges of their syntax.
func edges() []string {
	return []string{"did:plc:wq4aajammjtxdomz3e23667t", "did:web:a.b", "did:web:localhost%3A8080", "3mptbypluud2a", "jzzzzzzzzzzzz",
		"app.bsky.feed.post", "a.b.c", "com.a-b.c1d", "bafyreiguce4jh7kcbmof3pmcvasifqtw24b6isakj5ve5ga2b4z4alpc4i", "Qmbcdefgh", "self", ".."}
}

// FuzzSyntax compares the fast checks with the library.
func FuzzSyntax(f *testing.F) {
	for _, s := range edges() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) { sameSyntax(t, s) })
}

func sameSyntax(t testing.TB, s string) {
	t.Helper()
	_, did := syntax.ParseDID(s)
	_, tid := syntax.ParseTID(s)
	_, rkey := syntax.ParseRecordKey(s)
	_, nsid := syntax.ParseNSID(s)
	_, cid := syntax.ParseCID(s)
	require.Equal(t, []bool{did == nil, tid == nil, rkey == nil, nsid == nil, cid == nil},
		[]bool{IsDID(s), IsTID(s), IsRecordKey(s), IsNSID(s), IsCID(s)}, "DID, TID, record key, NSID, CID: %q", s)
}

// The corpus has every byte at every place of common values, and every length.
func TestSyntaxMatchesLibrary(t *testing.T) {
	t.Parallel()
	for _, usual := range edges() {
		sameSyntax(t, usual)
		for i := range len(usual) {
			for b := range 256 {
				sameSyntax(t, usual[:i]+string([]byte{byte(b)})+usual[i+1:])
				sameSyntax(t, usual[:i]+string([]byte{byte(b)})+usual[i:])
			}
			sameSyntax(t, usual[:i]+"é"+usual[i:])
		}
		sameSyntax(t, usual+"\n")
	}
	for n := range 2100 {
		sameSyntax(t, strings.Repeat("a", n))
		sameSyntax(t, "did:web:"+strings.Repeat("a", n))
		sameSyntax(t, fmt.Sprintf("a.%s.b", strings.Repeat("c", n)))
		sameSyntax(t, fmt.Sprintf("%s.b.c", strings.Repeat("a", n)))
		sameSyntax(t, fmt.Sprintf("a.b.%s", strings.Repeat("c", n)))
		sameSyntax(t, strings.Repeat("aa.", n/3)+"b")
	}
}
