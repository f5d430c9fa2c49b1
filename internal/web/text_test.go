package web

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-social/weir/internal/testing/webtest"
)

func TestInvalidHandleIsNotLinked(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]Person{
		"alice.example": {
			Name: "@alice.example", Identified: true, Profile: "https://bsky.app/profile/alice.example", On: "Profile on Bluesky",
		},
		"did:plc:z72i7hdynmk6r22z27h6tvur": {
			Name: "did:plc:z72i…tvur", Identified: true, Profile: "https://bsky.app/profile/did:plc:z72i7hdynmk6r22z27h6tvur",
			On: "Profile on Bluesky",
		},
		"did:web:a.example": {
			Name: "did:web:a.example", Identified: true, Profile: "https://bsky.app/profile/did:web:a.example",
			On: "Profile on Bluesky",
		},
		"../../settings":     {Name: "../../settings"},
		"alice.example/../x": {Name: "alice.example/../x"},
		`a" onclick="x`:      {Name: `a" onclick="x`},
		"handle.invalid":     {Name: "handle.invalid"}, // the network's placeholder for an invalid handle
		"":                   {},
	} {
		require.Equal(t, want, new(Server).NewPerson(name), name)
	}
}

func TestPlainTextIsOneVisibleLine(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"  a \n\t b\u2028c\u00a0d ":    "a b c d",
		"a\x00b\x1b[31mc\u0085d":       "a b [31mc d",
		"\u202Eabc\u202C\u2067d\ufeff": "abcd",
		"\u200f\u200eא":                "\u200f\u200eא",
		"bad \xff utf8":                "bad \uFFFD utf8",
		" \u200b\u200d\u3164\u2800 ":   "",
		"":                             "",
		"0123456789012":                "01234567890…",
		"e\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301x": "e\u0301\u0301\u0301\u0301\u0301\u0301x",
	} {
		require.Equal(t, want, PlainLine(in, 12), "%q", in)
	}
}

func FuzzPlainTextNeverReordersOrBreaksTheLine(f *testing.F) {
	for _, s := range webtest.HostileTexts() {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := PlainLine(s, 50)
		require.LessOrEqual(t, len([]rune(got)), 50)
		require.False(t, strings.ContainsAny(got, "\u202A\u202B\u202C\u202D\u202E\u2066\u2067\u2068\u2069\n\r\t\x00\u2028\u2029"), "%q", got)
		require.Equal(t, got, PlainLine(got, 50), "plain is idempotent")
	})
}

func TestAgeIsInWords(t *testing.T) {
	t.Parallel()
	for d, words := range map[time.Duration]string{
		-time.Hour: "just now", 0: "just now", 5*time.Second - 1: "just now", 5 * time.Second: "5 s ago", time.Minute - 1: "59 s ago",
		time.Minute: "1 min ago", time.Hour - 1: "59 min ago", time.Hour: "1 h ago", 48*time.Hour - 1: "47 h ago", 48 * time.Hour: "2 days ago",
	} {
		require.Equal(t, words, age(d), d.String())
	}
}

func TestCountsAreGroupedByThousands(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", 100000: "100,000"} {
		require.Equal(t, want, Grouped(n), strconv.Itoa(n))
	}
}
