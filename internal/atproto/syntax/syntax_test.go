package syntax

import (
	"fmt"
	"strings"
	"testing"

	"github.com/bluesky-social/indigo/atproto/syntax"
	"github.com/stretchr/testify/require"
)

// edges returns common identifiers, and some at the limits of their syntax.
func edges() []string {
	return []string{"at://did:plc:wq4aajammjtxdomz3e23667t/app.bsky.feed.post/3mptbypluud2a", "at://a.bc/d.e.f", "at://did:web:a.b",
		"a.b-c.d3",
		"2026-01-31T23:59:59.123456Z", "2024-02-29T12:00:00+05:30", "0000-01-01T00:00:00Z", "https://example.com/%20?a=b#c", "pt-BR", "i-x",
		"did:plc:wq4aajammjtxdomz3e23667t", "did:web:a.b", "did:web:localhost%3A8080", "3mptbypluud2a", "jzzzzzzzzzzzz",
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
	_, handle := syntax.ParseHandle(s)
	_, identifier := syntax.ParseAtIdentifier(s)
	_, aturiErr := syntax.ParseATURI(s)
	aturi := aturiErr == nil || strings.Contains(s, "/space/") && IsATURI(s) // the library does not know spaces yet
	_, uri := syntax.ParseURI(s)
	_, tid := syntax.ParseTID(s)
	_, rkey := syntax.ParseRecordKey(s)
	_, nsid := syntax.ParseNSID(s)
	_, cid := syntax.ParseCID(s)
	require.Equal(t, []bool{did == nil, tid == nil, rkey == nil, nsid == nil, cid == nil},
		[]bool{IsDID(s), IsTID(s), IsRecordKey(s), IsNSID(s), IsCID(s)}, "DID, TID, record key, NSID, CID: %q", s)
	require.Equal(t, []bool{handle == nil, identifier == nil, aturi, uri == nil},
		[]bool{IsHandle(s), IsAtIdentifier(s), IsATURI(s), IsURI(s)}, "handle, identifier, at-uri, URI: %q", s)
	if !strings.Contains(s, ",") {
		_, datetime := syntax.ParseDatetime(s)
		require.Equal(t, datetime == nil, IsDatetime(s), "datetime: %q", s)
	}
	if _, _, _, ok := RecordOf(s); ok {
		require.True(t, IsATURI(s), "%q names a record and is no at-uri", s)
	}
}

// TestSyntaxMatchesLibrary checks every byte at every position of common
// values, and every length.
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

func TestSyntaxAtTheLongest(t *testing.T) {
	t.Parallel()
	for n := range 100 {
		sameSyntax(t, strings.Repeat("a", n)+":b")
		sameSyntax(t, strings.Repeat("a", n)+".b")
		sameSyntax(t, strings.Repeat("a.", n+80)+"b")
	}
	for _, n := range []int{0, 1, 511, 512, 513} {
		sameSyntax(t, "at://a.b/c.d.e/"+strings.Repeat("a", n))
	}
	for _, n := range []int{8191, 8192, 8193} {
		sameSyntax(t, "a:"+strings.Repeat("b", n-2))
		sameSyntax(t, "at://did:web:"+strings.Repeat("a", n-13))
	}
	require.True(t, IsDatetime("2026-01-31T00:00:00.5Z"))
	require.False(t, IsDatetime("2026-01-31T00:00:00,5Z"))
}

func TestRecordOfAnATURI(t *testing.T) {
	t.Parallel()
	did, collection, key, ok := RecordOf("at://did:web:a.b/c.d.e/self")
	require.Equal(t, []any{"did:web:a.b", "c.d.e", "self", true}, []any{did, collection, key, ok})
	for _, uri := range []string{
		"at://did:web:a.b/c.d.e", "at://did:web:a.b", "at://a.b/c.d.e/self", "at://did:web:a.b/c.d.e/self/", "at://did:web:a.b/c.d.e/",
		"https://a.b/c.d.e/self",
	} {
		_, _, _, ok := RecordOf(uri)
		require.False(t, ok, uri)
	}
}

func TestSpacesAreATURIs(t *testing.T) {
	t.Parallel()
	space := "at://did:web:a.b/space/c.d.forum/main"
	for _, rest := range []string{"", "/did:web:e.f", "/did:web:e.f/c.d.post", "/did:web:e.f/c.d.post/3mptbypluud2a"} {
		require.True(t, IsATURI(space+rest), rest)
		_, _, _, ok := RecordOf(space + rest)
		require.False(t, ok, "it is no record of a public repository: %s", rest)
	}
	for _, uri := range []string{"at://did:web:a.b/space", "at://did:web:a.b/space/c.d.forum", "at://a.bc/space/c.d.forum/main", space + "/",
		space + "/e.f", space + "/did:web:e.f/c.d.post/k/more"} {
		require.False(t, IsATURI(uri), uri)
	}
}
