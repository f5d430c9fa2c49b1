package link

import (
	_ "embed"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

//go:embed testdata/normalise.txt
var specification string

var escapedByte = regexp.MustCompile(`\\x[0-9A-F]{2}`)

type rule struct{ group, input, spelling, identity, gift, reason string }

// rules returns the rules of the specification.
func rules(t testing.TB) []rule {
	var all []rule
	group := ""
	for number, line := range strings.Split(specification, "\n") {
		if comment, ok := strings.CutPrefix(line, "# "); ok || line == "" {
			group = comment
			continue
		}
		fields := strings.Split(line, "\t")
		require.GreaterOrEqual(t, len(fields), 2, "line %d has no tab", number+1)
		r := rule{group: group, input: escapedByte.ReplaceAllStringFunc(fields[0], func(s string) string {
			b, err := strconv.ParseUint(s[2:], 16, 8)
			require.NoError(t, err)
			return string([]byte{byte(b)})
		})}
		if reason, ok := strings.CutPrefix(fields[1], "! "); ok {
			r.reason = reason
		} else {
			require.Contains(t, []int{3, 4}, len(fields), "line %d has no identity, or more than a gift", number+1)
			r.spelling, r.identity = fields[1], fields[2]
			if len(fields) == 4 {
				r.gift = fields[3]
			}
		}
		all = append(all, r)
	}
	return all
}

func TestParseFollowsTheSpecification(t *testing.T) {
	t.Parallel()
	all := rules(t)
	require.Greater(t, len(all), 400)
	seen := map[string]bool{}
	for _, r := range all {
		require.False(t, seen[r.input], "the specification contains %q twice", r.input)
		seen[r.input] = true
		got, err := Parse(r.input)
		if r.reason != "" {
			require.ErrorContains(t, err, r.reason, "%s\n%q gave %q", r.group, r.input, got.URL)
			require.Zero(t, got)
			continue
		}
		require.NoError(t, err, "%s\n%q", r.group, r.input)
		require.Equal(t, r.spelling, got.URL, "%s\n%q", r.group, r.input)
		require.Equal(t, r.identity, got.Identity, "%s\n%q", r.group, r.input)
		require.Equal(t, r.gift, got.Gift, "%s\n%q", r.group, r.input)
		requireNormal(t, got.URL)
		requireOneIdentity(t, got)
		requireGift(t, got)
	}
}

func TestLimitAppliesToTheNormalisedURL(t *testing.T) {
	t.Parallel()
	const root = "https://a.example/"
	for _, c := range []struct {
		rule, input, output string
	}{
		{"the maximum length", root + strings.Repeat("x", MaxBytes-len(root)), root + strings.Repeat("x", MaxBytes-len(root))},
		{"one byte more", root + strings.Repeat("x", MaxBytes-len(root)+1), ""},
		{"encoded bytes count", root + strings.Repeat("é", 400), ""},
		{"tracking parameters do not count", root + "?utm_source=" + strings.Repeat("x", 2*MaxBytes), root},
		{"the raw URL is bounded too", root + "?utm_source=" + strings.Repeat("x", maxRawBytes), ""},
		{"a label of 63 bytes", "https://" + strings.Repeat("a", 63) + ".example/", "https://" + strings.Repeat("a", 63) + ".example/"},
		{"a label of 64 bytes", "https://" + strings.Repeat("a", 64) + ".example/", ""},
		{"a host of more than 253 bytes", "https://" + strings.Repeat(strings.Repeat("a", 60)+".", 5) + "example/", ""},
	} {
		got, err := Normalise(c.input)
		require.Equal(t, c.output, got, c.rule)
		require.Equal(t, c.output == "", err != nil, c.rule)
	}
}

// requireNormal checks the guarantees of a normalised URL.
func requireNormal(t testing.TB, normal string) {
	again, err := Normalise(normal)
	require.NoError(t, err, "%q must not be refused when it is normalised again", normal)
	require.Equal(t, normal, again, "normalising is not idempotent")
	require.LessOrEqual(t, len(normal), MaxBytes)
	for i := range len(normal) {
		require.True(t, normal[i] > ' ' && normal[i] < 0x7F, "%q is not printable ASCII", normal)
	}
	u, err := url.Parse(normal)
	require.NoError(t, err)
	require.Contains(t, []string{"http", "https"}, u.Scheme)
	require.Nil(t, u.User)
	require.Contains(t, u.Hostname(), ".")
	require.True(t, strings.HasPrefix(u.Path, "/"))
}

// requireGift checks that a gift is a spelling of its link, on the same host.
func requireGift(t testing.TB, l Link) {
	if l.Gift == "" {
		return
	}
	again, err := Parse(l.Gift)
	require.NoError(t, err)
	require.Equal(t, Link{URL: l.URL, Identity: l.Identity, Site: l.Site, Short: l.Short, Excluded: l.Excluded, Gift: l.Gift}, again)
	require.LessOrEqual(t, len(l.Gift), MaxBytes)
	gift, err := url.Parse(l.Gift)
	require.NoError(t, err)
	spelling, err := url.Parse(l.URL)
	require.NoError(t, err)
	require.Equal(t, "https", gift.Scheme)
	require.Equal(t, spelling.Host+spelling.EscapedPath(), gift.Host+gift.EscapedPath())
}

func FuzzNormalise(f *testing.F) {
	for _, r := range rules(f) {
		f.Add(r.input)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		normal, err := Normalise(raw)
		l, parseErr := Parse(raw)
		if err != nil {
			require.Empty(t, normal)
			require.EqualError(t, parseErr, err.Error())
			return
		}
		require.NoError(t, parseErr)
		require.Equal(t, normal, l.URL)
		require.NotEmpty(t, l.Site)
		requireNormal(t, normal)
		requireOneIdentity(t, l)
		requireGift(t, l)
	})
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct{ name, url string }{
		{"article", "https://www.harbourtimes.example/2026/07/a-bridge-nobody-asked-for-1234"},
		{"tracked", "https://www.harbourtimes.example/2026/07/a-bridge-nobody-asked-for-1234/?utm_source=bluesky&utm_medium=social&id=7"},
		{"video", "https://youtu.be/dQw4w9WgXcQ?si=abc"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Parse(c.url); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
